// Pages and anchors in RAM: the hot and warm tiers.
//
// Blobs are immutable and shared: two conversations with one system prompt hold its pages once, and a reader may keep a
// blob while the tier forgets it. The budget holds at every moment: a blob goes in only when there is room, and room is
// made only by blobs that nobody else holds, because dropping the others would free nothing. Users share it: one that takes
// more than an equal part gives way before the others do.
//
// Thread safety: all functions may be called at any time.
#pragma once

#include "kvtier/buffer.h"
#include "kvtier/keys.h"
#include "kvtier/policy.h"
#include "kvtier/thread_annotations.h"

#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvtier {

// A key is a hash already: its first bytes are as good as any hash of it.
struct key_hash {
    size_t operator()(const key & k) const {
        size_t value;
        std::memcpy(&value, k.data(), sizeof(value));
        return value;
    }
};

// Pages and anchors of one length have the same key.
enum class object_kind : uint8_t { page, anchor };

class ram_tier {
public:
    ram_tier(uint64_t budget, const tier_windows & windows) : budget_(budget), windows(windows) {}

    // Gives the blob, which is hot from now on, or null.
    blob get(object_kind kind, const key & k, uint64_t turn);

    // Whether it is here and in which tier, without counting as a use.
    bool peek(object_kind kind, const key & k, uint64_t turn, tier & out) const;

    // False when it does not fit: everything else is in use, or it is larger than the budget.
    bool put(object_kind kind, const key & name_space, const key & k, blob data, uint64_t turn);

    void erase(object_kind kind, const key & k);
    void erase_name_space(const key & name_space);

    // A new turn of the name space begins: what has been idle for the warm window is dropped.
    void begin_turn(const key & name_space, uint64_t turn);

    uint64_t bytes() const;
    uint64_t peak_bytes() const;
    uint64_t budget() const { return budget_; }
    size_t   size() const;

private:
    struct entry {
        object_kind kind;
        key         k;
        key         name_space;
        blob        data;
        uint64_t    last_turn;
    };
    using entries = std::list<entry>; // most recently used first
    using by_key  = std::unordered_map<key, entries::iterator, key_hash>;

    by_key &          map(object_kind kind) REQUIRES(mu)       { return kind == object_kind::page ? pages : anchors; }
    const by_key &    map(object_kind kind) const REQUIRES(mu) { return kind == object_kind::page ? pages : anchors; }
    entries::iterator drop(entries::iterator it) REQUIRES(mu);

    const uint64_t     budget_;
    const tier_windows windows;

    mutable mutex           mu;
    entries                 used GUARDED_BY(mu);
    by_key                  pages GUARDED_BY(mu);
    by_key                  anchors GUARDED_BY(mu);
    std::map<key, uint64_t> by_name_space GUARDED_BY(mu); // bytes
    uint64_t                bytes_ GUARDED_BY(mu) = 0;
    uint64_t                peak_ GUARDED_BY(mu)  = 0;
};

} // namespace kvtier

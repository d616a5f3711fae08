// What the store has on disk, in bytes, by name.
//
// Every file and folder is counted under its path, from the moment its bytes are reserved until it is known to be gone. So
// nothing can be counted twice or given back twice: a file that replaces another one takes over its place, and one that the
// disk refuses to remove simply stays. What is counted here is counted in the budget, which several stores share.
//
// Room for a file is taken before its first byte is written, as a reservation, which gives itself back unless a file has
// used it.
//
// Thread safety: all functions may be called at any time; a reservation belongs to one thread.
#pragma once

#include "kvtier/budget.h"
#include "kvtier/thread_annotations.h"

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvtier {

class reservation {
public:
    reservation() = default;
    ~reservation() { give_back(); }
    reservation(reservation && other) noexcept : from(other.from), bytes(std::exchange(other.bytes, 0)) {}
    reservation & operator=(reservation && other) noexcept {
        if (this != &other) {
            give_back();
            from  = other.from;
            bytes = std::exchange(other.bytes, 0);
        }
        return *this;
    }

private:
    friend class ledger;

    void give_back() {
        if (bytes > 0) {
            from->release(std::exchange(bytes, 0));
        }
    }

    disk_budget * from  = nullptr;
    uint64_t      bytes = 0; // that no file has used yet
};

class ledger {
public:
    // model: the name of the model's folder, which this store counts instead of whoever measured it before.
    ledger(std::shared_ptr<disk_budget> budget, std::string model);

    // Gives back everything that it counts: the next one to open the folder measures it anew.
    ~ledger();

    // Counts the model's folder from here on.
    void begin();

    // False when the budget has no room for them now.
    bool reserve(uint64_t bytes, reservation & out);

    // What lies at that path takes so many bytes, whatever it took before.
    void count(const std::string & path, uint64_t bytes);

    // The same for a file that was written with reserved bytes.
    void count(const std::string & path, uint64_t bytes, reservation & room);

    // It lies under another name now.
    void move(const std::string & from, const std::string & to);

    // It is gone. Gives what it was counted for.
    uint64_t remove(const std::string & path);

    bool                     has(const std::string & path) const;
    uint64_t                 bytes_of(const std::string & path) const; // 0 as well where it is not counted
    std::vector<std::string> paths_in(const std::string & folder) const; // with the folder itself
    uint64_t                 bytes() const;

    disk_budget & budget() { return *budget_; }

private:
    // Puts it under its path and gives what was counted there before.
    uint64_t replace(const std::string & path, uint64_t bytes) REQUIRES(mu);

    const std::shared_ptr<disk_budget> budget_;
    const std::string                  model;
    bool                               begun = false;

    mutable mutex                             mu; // is taken before the budget's
    std::unordered_map<std::string, uint64_t> counted GUARDED_BY(mu);
    uint64_t                                  total GUARDED_BY(mu) = 0;
};

} // namespace kvtier

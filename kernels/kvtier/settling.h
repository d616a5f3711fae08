// Folded state that waits in memory until its conversation rests. What the next turn makes needless is never written.
//
// A turn's anchors and its checkpoint are due when no other turn of the conversation has come for some seconds. A turn that goes on
// from another one takes its place; one whose prompt alone is known by then takes the anchors' place, and the checkpoint, which names
// the conversation, stays until the turn has one of its own. An anchor that other conversations go on from is not needless then: it
// waits on with the turn that has taken the place. Conversations that never rest are written all the same, once in a
// while: `kill -9` must not cost all of them.
//
// Thread safety: none; the writer guards it.
#pragma once

#include "kvtier/store.h"

#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <vector>

namespace kvtier {

class settling {
public:
    using clock = std::chrono::steady_clock;

    // rest: 0 keeps nothing back. max_bytes: beyond them the oldest are due.
    settling(std::chrono::milliseconds rest, uint64_t max_bytes) : rest(rest), max_bytes(max_bytes) {}

    // Whether this request has something that may wait.
    bool concerns(const save_request & request) const { return rest.count() > 0 && request.folded; }

    // Takes out what may wait: anchors behind the static prefix, and the checkpoint that names them.
    static save_request split(save_request & request);

    // number: of the request it was split from. Gives what is needless now.
    std::vector<save_request> add(save_request request, uint64_t number, clock::time_point now);

    // What is to be written now, or nothing. All up to the number `until` are due.
    std::optional<save_request> take_due(clock::time_point now, uint64_t until);

    bool is_due(clock::time_point now, uint64_t until) const;

    bool is_over_limit() const { return bytes() > max_bytes; }

    // When the next will be due.
    std::optional<clock::time_point> next_due() const;

    bool     has_any_until(uint64_t number) const;
    uint64_t bytes() const;
    size_t   size() const; // anchors
    bool     waits(const key & k) const; // an anchor does, of whatever conversation

private:
    // A conversation's last turn.
    struct resting {
        save_request      turn;
        uint64_t          number;
        clock::time_point since;
        clock::time_point unwritten_since; // that of the oldest turn that it took the place of
    };

    clock::time_point         due(const resting & r) const;
    bool                      is_due(const resting & r, clock::time_point now, uint64_t until) const;
    std::set<const resting *> superseded_by(const save_request & request) const;

    const std::chrono::milliseconds rest;
    const uint64_t                  max_bytes;
    std::list<resting>              all; // the longest resting first
};

} // namespace kvtier

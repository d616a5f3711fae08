// A request on its way to a slot: what was found and read for it. It travels with its task.
//
// Whose it is at each time; nobody else touches it but for `reading` and `removed`, and removals, which read scope, conversation
// and tokens: these do not change once the ticket was expected (prompt_reader::expect).
//
//   arriving   the HTTP worker that made it      looked up, perhaps read, before its task is posted
//   queued     its task, in the server's queue   untouched
//   offered    the inference thread              a slot was chosen for it (prompt_reader::prepare)
//   put off    the reader's thread               from prepare, which says no, until `reading` is false again; its task waits
//   placed     the inference thread              emptied by cache_core::restore; what happens from then on is the turn's
//
// A cancelled task drops its ticket wherever it is; the reader keeps the one it reads for.
#pragma once

#include "server/cache/stopwatch.h"
#include "server/cache_report.h"
#include "server/conversation.h"
#include "server/live/slot_watch.h"

#include "kvtier/loading.h"
#include "kvtier/search.h"
#include "llama/sequence_store.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace llama_run {

class cache_core;

inline cache_miss miss_of(const kvtier::status & failure) {
    return failure.is_damaged() ? cache_miss::corrupt : failure.is_io_error() ? cache_miss::io_error : cache_miss::no_room;
}

// One context's part of a restore.
struct stored_part {
    kvtier::match                    match;
    std::unique_ptr<kvtier::loading> reading; // begun; what is left of it will have come when it is needed

    void clear() {
        reading.reset(); // It uses the match, so it goes first.
        match = {};
    }

    size_t n_tokens() const { return reading ? reading->n_tokens() : 0; }
};

// Bytes that a request holds beyond the RAM tier, counted for as long as this lives.
class held_bytes {
public:
    using total = std::shared_ptr<std::atomic<uint64_t>>;

    held_bytes() = default;
    held_bytes(total of, uint64_t n) : of(std::move(of)), n(n) {}
    held_bytes(held_bytes && other) noexcept { swap(other); }
    held_bytes & operator=(held_bytes && other) noexcept {
        held_bytes gone(std::move(other));
        swap(gone);
        return *this;
    }
    ~held_bytes() {
        if (of) {
            *of -= n;
        }
    }

    // Whether nobody else holds any.
    bool is_alone() const { return of && *of == n; }

private:
    void swap(held_bytes & other) {
        std::swap(of, other.of);
        std::swap(n, other.n);
    }

    total    of;
    uint64_t n = 0;
};

// The beginning of a prompt that another slot has, or will have.
struct shared_prefix {
    int         slot     = -1;
    size_t      n_tokens = 0; // 0: there is none
    anchor_copy anchor;       // the folded state at that length, where it is there and has one
};

// Whether a task evaluates something ahead of its use (overflow/ahead_warmer.h): a part of it, or its end.
enum class warming : uint8_t { no, part, end };

class cache_ticket {
public:
    cache_ticket(const std::string & user, conversation_request asked) : asked(std::move(asked)) { scope.user = user; }
    ~cache_ticket() { clear(); }

    // Gives back what was found and read.
    void clear() {
        held = {};
        target.clear();
        draft.clear();
        shared = {};
        core.reset();
    }

    // Whether there is a prompt to look up.
    bool is_looked_up() const { return miss != cache_miss::off && miss != cache_miss::media; }

    std::shared_ptr<cache_core> core; // null if the cache was off, and once it is placed; a match must not outlive its store
    const conversation_request  asked;
    sequence_scope              scope;
    kvtier::conversation_facts  conversation;
    std::vector<kvtier::token>  tokens;
    stored_part                 target;
    stored_part                 draft;
    cache_miss                  miss = cache_miss::none; // why nothing is read, or what went wrong
    double                      read_ms   = 0;
    std::optional<size_t>       n_unfetched;             // tokens that there were without the shared folder; nothing: it had no more
    uint32_t                    n_reads   = 0;
    size_t                      n_in_slot = 0;           // tokens that the slot it is put off for can give
    held_bytes                  held;
    uint8_t                     stable = 0;              // what of its prompt was made stable
    shared_prefix               shared;                  // what it goes on from instead, if that is more
    std::optional<stopwatch>    waiting_for_shared;      // since it was first put off for that
    bool                        look_again = false;      // it waited for another slot, and more may be stored by now
    context_dropped             dropped;                 // from its messages
    warming                     warms = warming::no;
    std::shared_ptr<slot_watch::place> in_line;          // until it has a slot
    std::atomic<bool>           reading{ false };
    std::atomic<bool>           removed{ false };        // its conversation or user was, while it waited
};

} // namespace llama_run

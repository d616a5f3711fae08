// Who evicts in a shared folder: one server at a time, or nobody for a while, whatever their clocks say.
//
// The lease is a small text: who has it, and a number that grows while he does. Whoever sees it unchanged for a whole term, by a clock
// of his own that only counts, takes it. No time is ever written down or compared between machines, so neither a wrong clock nor a
// crash keeps it for longer. Two may believe for a moment that they have it: they evict the same files then, and a file that is gone is gone.
//
// Pure, but for the random name that each object has. Thread safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace kvtier {

class eviction_lease {
public:
    using clock = std::chrono::steady_clock;

    static constexpr const char * file_name = "evictor.lease";

    eviction_lease(std::string owner, clock::duration term) : owner(std::move(owner)), term(term) {}

    // `found`: what the file says; empty: there is none. Gives what to write into it, if anything.
    std::optional<std::string> look(const std::string & found, clock::time_point now);

    // Whether it is ours: we have seen it say so.
    bool is_held() const { return held; }

private:
    std::string next();

    const std::string     owner;
    const clock::duration term;
    std::string           last_seen;
    clock::time_point     seen_since;
    bool                  seen_any = false;
    std::string           written;    // by us, last
    uint64_t              number = 0; // of it
    clock::time_point     written_at;
    bool                  held = false;
};

} // namespace kvtier

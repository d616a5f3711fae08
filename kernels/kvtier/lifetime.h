// How long a conversation is kept, as its client or its owner asked: pure functions, and which clock they go by.
//
// Two things count from its last use. For its ttl a conversation is protected from eviction; when that has passed, it is the
// first to go, but nothing goes for that alone. Unused for as long as `expire` says, it is removed, whether room is
// needed or not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace kvtier {

constexpr int64_t forever_ms = std::numeric_limits<int64_t>::max();

struct lifetime {
    int64_t ttl_ms    = 0; // 0: none
    int64_t expire_ms = 0; // 0: as the store's options say
};

inline bool operator==(const lifetime & a, const lifetime & b) {
    return a.ttl_ms == b.ttl_ms && a.expire_ms == b.expire_ms;
}

// What of it is to be another; the rest stays.
struct lifetime_change {
    std::optional<int64_t> ttl_ms;
    std::optional<int64_t> expire_ms;

    lifetime applied_to(const lifetime & before) const {
        return { ttl_ms.value_or(before.ttl_ms), expire_ms.value_or(before.expire_ms) };
    }
};

enum class standing : uint8_t { lapsed, ordinary, kept };

// age_ms: since the last use. A clock that was set back makes it negative: that counts as just used.
standing standing_of(const lifetime & life, int64_t age_ms);

// The shorter one counts, of what the conversation and the store say; 0: never.
int64_t expire_of(const lifetime & life, int64_t store_expire_ms);
bool    is_expired(const lifetime & life, int64_t store_expire_ms, int64_t age_ms);

// A machine without a battery for its clock begins in 1970. Nothing is judged by such a clock.
bool is_clock_set(int64_t now_ms);

// Whether to believe a clock that is behind what has been recorded. One whose battery went flat begins with any date, until the
// network tells it the time, which takes it minutes; one that was ahead, and was put right, stays. So it is believed when it has gone
// on for an hour: by what it says at each look, of which a leap counts little, and one backwards begins anew.
class clock_watch {
public:
    void look(int64_t now_ms);
    bool is_believed() const { return went_on_ms >= believed_after_ms; }

    // What to record as the time of a use now: what has been recorded cannot be had back once it is written over.
    int64_t use_at(int64_t now_ms, int64_t recorded_ms) const {
        return is_believed() ? now_ms : std::max(now_ms, recorded_ms);
    }

private:
    static constexpr int64_t believed_after_ms = 60 * 60 * 1000;
    static constexpr int64_t max_step_ms       = 10 * 60 * 1000; // A sweep comes every five minutes.

    int64_t looked_ms  = 0; // 0: never
    int64_t went_on_ms = 0;
};

// These read and write what people do: "5m", "1h", "24h", "forever", "none" for a ttl; "90s", "30m", "12h", "7d" or "none" for
// expire. Nothing for any other text.
std::optional<int64_t> parse_ttl(const std::string & text);
std::optional<int64_t> parse_expire(const std::string & text);
std::string            duration_text(int64_t ms);

} // namespace kvtier

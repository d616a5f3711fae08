// How long a conversation is kept, as its client or its owner asked: pure functions.
//
// Two things count from its last use. For its ttl a conversation is protected from eviction; when that has passed, it is the
// first to go, but nothing goes for that alone. Unused for as long as `expire` says, it is removed, whether room is
// needed or not.
#pragma once

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

// These read and write what people do: "5m", "1h", "24h", "forever", "none" for a ttl; "90s", "30m", "12h", "7d" or "none" for
// expire. Nothing for any other text.
std::optional<int64_t> parse_ttl(const std::string & text);
std::optional<int64_t> parse_expire(const std::string & text);
std::string            duration_text(int64_t ms);

} // namespace kvtier

#include "kvtier/lifetime.h"

#include <algorithm>
#include <array>
#include <utility>

namespace kvtier {

// No file of this store is older.
static constexpr int64_t earliest_ms = 1672531200000; // 2023-01-01

static constexpr int64_t second_ms = 1000;

static constexpr std::array<std::pair<char, int64_t>, 4> units = { {
    { 'd', 24 * 3600 * second_ms },
    { 'h', 3600 * second_ms },
    { 'm', 60 * second_ms },
    { 's', second_ms },
} };

standing standing_of(const lifetime & life, int64_t age_ms) {
    return life.ttl_ms == 0 ? standing::ordinary : age_ms < life.ttl_ms ? standing::kept : standing::lapsed;
}

int64_t expire_of(const lifetime & life, int64_t store_expire_ms) {
    if (life.expire_ms == 0 || store_expire_ms == 0) {
        return std::max(life.expire_ms, store_expire_ms);
    }
    return std::min(life.expire_ms, store_expire_ms);
}

bool is_expired(const lifetime & life, int64_t store_expire_ms, int64_t age_ms) {
    const int64_t expire_ms = expire_of(life, store_expire_ms);
    return expire_ms > 0 && age_ms >= expire_ms;
}

bool is_clock_set(int64_t now_ms) {
    return now_ms >= earliest_ms;
}

void clock_watch::look(int64_t now_ms) {
    if (looked_ms == 0 || now_ms < looked_ms) {
        went_on_ms = 0;
    } else {
        went_on_ms += std::min(now_ms - looked_ms, max_step_ms);
    }
    looked_ms = now_ms;
}

std::optional<int64_t> parse_ttl(const std::string & text) {
    static const std::array<std::pair<const char *, int64_t>, 5> known = { {
        { "none", 0 },
        { "5m", 300 * second_ms },
        { "1h", 3600 * second_ms },
        { "24h", 24 * 3600 * second_ms },
        { "forever", forever_ms },
    } };
    const auto found = std::find_if(known.begin(), known.end(), [&](const auto & one) { return text == one.first; });
    return found == known.end() ? std::nullopt : std::optional<int64_t>(found->second);
}

std::optional<int64_t> parse_expire(const std::string & text) {
    constexpr size_t max_digits = 6; // a million days are enough
    if (text == "none") {
        return 0;
    }
    const size_t n_digits = text.find_first_not_of("0123456789");
    if (n_digits == 0 || n_digits > max_digits || n_digits + 1 != text.size()) {
        return std::nullopt;
    }
    const int64_t count = std::stoll(text.substr(0, n_digits));
    for (const auto & [letter, ms] : units) {
        if (count > 0 && text.back() == letter) {
            return count * ms;
        }
    }
    return std::nullopt;
}

std::string duration_text(int64_t ms) {
    if (ms == 0 || ms == forever_ms) {
        return ms == 0 ? "none" : "forever";
    }
    if (ms == 24 * 3600 * second_ms) {
        return "24h"; // as it was asked for
    }
    for (const auto & [letter, unit_ms] : units) {
        if (ms % unit_ms == 0) {
            return std::to_string(ms / unit_ms) + letter;
        }
    }
    return std::to_string(ms / second_ms) + "s";
}

} // namespace kvtier

#include "kvtier/shared/eviction_lease.h"

namespace kvtier {

// It is renewed so often in a term.
static constexpr int renewals = 3;

std::string eviction_lease::next() {
    number++;
    written = "llama-run evictor 1\n" + owner + " " + std::to_string(number) + "\n";
    return written;
}

std::optional<std::string> eviction_lease::look(const std::string & found, clock::time_point now) {
    if (!seen_any || found != last_seen) {
        seen_any   = true;
        last_seen  = found;
        seen_since = now;
    }
    held = !found.empty() && found == written;
    const bool is_free = found.empty() || (!held && now - seen_since >= term);
    const bool is_due  = held && now - written_at >= term / renewals;
    if (!is_free && !is_due) {
        return std::nullopt;
    }
    written_at = now;
    return next();
}

} // namespace kvtier

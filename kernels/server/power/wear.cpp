// What the cache writes, and what it does not while a battery is low.
#include "server/cache/cache_core.h"

#include "kvtier/write_budget.h"

#include <algorithm>

namespace llama_run {

void cache_core::hold_writes(bool on) {
    if (on) {
        ahead.end(); // What nobody asked for is not worth the battery.
    }
    for (sequence_store * s : stores.all()) {
        s->queue().hold(on);
    }
    if (stores.shared != nullptr) {
        stores.shared->hold(on);
    }
}

common_json cache_core::written(const power_state & power) const {
    const kvtier::write_totals told = stores.target->store().options().writes->totals();
    common_json out = {
        { "today",         told.today },
        { "week",          told.week },
        { "ever",          told.ever },
        { "since_ms",      told.since_ms },
        { "budget",        told.budget },
        { "skipped",       told.skipped },
        { "skipped_bytes", told.skipped_bytes },
        { "beyond",        told.beyond },
    };
    const double days = static_cast<double>(kvtier::posix_env().now_ms() - told.since_ms) / (24.0 * 60 * 60 * 1000);
    power.add_wear(out, static_cast<double>(told.week) / std::clamp(days, 1.0, 7.0));
    return out;
}

} // namespace llama_run

// What the cache writes, and what it does not while a battery is low.
#include "server/cache/cache_core.h"

#include "kvtier/write_budget.h"

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

common_json cache_core::written() const {
    const kvtier::write_totals told = stores.target->store().options().writes->totals();
    return {
        { "today",         told.today },
        { "week",          told.week },
        { "ever",          told.ever },
        { "since_ms",      told.since_ms },
        { "budget",        told.budget },
        { "skipped",       told.skipped },
        { "skipped_bytes", told.skipped_bytes },
        { "beyond",        told.beyond },
    };
}

} // namespace llama_run

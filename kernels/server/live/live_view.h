// What happens now, for those who look: the slots, the line, finished requests as they come, and totals.
//
// It lives as long as the server and knows nothing of the cache, which comes and goes with the model: see state_cache.h for who
// calls what. Thread safety: all functions may be called from any thread.
#pragma once

#include "server/live/day_totals.h"
#include "server/live/event_hub.h"
#include "server/live/slot_watch.h"

#include "kvtier/thread_annotations.h"

#include "json.h"

#include <cstdint>
#include <memory>
#include <string>

namespace llama_run {

struct finished_request;

class live_view {
public:
    slot_watch slots;
    event_hub  events;

    // Tells who listens of a request that has ended.
    void finished(const finished_request & request);

    // The slots and the line; asked for by a user, what others do is not told.
    common_json describe(const std::string & user) const;

    // The same in numbers, of everybody.
    common_json load() const;

    // A stream of server-sent events for a user. Each call gives what has come since the last one, and waits a moment for it.
    // Empty: nothing came.
    class stream {
    public:
        stream(std::shared_ptr<live_view> of, std::shared_ptr<event_hub::listener> from, std::string user);

        std::string next();

    private:
        const std::shared_ptr<live_view>           of;
        const std::shared_ptr<event_hub::listener> from;
        const std::string                          user;
        uint64_t                                   n_seen = UINT64_MAX; // of slots.changes
        watch_clock::time_point                    last_sent;
    };

    // Null: too many listen.
    static std::shared_ptr<stream> listen(const std::shared_ptr<live_view> & of, const std::string & user);

private:
    std::string slots_text(const std::string & user, uint64_t n_changes);

    const int64_t           started_ms = kvtier::posix_env().now_ms();
    kvtier::mutex           mu;
    std::string             made_text GUARDED_BY(mu); // of the slots, for those who name no user
    uint64_t                made_of GUARDED_BY(mu) = UINT64_MAX; // changes
    watch_clock::time_point made_at GUARDED_BY(mu);
};

// today, days and ever, of totals.
common_json describe_saved(const day_totals::history & history, int64_t since_ms);

} // namespace llama_run

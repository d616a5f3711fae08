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
#include <map>
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

    // A stream of server-sent events for a user. The first call answers at once, each later one sleeps until the next beat and
    // gives what has come since the last one. Empty: nothing came.
    //
    // A beat is the same moment for all listeners. However fast the model is, each is woken four times a second, none of them by
    // the inference thread, and those of one user are sent the same text.
    class stream {
    public:
        stream(std::shared_ptr<live_view> of, std::shared_ptr<event_hub::listener> from, std::string user);

        std::string next();

    private:
        const std::shared_ptr<live_view>           of;
        const std::shared_ptr<event_hub::listener> from;
        const std::string                          user;
        uint64_t                                   n_seen    = 0; // of slots.changes
        watch_clock::time_point                    last_sent = watch_clock::time_point::min(); // never
    };

    // Null: too many listen.
    static std::shared_ptr<stream> listen(const std::shared_ptr<live_view> & of, const std::string & user);

private:
    // What the slots did, as an event.
    struct slots_event {
        std::string text;
        uint64_t    n_changes = 0; // of the slots, that it tells of
    };

    slots_event                        slots_now(const std::string & user) const;
    std::shared_ptr<const slots_event> slots_at(watch_clock::time_point beat, const std::string & user);

    const int64_t           started_ms = kvtier::posix_env().now_ms();
    kvtier::mutex           mu;
    watch_clock::time_point made_at GUARDED_BY(mu); // the beat of what follows
    std::map<std::string, std::shared_ptr<const slots_event>> made GUARDED_BY(mu); // by user
};

// today, days and ever, of totals.
common_json describe_saved(const day_totals::history & history, int64_t since_ms);

} // namespace llama_run

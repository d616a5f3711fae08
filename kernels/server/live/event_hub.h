// Hands what happens to those who listen to it (GET /cache/events).
//
// A listener has a queue of its own, of max_waiting events. One that is too slow for them loses the oldest and is told how many;
// nobody waits for it. An event's text is made once and shared, and not at all while nobody listens. Telling wakes nobody: with
// fifty pages open, fifty threads would take the processor from the model at the end of every request. Listeners look when
// their time has come (live_view::stream).
//
// Thread safety: all functions may be called from any thread. Memory is bounded by max_listeners and max_waiting.
#pragma once

#include "kvtier/thread_annotations.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace llama_run {

class event_hub {
public:
    static constexpr size_t max_listeners = 256;
    static constexpr size_t max_waiting   = 256; // events of one listener

    struct heard {
        std::deque<std::shared_ptr<const std::string>> events; // oldest first
        uint64_t                                       n_lost; // before them
    };

    class listener {
    public:
        explicit listener(std::string user) : user(std::move(user)) {}

        // Gives what has come since it was last called.
        heard take();

    private:
        friend class event_hub;

        void add(const std::shared_ptr<const std::string> & event);

        const std::string user;
        kvtier::mutex     mu;
        std::deque<std::shared_ptr<const std::string>> waiting GUARDED_BY(mu);
        uint64_t                                       n_lost GUARDED_BY(mu) = 0; // since it was last told
    };

    // Whoever has it hears what concerns the user, until it is let go. Null: there are too many.
    std::shared_ptr<listener> listen(const std::string & user);

    // make: gives the event's text. It is called only if somebody listens for this user.
    void tell(const std::string & user, const std::function<std::string()> & make);

private:
    kvtier::mutex                        mu;
    std::vector<std::weak_ptr<listener>> listeners GUARDED_BY(mu);
};

} // namespace llama_run

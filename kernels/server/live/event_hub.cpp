#include "server/live/event_hub.h"

#include <algorithm>
#include <utility>

namespace llama_run {

event_hub::heard event_hub::listener::take() {
    kvtier::mutex_lock guard(mu);
    return { std::exchange(waiting, {}), std::exchange(n_lost, 0) };
}

void event_hub::listener::add(const std::shared_ptr<const std::string> & event) {
    kvtier::mutex_lock guard(mu);
    if (waiting.size() == max_waiting) {
        waiting.pop_front();
        n_lost++;
    }
    waiting.push_back(event);
}

std::shared_ptr<event_hub::listener> event_hub::listen(const std::string & user) {
    kvtier::mutex_lock guard(mu);
    listeners.erase(std::remove_if(listeners.begin(), listeners.end(), [](const auto & l) { return l.expired(); }),
                    listeners.end());
    if (listeners.size() >= max_listeners) {
        return nullptr;
    }
    const auto made = std::make_shared<listener>(user);
    listeners.push_back(made);
    return made;
}

void event_hub::tell(const std::string & user, const std::function<std::string()> & make) {
    std::vector<std::shared_ptr<listener>> concerned;
    {
        kvtier::mutex_lock guard(mu);
        for (const std::weak_ptr<listener> & one : listeners) {
            if (const auto l = one.lock(); l && l->user == user) {
                concerned.push_back(l);
            }
        }
    }
    if (concerned.empty()) {
        return;
    }
    const auto event = std::make_shared<const std::string>(make());
    for (const auto & l : concerned) {
        l->add(event);
    }
}

} // namespace llama_run

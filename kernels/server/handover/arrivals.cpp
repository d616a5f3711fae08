#include "server/handover/arrivals.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace llama_run {

void arrivals::drop_silent(clock::time_point now) {
    for (auto it = known.begin(); it != known.end();) {
        const bool is_silent = !it->second.is_busy && now - it->second.last_heard > patience;
        it = is_silent ? known.erase(it) : std::next(it);
    }
}

void arrivals::forget_silent(clock::time_point now) {
    kvtier::mutex_lock guard(mu);
    drop_silent(now);
}

std::unique_ptr<arrivals::work> arrivals::begin(const kvtier::conversation_id & id, clock::time_point now) {
    kvtier::mutex_lock guard(mu);
    drop_silent(now);
    if (const auto before = known.find(id); before != known.end() && !before->second.is_busy) {
        known.erase(before);
    }
    const auto n_coming = std::count_if(known.begin(), known.end(), [](const auto & one) {
        return one.second.is_busy || one.second.intake != nullptr; // What is left of a removed one takes no place.
    });
    if (n_coming >= max_at_once || known.count(id) != 0) {
        return nullptr;
    }
    arrival & made  = known[id];
    made.last_heard = now;
    return std::make_unique<work>(*this, id, nullptr, made.is_removed);
}

std::unique_ptr<arrivals::work> arrivals::go_on(const kvtier::conversation_id & id) {
    kvtier::mutex_lock guard(mu);
    const auto         found = known.find(id);
    if (found == known.end() || found->second.is_busy) {
        return nullptr;
    }
    found->second.is_busy = true;
    return std::make_unique<work>(*this, id, std::move(found->second.intake), found->second.is_removed);
}

bool arrivals::is_worked_on(const kvtier::conversation_id & id) {
    kvtier::mutex_lock guard(mu);
    const auto         found = known.find(id);
    return found != known.end() && found->second.is_busy;
}

void arrivals::put_back(work & done) {
    kvtier::mutex_lock guard(mu);
    if (done.intake == nullptr && !*done.is_removed) {
        known.erase(done.id);
    } else {
        arrival & it  = known[done.id];
        it.is_busy    = false;
        it.last_heard = clock::now();
        it.intake     = *it.is_removed ? nullptr : std::move(done.intake);
    }
    changed.notify_all();
}

// A request that works on one ends with the part that it is storing. What is left of it tells the sender.
void arrivals::remove(const std::function<bool(const kvtier::conversation_id & id)> & concerns) {
    kvtier::mutex_lock guard(mu);
    for (auto & [id, it] : known) {
        if (concerns(id)) {
            *it.is_removed = true;
            it.intake.reset();
        }
    }
    const auto is_stored = [&](const std::map<kvtier::conversation_id, arrival> & all) {
        for (const auto & [id, it] : all) {
            if (it.is_busy && *it.is_removed) {
                return true;
            }
        }
        return false;
    };
    while (is_stored(known)) {
        changed.wait(guard);
    }
}

} // namespace llama_run

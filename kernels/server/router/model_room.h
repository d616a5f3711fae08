// Models make room for each other by the memory they take. Upstream's router goes by a count, models_max; these two hooks set it
// anew before each of its decisions. Without --models-memory they do nothing.
//
// A model that is asked for waits in the router's queue, and idle ones are stopped for it, the least recently used first. Whenever
// one has ended, the router looks again: so several end one after the other for a large one, and no more than it needs.
//
// What sleeps counts as what is awake, since it wakes up without asking.
#pragma once

#include "server/cache_args.h"
#include "server/router/models_at_once.h"
#include "server/router/models_memory.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace llama_run {

// What this thread loads outside the queue, or at its head; and what the last look said of it.
struct load_under_way {
    const std::string * name      = nullptr;
    bool                has_room  = true;
    size_t              n_running = 0;
};
inline thread_local load_under_way this_load;

template <typename Preset>
uint64_t need_of(const Preset & preset) {
    std::string text;
    try {
        return preset.get_option("LLAMA_ARG_MODEL_NEED", text) ? parse_size(text) : unknown_need;
    } catch (const std::exception &) {
        return unknown_need; // the model's own server says what is wrong with it
    }
}

// Called with the router's mutex held, whenever its scheduler is about to look at models_max. What this thread loads comes before
// those that wait. Only unload_lru looks without the mutex, and merely for whether there is a limit.
template <typename Models, typename Queue>
void make_room(int & models_max, const Models & models, const Queue & queue) {
    if (models_memory() == 0) {
        return;
    }
    static const int      most = models_max; // as --models-max says: this is the first look
    std::vector<uint64_t> running;
    std::vector<uint64_t> wanted;
    for (const auto & [name, model] : models) {
        if (model.meta.is_running()) {
            running.push_back(need_of(model.meta.preset));
        }
    }
    const auto want = [&](const std::string & name) {
        const auto model = models.find(name);
        if (model != models.end() && !model->second.meta.is_running()) {
            wanted.push_back(need_of(model->second.meta.preset));
        }
    };
    if (this_load.name) {
        want(*this_load.name);
        if (const auto mine = models.find(*this_load.name); mine != models.end() && mine->second.meta.is_running()) {
            this_load.has_room = true; // Another thread has loaded it: nothing is stopped for it.
            models_max         = static_cast<int>(running.size()) + 1;
            return;
        }
    }
    for (const auto & entry : queue) {
        if (!this_load.name || entry.model_id != *this_load.name) {
            want(entry.model_id);
        }
    }
    // Where nothing is wanted the number stands: another thread may be about to load what it was made for.
    const int at_once   = models_at_once(models_memory(), running, wanted, most);
    models_max          = wanted.empty() ? std::max(models_max, at_once) : at_once;
    this_load.has_room  = running.size() < static_cast<size_t>(models_max);
    this_load.n_running = running.size();
    if (this_load.name && !this_load.has_room) {
        models_max = 1; // when unload_lru has stopped one, upstream counts again: what is left may still be too much
    }
}

// Says, while it lives, which model its thread loads. Upstream stops one model for another; a large one may need several gone.
class room_for {
public:
    // `stop_one` stops the least recently used model if there is no room, and waits until it has ended; it stops none where all are busy.
    template <typename StopOne>
    room_for(const std::string & name, StopOne stop_one) : room_for(name) {
        if (models_memory() == 0) {
            return;
        }
        size_t before = 0;
        do {
            before = this_load.n_running;
            stop_one();
        } while (!this_load.has_room && this_load.n_running < before);
    }
    ~room_for() { this_load = {}; }

    room_for(const room_for &)             = delete;
    room_for & operator=(const room_for &) = delete;

private:
    explicit room_for(const std::string & name) { this_load = { &name, true, SIZE_MAX }; }
};

} // namespace llama_run

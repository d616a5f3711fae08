// Until when tasks may wait for a slot: --queue-timeout. Asked where HTTP workers wait for results, which knows tasks by their
// ids.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "kvtier/thread_annotations.h"

#include <chrono>
#include <map>

namespace llama_run {

class queue_deadlines {
public:
    using clock = std::chrono::steady_clock;

    void set(int id_task, clock::time_point until) {
        kvtier::mutex_lock guard(mu);
        deadlines[id_task] = until;
    }

    void forget(int id_task) {
        kvtier::mutex_lock guard(mu);
        deadlines.erase(id_task);
    }

    // Whether one of them waits longer than it may.
    template <typename Ids>
    bool are_overdue(const Ids & tasks) const {
        kvtier::mutex_lock guard(mu);
        for (const int id : tasks) {
            const auto known = deadlines.find(id);
            if (known != deadlines.end() && known->second < clock::now()) {
                return true;
            }
        }
        return false;
    }

private:
    mutable kvtier::mutex            mu;
    std::map<int, clock::time_point> deadlines GUARDED_BY(mu);
};

// Of the server that this process is.
inline queue_deadlines waiting_deadlines;

} // namespace llama_run

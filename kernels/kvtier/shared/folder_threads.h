// Threads for calls that may never return. Nobody joins them.
//
// A job owns everything that it touches, through shared pointers: when its caller has given it up, it may still be in its call, and
// goes on when that returns. What was not begun when the threads are stopped is not done any more.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "kvtier/thread_annotations.h"

#include <chrono>
#include <deque>
#include <functional>
#include <memory>

namespace kvtier {

class folder_threads {
public:
    explicit folder_threads(size_t n);

    // Tells them to end, and waits this long for those that are not in a call that hangs.
    ~folder_threads();

    folder_threads(const folder_threads &) = delete;
    folder_threads & operator=(const folder_threads &) = delete;

    // urgent: before what waits already. False: there is no thread, and it will never be done.
    bool run(std::function<void()> job, bool urgent);

private:
    struct state {
        mutex                             mu;
        condition                         changed;
        std::deque<std::function<void()>> jobs GUARDED_BY(mu);
        size_t                            n_threads GUARDED_BY(mu) = 0;
        bool                              stopping GUARDED_BY(mu)  = false;
    };

    static void work(state & own);

    const std::shared_ptr<state> shared;
};

} // namespace kvtier

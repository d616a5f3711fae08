// A thread that sleeps, and now and then looks for what has expired.
//
// Thread safety: the destructor waits for a sweep that is under way.
#pragma once

#include "kvtier/thread_annotations.h"

#include <chrono>
#include <functional>
#include <thread>

namespace llama_run {

class sweeper {
public:
    sweeper(std::function<void()> sweep, std::chrono::seconds every);
    ~sweeper();

private:
    void run();

    const std::function<void()> sweep;
    const std::chrono::seconds  every;

    kvtier::mutex     mu;
    kvtier::condition changed;
    bool              stopping GUARDED_BY(mu) = false;
    std::thread       thread;
};

} // namespace llama_run

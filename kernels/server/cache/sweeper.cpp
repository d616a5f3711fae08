#include "server/cache/sweeper.h"

#include <utility>

namespace llama_run {

sweeper::sweeper(std::function<void()> sweep, std::chrono::seconds every) : sweep(std::move(sweep)), every(every) {
    thread = std::thread([this] { run(); });
}

sweeper::~sweeper() {
    {
        kvtier::mutex_lock guard(mu);
        stopping = true;
        changed.notify_all();
    }
    thread.join();
}

void sweeper::run() {
    kvtier::mutex_lock guard(mu);
    for (;;) {
        // The steady clock: one that is set neither hastens nor holds up a sweep.
        const auto due = std::chrono::steady_clock::now() + every;
        while (!stopping && changed.wait_until(guard, due)) {
        }
        if (stopping) {
            return;
        }
        guard.unlock();
        sweep();
        guard.lock();
    }
}

} // namespace llama_run

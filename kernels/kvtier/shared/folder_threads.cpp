#include "kvtier/shared/folder_threads.h"

#include <system_error>
#include <thread>
#include <utility>

namespace kvtier {

static constexpr auto longest_farewell = std::chrono::milliseconds(500);

folder_threads::folder_threads(size_t n) : shared(std::make_shared<state>()) {
    for (size_t i = 0; i < n; i++) {
        try {
            mutex_lock guard(shared->mu);
            std::thread([own = shared] { work(*own); }).detach();
            shared->n_threads++;
        } catch (const std::system_error &) {
            return; // There are no more to be had: those that are there do it.
        }
    }
}

folder_threads::~folder_threads() {
    const auto until = std::chrono::steady_clock::now() + longest_farewell;
    mutex_lock guard(shared->mu);
    shared->stopping = true;
    shared->jobs.clear();
    shared->changed.notify_all();
    while (shared->n_threads > 0 && shared->changed.wait_until(guard, until)) {
    }
}

bool folder_threads::run(std::function<void()> job, bool urgent) {
    mutex_lock guard(shared->mu);
    if (shared->n_threads == 0) {
        return false;
    }
    if (urgent) {
        shared->jobs.push_front(std::move(job));
    } else {
        shared->jobs.push_back(std::move(job));
    }
    shared->changed.notify_all();
    return true;
}

void folder_threads::work(state & own) {
    mutex_lock guard(own.mu);
    while (!own.stopping) {
        if (own.jobs.empty()) {
            own.changed.wait(guard);
            continue;
        }
        std::function<void()> job = std::move(own.jobs.front());
        own.jobs.pop_front();
        guard.unlock();
        job();
        job = nullptr; // What it owns goes here, not under the lock.
        guard.lock();
    }
    own.n_threads--;
    own.changed.notify_all();
}

} // namespace kvtier

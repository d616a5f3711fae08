#include "server/stopping.h"

#include "server/lost_worker.h"
#include "server/state_cache.h"

#include "log.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include <semaphore.h>

namespace llama_run {

static sem_t            signals;
static std::atomic<int> last_signal{ 0 };

void listen_for_signals(const std::function<void(int)> & stop) {
    sem_init(&signals, 0, 0);
    std::thread([stop] {
        while (sem_wait(&signals) != 0) {
            // A signal that this thread got itself has interrupted it.
        }
        stop(last_signal);
    }).detach();
}

void say_signal(int signal) {
    last_signal = signal;
    sem_post(&signals);
}

server_task_result_ptr stopping_error(int id_task) {
    auto error = std::make_unique<server_task_result_error>();
    error->id       = id_task;
    error->err_type = ERROR_TYPE_UNAVAILABLE;
    error->err_msg  = lost_worker_message();
    if (error->err_msg.empty()) {
        error->err_msg = stopping_message;
    }
    return error;
}

void leave_within_seconds(int seconds) {
    std::thread([seconds] {
        std::this_thread::sleep_for(std::chrono::seconds(seconds));
        LOG_WRN("a client did not take its answer for %d seconds: leaving without it\n", seconds);
        common_log_flush(common_log_main());
        std::_Exit(0);
    }).detach();
}

} // namespace llama_run

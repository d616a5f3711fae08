#include "server/stopping.h"

#include "server/state_cache.h"

#include "log.h"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

namespace llama_run {

server_task_result_ptr stopping_error(int id_task) {
    auto error = std::make_unique<server_task_result_error>();
    error->id       = id_task;
    error->err_type = ERROR_TYPE_UNAVAILABLE;
    error->err_msg  = stopping_message;
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

#include "server/plan/late_error.h"

namespace llama_run {

struct late_result : server_task_result_error {
    common_json to_json() override {
        return {
            { "code",    504 },
            { "message", "no slot became free for this request within --queue-timeout: the queue is too long. Nothing of it was "
                         "evaluated; send it again, unchanged, later" },
            { "type",    "timeout_error" },
        };
    }
};

server_task_result_ptr make_late_error(int id_task) {
    auto error = std::make_unique<late_result>();
    error->id = id_task;
    return error;
}

} // namespace llama_run

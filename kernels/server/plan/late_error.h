// What a request is told that has waited for a slot as long as --queue-timeout allows: 504.
#pragma once

#include "server/plan/queue_deadlines.h"

#include "server-task.h"

namespace llama_run {

server_task_result_ptr make_late_error(int id_task);

// Null: none of them is late.
template <typename Ids>
server_task_result_ptr late_error(const Ids & tasks) {
    return waiting_deadlines.are_overdue(tasks) ? make_late_error(*tasks.begin()) : nullptr;
}

} // namespace llama_run

// What remains to be done when the server was told to stop and its last batch is done: those who wait are told, and nobody who
// does not listen keeps the process.
#pragma once

#include "server/plan/late_error.h"

#include "server-task.h"

#include <functional>

namespace llama_run {

// A signal's handler interrupts a thread that may hold the very lock that stopping takes. So it only says that there was a signal,
// and a thread of its own, which listen_for_signals starts, calls `stop`.
void listen_for_signals(const std::function<void(int)> & stop);
void say_signal(int signal);

// For a request whose result will never come: 503.
server_task_result_ptr stopping_error(int id_task);

// Ends the process if it has not ended by itself by then. Everything must be on disk: upstream waits for every connection, also
// for one whose client has stopped reading.
void leave_within_seconds(int seconds);

} // namespace llama_run

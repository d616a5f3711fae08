// What happens when a worker that holds a part of the model is lost: it died, or its machine did, or the network.
//
// llama.cpp's client of workers aborts the process then, on a thread of its own, and everybody else waits for an answer that will
// not come. There is no going on with half a model. So clients that wait are told, what was taken out of the context is
// written, and the process ends with a code that tells the launcher to wait for the worker and to start again.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <functional>
#include <string>

namespace llama_run {

inline constexpr int lost_worker_code = 75; // the process ends with it; "try again later" among the codes of sysexits.h

// From now on. It does nothing in a process without workers. tell: ends the requests that wait; save: writes what is there to be
// written, and may take long.
void watch_workers(std::function<void()> tell, std::function<void()> save);

// Nothing is told or saved any more, because who would do it is going.
void forget_workers();

// What clients are told; empty while no worker is lost.
std::string lost_worker_message();

} // namespace llama_run

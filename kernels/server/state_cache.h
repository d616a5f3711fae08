// The SSD cache as llama-server sees it: the functions that the patches call, in the order of a request.
//
//   arrive    HTTP worker    looks the prompt up, reads its files
//   ready     inference      looks again; false: files are still being read, try again when told
//   restore   inference      puts what was read into the slot, before upstream looks at what the slot holds
//   anchor    inference      copies the state that only holds at this length
//   evaluated inference      hands the prompt's pages to the writer
//   released  inference      hands over the rest of the turn
//
// Without --cache-ssd, or when the folder cannot be opened, every function returns at once and the server is upstream's.
//
// Thread safety: arrive and everything that reports or removes may be called from any thread, the rest from the inference
// thread. open and close belong to the thread that loads the model. No exception but for lack of memory.
#pragma once

#include "server/cache_report.h"

#include "common.h"
#include "server-task.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace llama_run {

class cache_core;

// What the hooks may know of a slot. server_slot itself is private to server-context.cpp.
struct slot_view {
    int                                           id;
    const server_prompt &                         prompt;
    const server_slot_stats &                     stats;
    const std::vector<common_adapter_lora_info> & lora;
    int32_t                                       alora_start; // below 0: none
    const server_task *                           task;        // null: idle
    int32_t                                       n_ctx;
    bool                                          shifted;     // tokens have been moved by a context shift
};

class state_cache {
public:
    // Turns upstream's prompt cache off when it succeeds. retry: have waiting requests offered again, from any thread.
    void open(common_params & params, llama_context * target, llama_context * draft, std::function<void()> retry);

    // Everything is on disk afterwards.
    void close();

    void arrive(server_task & task) const;
    bool ready(const slot_view & slot, server_task & task) const;

    // make_room: frees cells of idle slots; false when there are none.
    cache_report restore(const slot_view & slot, server_prompt & prompt, const server_task & task,
                         const std::function<bool()> & make_room) const;

    void anchor(const slot_view & slot, int64_t n_tokens) const;
    void evaluated(const slot_view & slot) const;
    void released(const slot_view & slot) const;

    common_json describe() const;
    common_json conversations() const;
    std::string metrics() const;

    void flush() const;
    bool remove_conversation(uint64_t hash, uint64_t & bytes_freed) const; // false: there is none

private:
    std::shared_ptr<cache_core> core() const;

    mutable std::mutex          mu;
    std::shared_ptr<cache_core> open_;
    std::string                 why_off = "not asked for: start the server with --cache-ssd PATH";
};

} // namespace llama_run

// Prepares prompts before they are asked: evaluates them in idle time and keeps their state where any continuation can use it.
//
// One after the other, in the order in which they were asked for, and never before a real request: a warm waits until nobody is
// served, and when somebody comes it is cancelled, which keeps what it has, and goes on when the server is idle again.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "server/plan/prompt_probe.h"

#include "kvtier/thread_annotations.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <thread>

namespace llama_run {

class state_cache;

struct warm_result {
    size_t   n_tokens    = 0; // that any continuation shares
    size_t   n_evaluated = 0; // of them
    size_t   n_restored  = 0; // the others: they were there
    bool     on_disk     = false;
    uint64_t bytes       = 0; // of their state
    double   ms          = 0; // of work
    uint32_t n_interrupted = 0; // times that real requests came first

    common_json describe() const;
};

class warmer {
public:
    warmer(const server_http_context & http, state_cache & cache) : http(http), probe(http), cache(cache) {}
    ~warmer() { stop(); }

    // Throws handler_refusal for what upstream refuses, std::invalid_argument for a body without a prompt. client_left: whether
    // whoever asked has gone, and need not be answered.
    warm_result warm(const std::string & route, const http_headers & headers, const common_json & body,
                     const std::function<bool()> & client_left);

    // Prepares the body in each line of the file, once the server is ready. What fails is logged.
    void start_from(const std::string & file);

    // A real request has come.
    void give_way();

    // So many tokens of a task are evaluated.
    void evaluated(int id_task, size_t n_tokens) {
        if (id_task == running) {
            n_evaluated = n_tokens;
        }
    }

    // All of a task is evaluated, or was restored.
    void finished(int id_task, uint64_t restored, uint64_t evaluated) {
        if (id_task == running) {
            n_restored  = restored;
            n_evaluated = evaluated;
        }
    }

    // Ends what waits or runs, and the thread of start_from.
    void stop();

    common_json describe() const;

private:
    size_t      shared_tokens(const std::string & route, const http_headers & headers, const common_json & body) const;
    warm_result prepare(const std::string & route, const http_headers & headers, const common_json & body,
                        const std::function<bool()> & client_left);
    void        run_file(const std::string & file);

    const server_http_context & http;
    const prompt_probe          probe;
    state_cache &               cache;

    kvtier::mutex     mu;
    kvtier::condition changed;
    uint64_t          n_came GUARDED_BY(mu) = 0; // they are served in this order
    uint64_t          n_gone GUARDED_BY(mu) = 0;
    std::set<uint64_t> gave_up GUARDED_BY(mu);   // whose turn has not come yet

    std::atomic<bool>     stopping{ false };
    std::atomic<int>      running{ -1 };      // task
    std::atomic<bool>     interrupted{ false };
    std::atomic<size_t>   n_wanted{ 0 };      // tokens of the one that is prepared
    std::atomic<size_t>   n_evaluated{ 0 };
    std::atomic<size_t>   n_restored{ 0 };
    std::atomic<uint64_t> n_queued{ 0 };
    std::atomic<uint64_t> n_done{ 0 };
    std::atomic<uint64_t> n_failed{ 0 };
    std::thread           starter;
};

} // namespace llama_run

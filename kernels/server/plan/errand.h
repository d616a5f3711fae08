// What the request that a thread is handling is for, where it is not simply to be answered.
//
// Planning and warming go through upstream's own handlers, so that a prompt is rendered and tokenised exactly as it will be
// when it is asked: the handler runs until the task is complete (state_cache::arrive), and there it is looked at, or cut,
// instead.
//
// A refusal takes the same way back. Handlers turn every exception into 400; whoever refuses a request from within one says
// here what the client is to be told, throws, and the answer is replaced where it leaves (error_shape.h).
#pragma once

#include "server/plan/request_planner.h"

#include "kvtier/keys.h"

#include "json.h"
#include "server-http.h"
#include "server-task.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace llama_run {

struct errand {
    enum class kind : uint8_t { look, warm };

    kind   what   = kind::look;
    size_t n_keep = 0; // only the first tokens of the prompt count; 0: all of them

    // What arrive has seen.
    bool                       done    = false;
    int                        id_task = -1;
    std::vector<kvtier::token> tokens;
    foreseen                   found;          // look: what would be reused of them
    int32_t                    n_predict = -1; // -1: no limit
    size_t                     n_answers = 1;

    std::function<void(int id_task)> posting; // warm: the task is about to be posted

    // Of this thread; null: its request is to be answered.
    static errand * current();
};

// Makes it the thread's for as long as this lives.
class errand_scope {
public:
    explicit errand_scope(errand & own);
    ~errand_scope();

    errand_scope(const errand_scope &) = delete;
    errand_scope & operator=(const errand_scope &) = delete;

private:
    errand * const before;
};

// Looks a prompt up; all: to its last token, which a request always evaluates.
using look_up = std::function<foreseen(const server_task & task, bool all)>;

// Notes what the task would be and throws (look), or makes it one that evaluates the first tokens and answers nothing (warm).
void run_errand(errand & own, server_task & task, const look_up & find);

struct told_instead {
    int                                status = 200;
    common_json                        body;
    std::map<std::string, std::string> headers;
};

// The client gets this, whatever the handler answers to the exception that this throws.
[[noreturn]] void tell_instead(told_instead what);

// Replaces an answer if there is something to be told instead, and forgets it.
void replace_answer(server_http_res & response);

} // namespace llama_run

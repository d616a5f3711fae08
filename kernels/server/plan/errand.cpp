#include "server/plan/errand.h"

#include "server/cache/prompt_tokens.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace llama_run {

static thread_local errand *                    own_errand = nullptr;
static thread_local std::optional<told_instead> to_tell;

errand * errand::current() {
    return own_errand;
}

errand_scope::errand_scope(errand & own) : before(own_errand) {
    own_errand = &own;
}

errand_scope::~errand_scope() {
    own_errand = before;
}

// A user's message that begins within the last tokens is not there: the prompt is cut where its text would begin. All that is
// left then is what any of them follows.
static void end_spans_at(common_chat_msg_spans & spans, size_t n_tokens) {
    auto & all = spans.spans;
    all.erase(std::remove_if(all.begin(), all.end(), [&](const common_chat_msg_span & s) { return s.pos >= n_tokens; }), all.end());
    if (!all.empty() && all.back().pos + all.back().len > n_tokens && all.back().role == COMMON_CHAT_ROLE_USER) {
        all.back().pos = n_tokens;
        all.back().len = 0;
    }
}

void run_errand(errand & own, server_task & task, const look_up & find) {
    own.id_task   = task.id;
    own.n_predict = task.params.n_predict;
    own.n_answers = 1 + task.child_tasks.size();
    if (own.n_keep > 0 && own.n_keep < task.tokens.size()) {
        task.tokens.keep_first(own.n_keep);
    }
    if (own.what == errand::kind::look) {
        own.tokens = tokens_of(task.tokens);
        own.found  = find(task, own.n_keep > 0);
        own.done   = true;
        throw std::runtime_error("the prompt is known"); // Nobody is told: whoever runs the errand takes what it noted.
    }
    task.child_tasks.clear();
    task.params.n_cmpl       = 1;
    task.params.n_predict    = 0;
    task.params.cache_prompt = true;
    end_spans_at(task.params.message_spans, task.tokens.size());
    own.done = true;
    if (own.posting) {
        own.posting(task.id);
    }
}

void tell_instead(told_instead what) {
    to_tell = std::move(what);
    throw std::runtime_error("the client is told something else");
}

void replace_answer(server_http_res & response) {
    if (!to_tell) {
        return;
    }
    response.status       = to_tell->status;
    response.content_type = "application/json; charset=utf-8";
    response.data         = to_tell->body.dump_safe();
    for (const auto & [name, value] : to_tell->headers) {
        response.headers[name] = value;
    }
    to_tell.reset();
}

} // namespace llama_run

#include "server/overflow/ahead_warmer.h"

#include "server/overflow/context_overflow.h"

#include "kvtier/file_names.h"

#include "log.h"
#include "server-schema.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace llama_run {

static constexpr size_t max_jobs = 8; // conversations; the oldest are given up

// So long a step may take. It ends sooner, unless its task was refused, which nobody tells us.
static constexpr std::chrono::seconds max_step_time{ 120 };

void ahead_warmer::open(const common_params & server_params, const llama_context * context, server_queue & tasks,
                        keeper kept_by) {
    params = &server_params;
    target = context;
    queue  = &tasks;
    cache  = std::move(kept_by);
    {
        kvtier::mutex_lock guard(shared->mu);
        shared->stopping = false;
    }
    thread = std::thread([this] { run(); });
}

void ahead_warmer::close() {
    {
        kvtier::mutex_lock guard(shared->mu);
        shared->stopping = true;
        shared->jobs.clear();
        shared->changed.notify_all();
    }
    if (thread.joinable()) {
        thread.join();
    }
}

bool ahead_warmer::job::is_of(const std::string & whose, uint64_t conversation_hash) const {
    return user == whose && (conversation_hash == 0 || kvtier::conversation_of_key(conversation.key) == conversation_hash);
}

bool ahead_warmer::is_on() const {
    kvtier::mutex_lock guard(shared->mu);
    return !shared->stopping;
}

void ahead_warmer::plan(job && next) {
    kvtier::mutex_lock guard(shared->mu);
    if (shared->stopping || shared->paused) {
        return;
    }
    std::deque<job> & jobs = shared->jobs;
    jobs.erase(std::remove_if(jobs.begin(), jobs.end(), [&](const job & j) { return j.is_like(next); }), jobs.end());
    next.awake = queue->awake.hold();
    jobs.push_back(std::move(next));
    if (jobs.size() > max_jobs) {
        jobs.pop_front();
    }
}

void ahead_warmer::pause(bool on) {
    kvtier::mutex_lock guard(shared->mu);
    shared->paused = on;
    if (on) {
        shared->jobs.clear();
    }
}

void ahead_warmer::forget(const std::string & user, uint64_t hash) {
    forget_where([&](const job & j) { return j.is_of(user, hash); });
}

void ahead_warmer::forget(const kvtier::conversation_id & id) {
    forget_where([&](const job & j) { return kvtier::user_key(j.user) == id.first && j.is_of(j.user, id.second); });
}

void ahead_warmer::forget_all() {
    forget_where([](const job &) { return true; });
}

void ahead_warmer::forget_where(const std::function<bool(const job &)> & concerns) {
    kvtier::mutex_lock guard(shared->mu);
    std::deque<job> & jobs = shared->jobs;
    jobs.erase(std::remove_if(jobs.begin(), jobs.end(), concerns), jobs.end());
    shared->forgotten = shared->forgotten || (shared->worked_on != nullptr && concerns(*shared->worked_on));
}

std::shared_ptr<void> ahead_warmer::enter() {
    kvtier::mutex_lock guard(shared->mu);
    shared->n_requests++;
    return std::shared_ptr<void>(shared.get(), [all = shared](void *) {
        kvtier::mutex_lock leaving(all->mu);
        if (--all->n_requests == 0) {
            all->changed.notify_all();
        }
    });
}

void ahead_warmer::released(int id_task, uint64_t n_tokens) {
    kvtier::mutex_lock guard(shared->mu);
    if (shared->running == id_task) {
        n_evaluated += n_tokens;
        shared->running = -1;
        shared->changed.notify_all();
    }
}

void ahead_warmer::run() {
    context_overflow::never_on_this_thread(); // What is rendered here was cut before.
    for (;;) {
        job next;
        {
            kvtier::mutex_lock guard(shared->mu);
            while (!shared->stopping && (shared->jobs.empty() || shared->n_requests > 0)) {
                shared->changed.wait(guard);
            }
            if (shared->stopping) {
                return;
            }
            next = std::move(shared->jobs.front());
            shared->jobs.pop_front();
            shared->worked_on = &next;
            shared->forgotten = false;
        }
        outcome result = outcome::stopped;
        try {
            result = work(next);
        } catch (const std::exception & error) {
            LOG_WRN("context: the next cut is not evaluated ahead: %s\n", error.what());
        }
        kvtier::mutex_lock guard(shared->mu);
        shared->worked_on = nullptr;
        // The rest is done when all is quiet again, unless the conversation has gone on meanwhile.
        const bool renewed = std::any_of(shared->jobs.begin(), shared->jobs.end(), [&](const job & j) { return j.is_like(next); });
        if (result == outcome::disturbed && !renewed && !shared->stopping && !shared->paused && !shared->forgotten) {
            shared->jobs.push_front(std::move(next));
        }
    }
}

ahead_warmer::outcome ahead_warmer::work(const job & j) {
    common_json             body = j.body;
    std::vector<raw_buffer> files;
    const common_json data = oaicompat_chat_params_parse(body, *j.chat, files);
    if (!files.empty()) {
        return outcome::stopped; // The cache keeps no pictures.
    }
    const llama_vocab * vocab      = llama_model_get_vocab(llama_get_model(target));
    const llama_tokens  tokens     = common_tokenize(vocab, data.at("prompt").get<std::string>(), true, true);
    auto                delimiters = common_chat_msg_delimiters_parse(data.at("message_delimiters"));
    delimiters.tokenize(vocab);

    const size_t step = static_cast<size_t>(std::max(params->n_ubatch, 1));
    size_t       n    = cache.stored(make_task(j, tokens, tokens.size(), delimiters), j.user);
    while (n + 1 < tokens.size()) { // A prompt's last token is evaluated in any case.
        n = std::min(n + step, tokens.size());
        server_task task = make_task(j, tokens, n, delimiters);
        cache.arrive(task, j, n == tokens.size());
        if (const outcome result = evaluate(std::move(task)); result != outcome::done) {
            return result;
        }
    }
    return outcome::done;
}

server_task ahead_warmer::make_task(const job & j, const llama_tokens & tokens, size_t n,
                                    const common_chat_msg_delimiters & delimiters) const {
    common_json settings = { { "n_predict", 0 }, { "cache_prompt", true } };
    if (j.body.contains("lora")) {
        settings["lora"] = j.body.at("lora");
    }
    server_task task(SERVER_TASK_TYPE_COMPLETION);
    task.id     = queue->get_new_id();
    task.tokens = server_tokens(llama_tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n)),
                                !params->mmproj.path.empty());
    task.params = server_schema::eval_llama_cmpl_schema(llama_model_get_vocab(llama_get_model(target)), *params, {}, settings);
    task.params.message_spans = task.tokens.find_message_spans(delimiters);
    return task;
}

ahead_warmer::outcome ahead_warmer::evaluate(server_task && task) {
    const int  id   = task.id;
    const auto late = std::chrono::steady_clock::now() + max_step_time;
    kvtier::mutex_lock guard(shared->mu);
    if (shared->stopping || shared->paused || shared->forgotten) {
        return outcome::stopped;
    }
    if (shared->n_requests > 0) {
        return outcome::disturbed;
    }
    shared->running = id; // A removal that comes from now on finds the task.
    guard.unlock();
    queue->post(std::move(task));
    guard.lock();
    while (shared->running == id && !shared->stopping) {
        if (!shared->changed.wait_until(guard, late) && shared->running == id) {
            return outcome::stopped;
        }
    }
    return shared->stopping ? outcome::stopped : outcome::done;
}

} // namespace llama_run

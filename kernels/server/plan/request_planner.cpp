#include "server/plan/request_planner.h"

#include "server/cache/prompt_tokens.h"
#include "server/plan/errand.h"

#include "../src/llama-ext.h"
#include "state_rows.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>

namespace llama_run {

void request_planner::open(const common_params & params, const llama_context * ctx, bool promises) {
    taken_memory taken;
    for (const auto & [buffer_type, part] : llama_get_memory_breakdown(ctx)) {
        taken.model   += part.model;
        taken.context += part.context;
        taken.compute += part.compute;
    }
    {
        kvtier::mutex_lock guard(mu);
        memory = taken;
    }
    const size_t n_slots = static_cast<size_t>(params.n_parallel);
    const bool   shared  = promises && params.kv_unified && n_slots > 1 && (llama_state_parts(ctx) & LLAMA_STATE_PART_ROWS) != 0;
    const size_t n_cells = llama_n_ctx(ctx);
    // As upstream's n_ctx_slot, which is private to it.
    int32_t n_ctx = std::min<int32_t>(static_cast<int32_t>(llama_n_ctx_seq(ctx)), llama_model_n_ctx_train(llama_get_model(ctx)));
    if (params.kv_unified_per_slot > 0) {
        n_ctx = std::min(n_ctx, params.kv_unified_per_slot);
    }
    line.open(n_slots);
    cells.open(shared ? n_cells : 0, static_cast<size_t>(n_ctx), n_slots);
    cell_bytes = n_cells > 0 ? static_cast<double>(taken.context) / static_cast<double>(n_cells) : 0;
}

void request_planner::recall(const std::string & path) {
    std::ifstream in(path);
    std::string   text;
    if (std::getline(in, text)) {
        speeds.recall(text);
    }
    kvtier::mutex_lock guard(mu);
    speeds_path = path;
}

// It replaces the file at once. Without it the next process learns anew, so nobody is told of a disk that is full.
void request_planner::close() {
    kvtier::mutex_lock guard(mu);
    if (speeds_path.empty()) {
        return;
    }
    const std::string next = speeds_path + ".tmp";
    std::ofstream     out(next, std::ios::trunc);
    out << speeds.learnt();
    out.close();
    if (!out || std::rename(next.c_str(), speeds_path.c_str()) != 0) {
        (void) std::remove(next.c_str());
    }
    speeds_path.clear();
}

std::shared_ptr<request_line::place> request_planner::enter(const cache_options & options) {
    std::optional<size_t> max_waiting;
    if (options.max_queue >= 0) {
        max_waiting = static_cast<size_t>(options.max_queue);
    }
    const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * options.queue_timeout_s));
    auto       made    = line.enter(max_waiting, timeout, cells.somebody_waits());
    if (!made) {
        n_refused_full++;
        const double      wait_ms = line.wait_ms();
        const std::string seconds = std::to_string(std::max<int64_t>(1, static_cast<int64_t>(std::ceil(wait_ms / 1000))));
        tell_instead({ 503, { { "error", {
            { "code",    503 },
            { "message", "the queue is full: " + std::to_string(line.n_waiting()) + " requests wait already, and --max-queue allows " +
                         std::to_string(options.max_queue) + ". Send it again, unchanged, in about " + seconds + " seconds" },
            { "type",    "unavailable_error" },
            { "waiting", line.n_waiting() },
            { "wait_ms", wait_ms },
        } } }, { { "Retry-After", seconds } } });
    }
    return made;
}

cell_need request_planner::need_of(const server_task & task) const {
    return cells.need(static_cast<size_t>(task.n_tokens()), task.params.n_predict, 1 + task.child_tasks.size());
}

void request_planner::refuse_what_never_fits(const server_task & task) {
    const cell_need need = need_of(task);
    // A prompt that is longer than the context is upstream's to refuse, in its own words.
    if (need.n_prompt < cells.n_context() && !cells.can_ever_fit(need)) {
        n_refused_never++;
        tell_instead({ 413, { { "error", {
            { "code",            413 },
            { "message",         "this request needs more memory than the server has for all requests together: " +
                                 std::to_string(need.n_prompt) + " tokens of prompt and " + std::to_string(need.n_answers) + " x " +
                                 std::to_string(need.n_most) + " of answer take " + std::to_string(bytes_of(need.most_cells()) >> 20) +
                                 " MiB, there are " + std::to_string(bytes_of(cells.n_cells()) >> 20) +
                                 ". Ask for fewer answers or a smaller max_tokens" },
            { "type",            "invalid_request_error" },
            { "tokens",          need.most_cells() },
            { "tokens_most",     cells.n_cells() },
            { "bytes",           bytes_of(need.most_cells()) },
            { "bytes_most",      bytes_of(cells.n_cells()) },
        } } }, {} });
    }
}

bool request_planner::reserve(int id_slot, const server_task & task) {
    if (!is_cached_kind(task.type) || !task.cache) {
        return true;
    }
    const cell_need need = need_of(task);
    // What can never fit was refused when it arrived, or is about to be refused by upstream.
    return !cells.can_ever_fit(need) || cells.reserve(id_slot, task.id, need, task.cache);
}

void request_planner::placed(int id_slot, const server_task & task) {
    if (task.is_child()) {
        cells.share(id_slot, task.id_parent);
        line.placed_further(id_slot);
    } else {
        cells.placed(id_slot);
        line.placed(task.id, id_slot);
    }
}

void request_planner::evaluated(int id_slot, const server_slot_stats & stats) {
    if (stats.n_gen == 1) {
        line.first_token(id_slot, stats.n_prompt_cached);
    }
}

request_times request_planner::times_of(int id_slot, const server_slot_stats & stats) {
    evaluated(id_slot, stats); // An answer of one token is released before anybody is told that it began.
    return line.times_of(id_slot);
}

bool request_planner::released(int id_slot) {
    line.released(id_slot);
    return cells.release(id_slot);
}

forecast request_planner::predict(const foreseen & what) const {
    forecast out = speeds.predict(what.prompt);
    out.queue_ms = line.wait_ms();
    return out;
}

common_json request_planner::describe(const foreseen & what, int32_t n_predict, size_t n_answers) const {
    const cell_need need = cells.need(what.prompt.n_tokens, n_predict, n_answers);
    const forecast  said = predict(what);
    return {
        { "tokens",         what.prompt.n_tokens },
        { "reused",         what.prompt.n_reused },
        { "evaluated",      what.prompt.n_evaluated() },
        { "source",         cache_source_name(what.source) },
        { "bytes_ram",      what.prompt.bytes_ram },
        { "bytes_disk",     what.prompt.bytes_disk },
        { "fits",           {
            { "context",        what.prompt.n_tokens < cells.n_context() },
            { "context_tokens", cells.n_context() },
            { "memory",         cells.can_ever_fit(need) },
            { "now",            cells.fits_now(need) },
            { "tokens",         need.cells() },
            { "bytes",          bytes_of(need.cells()) },
        } },
        { "queue",          { { "waiting", line.n_waiting() }, { "served", line.n_served() } } },
        { "first_token_ms", said.first_token_ms() },
        { "queue_ms",       said.queue_ms },
        { "restore_ms",     said.restore_ms },
        { "eval_ms",        said.eval_ms },
        { "measured",       said.known },
    };
}

common_json request_planner::describe() const {
    const residuals good = speeds.how_good();
    return {
        { "predictions", {
            { "compared",      good.n },
            { "recent",        good.n_recent },
            { "within_1_5",    good.within_1_5 },
            { "median_factor", good.median_factor },
            { "worst_factor",  good.worst_factor },
        } },
        { "queue",  {
            { "waiting",      line.n_waiting() },
            { "served",       line.n_served() },
            { "wait_ms",      line.wait_ms() },
            { "refused_full", n_refused_full.load() },
        } },
        { "cells",  { { "total", cells.n_cells() }, { "free", cells.n_free() }, { "refused", n_refused_never.load() } } },
    };
}

common_json request_planner::describe_memory() const {
    kvtier::mutex_lock guard(mu);
    return { { "model", memory.model }, { "context", memory.context }, { "compute", memory.compute } };
}

} // namespace llama_run

// What is known of a request before the work: how long it will take, whether there is room for it, and what it is told if not.
//
// The hooks of state_cache.h call it in the order of a request: enter, arrived, reserve, placed, began, evaluated, released.
//
// Thread safety: reserve, may_grow, placed, began, evaluated and released belong to the inference thread, the rest may be
// called from any.
#pragma once

#include "server/cache_options.h"
#include "server/cache_report.h"
#include "server/plan/cell_pool.h"
#include "server/plan/forecast.h"
#include "server/plan/request_line.h"

#include "common.h"
#include "server-task.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace llama_run {

// What would become of a prompt.
struct foreseen {
    prompt_facts prompt;
    cache_source source = cache_source::none;
};

class request_planner {
public:
    // promises: whether cells are, where slots share them; else everything is upstream's.
    void open(const common_params & params, const llama_context * ctx, bool promises);

    // How fast this model was is kept in this file: read now, written by close.
    void recall(const std::string & path);
    void close();

    // Throws, by tell_instead, what the client is told when too many wait: 503 with Retry-After.
    std::shared_ptr<request_line::place> enter(const cache_options & options);

    // Throws likewise what the client is told of a request that can never fit into the cells that slots share: 413.
    void refuse_what_never_fits(const server_task & task);

    void arrived(request_line::place & of, const server_task & task, const foreseen & what) {
        line.arrived(of, task.id, what.prompt, predict(what));
    }

    // False: cells are short, and the task waits for them.
    bool reserve(int id_slot, const server_task & task);

    // Whether a slot's answer may go on.
    bool may_grow(int id_slot, size_t n_prompt, size_t n_tokens) { return cells.grow(id_slot, n_prompt, n_tokens); }

    void placed(int id_slot, const server_task & task);
    void began(int id_slot, double restore_ms) { line.began(id_slot, restore_ms); }
    void evaluated(int id_slot, const server_slot_stats & stats);

    // Of a request that is about to be released.
    request_times times_of(int id_slot, const server_slot_stats & stats);

    // Gives whether requests wait for cells, and should be offered a slot.
    bool released(int id_slot);

    // What POST /cache/plan answers.
    common_json describe(const foreseen & what, int32_t n_predict, size_t n_answers) const;

    // What GET /cache says of predictions, queue and cells, and of what the model takes.
    common_json describe() const;
    common_json describe_memory() const;

    request_line & requests() { return line; }

private:
    cell_need need_of(const server_task & task) const;
    uint64_t  bytes_of(size_t n_cells) const { return static_cast<uint64_t>(cell_bytes * static_cast<double>(n_cells)); }
    forecast  predict(const foreseen & what) const;

    struct taken_memory {
        uint64_t model   = 0;
        uint64_t context = 0;
        uint64_t compute = 0;
    };

    forecaster            speeds;
    request_line          line{ speeds };
    cell_pool             cells;
    std::atomic<double>   cell_bytes{ 0 };
    std::atomic<uint64_t> n_refused_never{ 0 };
    std::atomic<uint64_t> n_refused_full{ 0 };

    mutable kvtier::mutex mu;
    taken_memory          memory GUARDED_BY(mu);
    std::string           speeds_path GUARDED_BY(mu); // empty: nowhere
};

} // namespace llama_run

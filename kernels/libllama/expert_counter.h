// What llama_context keeps for expert_stats.h. The patched process_ubatch calls toggled, extend and collect, in this order, and
// synchronize calls count.
#pragma once

#include "expert_stats.h"

#include "ggml-cpp.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

class llm_graph_result;

class llama_expert_counter {
public:
    // Evaluating thread: tracking was turned on or off since the last graph was built, so that it must be built anew.
    bool toggled(const llama_model & model);

    // Evaluating thread: a graph was built and not yet allocated. Sees to it that what its routers choose is kept.
    void extend(llm_graph_result & graph, ggml_backend_sched_t sched);

    // Evaluating thread: the graph is being computed. Asks for what its routers chose, without waiting.
    void collect(ggml_backend_sched_t sched, uint32_t n_tokens);

    // Evaluating thread: everything that was computed is there.
    void count();

    // Any thread.
    void               enable(bool on) { wanted = on; }
    void               reset();
    llama_expert_stats get(const llama_model & model, uint64_t * layer_tokens, uint64_t * counts) const;

private:
    // The ids that the layers of one device choose, one after the other in one tensor.
    struct pack {
        ggml_backend_dev_t      device;
        ggml_context_ptr        context;
        ggml_backend_buffer_ptr buffer;
        ggml_tensor *           ids      = nullptr; // as router::as_floats says
        int64_t                 capacity = 0;
        int64_t                 used     = 0;
        ggml_backend_buffer_ptr host_buffer; // of the kind that the device writes to by itself
        uint8_t *               host = nullptr; // places for several graphs
    };

    struct router {
        int32_t       layer;
        ggml_tensor * chosen; // ids, [experts used, tokens]; the graph's
        ggml_tensor * sorted; // what `chosen` is a part of, often all experts in order; null: not the graph's to place
        int64_t       n_tokens;
        int64_t       n_used;
        size_t        pack      = 0;
        int64_t       offset    = 0; // in the pack
        int64_t       stride    = 0; // there, between tokens
        bool          as_floats = false;
    };
    using router_list = std::vector<router>;

    struct collected {
        std::shared_ptr<const router_list> routers;
        uint32_t                           n_tokens;
    };

    router_list find_routers(llm_graph_result & graph) const;
    size_t      pack_of(ggml_backend_dev_t device);
    bool        reserve(pack & pack, ggml_backend_sched_t sched);
    bool        placeable(const router_list & found) const;
    bool        place(router_list & found, ggml_backend_sched_t sched);
    bool        copy(router_list & found, llm_graph_result & graph, ggml_backend_sched_t sched);
    void        give_up(const char * why);

    std::atomic<bool>                  wanted{ false };
    bool                               active = false; // what the last graph was built with
    const llama_model *                model  = nullptr;
    std::vector<pack>                  packs;
    std::shared_ptr<const router_list> routers; // of the last graph that was built; null: none are copied
    std::vector<collected>             waiting; // asked for, not counted yet

    mutable std::mutex    mu; // guards what follows
    uint64_t              n_tokens = 0;
    std::vector<uint64_t> layer_tokens;
    std::vector<uint64_t> counts;
};

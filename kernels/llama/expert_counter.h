// What llama_context keeps for expert_stats.h. The patched process_ubatch calls toggled, extend and count, in this order.
#pragma once

#include "expert_stats.h"

#include "ggml-cpp.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

class llm_graph_result;

class llama_expert_counter {
public:
    // Evaluating thread: tracking was turned on or off since the last graph was built, so that it must be built anew.
    bool toggled(const llama_model & model);

    // Evaluating thread: a graph was built and not yet allocated. Adds the copies of what its routers choose.
    void extend(llm_graph_result & graph);

    // Evaluating thread: the graph is being computed. Waits for it and counts.
    void count(ggml_backend_sched_t sched, uint32_t n_tokens);

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
        ggml_tensor *           ids      = nullptr;
        int64_t                 capacity = 0;
        int64_t                 used     = 0;
        std::vector<int32_t>    host;
    };

    struct router {
        int32_t       layer;
        ggml_tensor * chosen; // ids, [experts used, tokens]; the graph's
        size_t        pack;
        int64_t       offset; // in the pack
        int64_t       n_tokens;
        int64_t       n_used;
    };

    std::vector<router> find_routers(llm_graph_result & graph);
    size_t              pack_of(const router & router, ggml_context * graph_context);
    bool                reserve(pack & pack);
    void                give_up(const char * why);

    std::atomic<bool>   wanted{ false };
    bool                active = false; // what the last graph was built with
    const llama_model * model  = nullptr;
    std::vector<pack>   packs;
    std::vector<router> routers; // of the last graph that was built

    mutable std::mutex    mu; // guards what follows
    uint64_t              n_tokens = 0;
    std::vector<uint64_t> layer_tokens;
    std::vector<uint64_t> counts;
};

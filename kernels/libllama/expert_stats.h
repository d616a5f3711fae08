// Which experts of a mixture-of-experts model work: how often the router of every layer chose each of them.
//
// While tracking is on, the chosen ids of all layers are packed together at the end of every evaluated graph, read once, without
// waiting, and counted when somebody waits for the results. Off, the graph is upstream's, node for node. Compiled into libllama (libllama.cmake); callers need llama.h and this header only.
//
// Unlike the rest of llama.h these may be called from any thread while the context lives.
#pragma once

#include "llama.h"

#ifdef __cplusplus
// Experts of a layer that has any, 0 for a dense model. Upstream's own (llama-ext.h), with its C++ linkage.
LLAMA_API int32_t llama_model_n_expert(const struct llama_model * model);

extern "C" {
#endif

// How many of them a token is sent to: the largest number of all layers.
LLAMA_API int32_t llama_model_n_expert_used(const struct llama_model * model);

// Counting begins or ends with the next evaluated batch. Counts stay until they are reset.
LLAMA_API void llama_expert_tracking_enable(struct llama_context * ctx, bool enable);
LLAMA_API void llama_expert_stats_reset    (struct llama_context * ctx);

struct llama_expert_stats {
    bool     tracking;
    int32_t  n_layer;
    int32_t  n_expert;
    uint64_t n_tokens; // evaluated while tracking was on
};

// One moment's counts. layer_tokens: n_layer values, the tokens that passed the layer's router: 0 for a dense layer; fewer than
// n_tokens for the last one, which is evaluated only where logits are asked for. counts: n_layer x n_expert values. Either may be
// null.
LLAMA_API struct llama_expert_stats llama_expert_stats_get(
        const struct llama_context * ctx,
                          uint64_t * layer_tokens,
                          uint64_t * counts);

#ifdef __cplusplus
}
#endif

#include "expert_counter.h"

#include "device_backend.h"

#include "llama-context.h"
#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-model.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

// the name that llm_graph_context::build_moe_ffn gives to the ids it chose, followed by the layer's number
static const char ROUTER_NAME[] = "ffn_moe_topk-";

// a view into the pack and the copy into it
static constexpr size_t NODES_PER_ROUTER = 2;

// Graphs whose choices may wait to be counted. A long prompt is many graphs, and only its last one is waited for.
static constexpr size_t MAX_WAITING = 16;

bool llama_expert_counter::toggled(const llama_model & evaluated) {
    const bool was = active;
    model  = &evaluated;
    active = wanted && model->hparams.n_expert > 0;
    return active != was;
}

void llama_expert_counter::give_up(const char * why) {
    LLAMA_LOG_WARN("%s: experts are not counted any more: %s\n", __func__, why);
    routers.reset();
    wanted = false;
}

llama_expert_counter::router_list llama_expert_counter::find_routers(llm_graph_result & graph) const {
    router_list found;
    ggml_cgraph * gf = graph.get_gf();
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_tensor * node = ggml_graph_node(gf, i);
        if (strncmp(node->name, ROUTER_NAME, sizeof(ROUTER_NAME) - 1) != 0 || node->type != GGML_TYPE_I32) {
            continue;
        }
        const int32_t layer = atoi(node->name + sizeof(ROUTER_NAME) - 1);
        // a layer that routes twice chooses among the same experts for the same tokens: the first choice is the one that counts
        const bool seen = std::any_of(found.begin(), found.end(), [&](const router & r) { return r.layer == layer; });
        if (layer >= 0 && layer < (int32_t) model->hparams.n_layer_all && !seen) {
            found.push_back({ layer, node, 0, 0, node->ne[1], node->ne[0] });
        }
    }
    return found;
}

// The pack on the layer's own device, or in main memory where the device cannot copy such numbers.
size_t llama_expert_counter::pack_of(const router & router, ggml_context * graph_context) {
    ggml_backend_dev_t device = model->dev_layer(router.layer);
    ggml_tensor *      probe  = ggml_cpy(graph_context, router.chosen, ggml_dup_tensor(graph_context, router.chosen));
    if (!ggml_backend_dev_supports_op(device, probe)) {
        device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    }
    for (size_t i = 0; i < packs.size(); ++i) {
        if (packs[i].device == device) {
            return i;
        }
    }
    packs.emplace_back();
    packs.back().device = device;
    return packs.size() - 1;
}

bool llama_expert_counter::reserve(pack & pack, ggml_backend_sched_t sched) {
    if (pack.used <= pack.capacity) {
        return true;
    }
    ggml_backend_sched_synchronize(sched); // what is waiting lies in the memory that goes
    count();
    pack.buffer.reset();
    pack.host_buffer.reset();
    pack.capacity = 0;
    pack.context.reset(ggml_init({ ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true }));
    pack.ids = ggml_new_tensor_1d(pack.context.get(), GGML_TYPE_I32, pack.used);
    ggml_set_name(pack.ids, "expert_ids");
    pack.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(pack.context.get(), ggml_backend_dev_buffer_type(pack.device)));

    ggml_backend_buffer_type_t host_type = ggml_backend_dev_host_buffer_type(pack.device);
    pack.host_buffer.reset(ggml_backend_buft_alloc_buffer(host_type ? host_type : ggml_backend_cpu_buffer_type(),
                                                          MAX_WAITING*ggml_nbytes(pack.ids)));
    if (!pack.buffer || !pack.host_buffer || !ggml_backend_buffer_is_host(pack.host_buffer.get())) {
        return false;
    }
    pack.host     = (int32_t *) ggml_backend_buffer_get_base(pack.host_buffer.get());
    pack.capacity = pack.used;
    return true;
}

void llama_expert_counter::extend(llm_graph_result & graph, ggml_backend_sched_t sched) {
    routers.reset();
    if (!active) {
        return;
    }
    ggml_cgraph *  gf    = graph.get_gf();
    ggml_context * ctx   = graph.get_ctx();
    router_list    found = find_routers(graph);

    // twice: pack_of makes two tensors to ask with
    const size_t n_nodes = found.size() * NODES_PER_ROUTER;
    if (ggml_graph_n_nodes(gf) + (int) n_nodes > ggml_graph_size(gf) ||
        ggml_used_mem(ctx) + 2 * n_nodes * ggml_tensor_overhead() > ggml_get_mem_size(ctx)) {
        return give_up("the graph has no room for it");
    }

    for (auto & pack : packs) {
        pack.used = 0;
    }
    for (auto & router : found) {
        router.pack   = pack_of(router, ctx);
        router.offset = packs[router.pack].used;
        packs[router.pack].used += router.n_used * router.n_tokens;
    }
    for (auto & pack : packs) {
        if (!reserve(pack, sched)) {
            return give_up("no memory for it");
        }
    }

    // At the graph's end, not where the ids are chosen: backends fuse the router's steps when they follow one another.
    for (const auto & router : found) {
        ggml_tensor * ids = packs[router.pack].ids;
        ggml_tensor * dst = ggml_view_2d(ctx, ids, router.n_used, router.n_tokens, router.n_used * sizeof(int32_t),
                                         router.offset * sizeof(int32_t));
        ggml_build_forward_expand(gf, ggml_cpy(ctx, router.chosen, dst));
    }
    routers = std::make_shared<const router_list>(std::move(found));
}

void llama_expert_counter::collect(ggml_backend_sched_t sched, uint32_t n_tokens_evaluated) {
    if (!active || !routers || routers->empty()) {
        return;
    }
    if (waiting.size() == MAX_WAITING) {
        ggml_backend_sched_synchronize(sched);
        count();
    }
    for (auto & pack : packs) {
        int32_t *    place = pack.host + pack.capacity * (int64_t) waiting.size();
        const size_t size  = static_cast<size_t>(pack.used) * sizeof(int32_t);
        if (size == 0) {
            continue;
        }
        if (ggml_backend_t backend = llama_device_backend(sched, pack.device)) {
            ggml_backend_tensor_get_async(backend, pack.ids, place, 0, size);
        } else {
            ggml_backend_sched_synchronize(sched);
            ggml_backend_tensor_get(pack.ids, place, 0, size);
        }
    }
    waiting.push_back({ routers, n_tokens_evaluated });
}

void llama_expert_counter::count() {
    if (waiting.empty()) {
        return;
    }
    const uint32_t n_expert = model->hparams.n_expert;

    const std::lock_guard<std::mutex> lock(mu);
    layer_tokens.resize(model->hparams.n_layer_all);
    counts.resize(static_cast<size_t>(model->hparams.n_layer_all) * n_expert);
    for (size_t i = 0; i < waiting.size(); ++i) {
        n_tokens += waiting[i].n_tokens;
        for (const auto & router : *waiting[i].routers) {
            const pack &    from  = packs[router.pack];
            const int32_t * ids   = from.host + from.capacity * (int64_t) i + router.offset;
            uint64_t *      layer = counts.data() + static_cast<size_t>(router.layer) * n_expert;
            for (int64_t id = 0; id < router.n_used * router.n_tokens; ++id) {
                if (ids[id] >= 0 && ids[id] < (int32_t) n_expert) {
                    layer[ids[id]]++;
                }
            }
            layer_tokens[static_cast<size_t>(router.layer)] += static_cast<uint64_t>(router.n_tokens);
        }
    }
    waiting.clear();
}

void llama_expert_counter::reset() {
    const std::lock_guard<std::mutex> lock(mu);
    n_tokens = 0;
    layer_tokens.clear();
    counts.clear();
}

llama_expert_stats llama_expert_counter::get(const llama_model & of, uint64_t * to_layer_tokens, uint64_t * to_counts) const {
    const size_t n_layer  = of.hparams.n_layer_all;
    const size_t n_expert = of.hparams.n_expert;

    const std::lock_guard<std::mutex> lock(mu);
    if (to_layer_tokens) {
        std::fill_n(to_layer_tokens, n_layer, 0);
        std::copy(layer_tokens.begin(), layer_tokens.end(), to_layer_tokens);
    }
    if (to_counts) {
        std::fill_n(to_counts, n_layer * n_expert, 0);
        std::copy(counts.begin(), counts.end(), to_counts);
    }
    return { wanted, (int32_t) n_layer, (int32_t) n_expert, n_tokens };
}

int32_t llama_model_n_expert_used(const llama_model * model) {
    return (int32_t) model->hparams.n_expert_used_max();
}

void llama_expert_tracking_enable(llama_context * ctx, bool enable) {
    ctx->experts.enable(enable);
}

void llama_expert_stats_reset(llama_context * ctx) {
    ctx->experts.reset();
}

llama_expert_stats llama_expert_stats_get(const llama_context * ctx, uint64_t * layer_tokens, uint64_t * counts) {
    return ctx->experts.get(ctx->get_model(), layer_tokens, counts);
}

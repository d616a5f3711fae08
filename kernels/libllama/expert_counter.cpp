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

// Routers sort all experts and use the first few. For up to that many tokens it is cheaper to keep and fetch them all.
static constexpr int64_t MAX_PLACED_TOKENS = 8;

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
            ggml_tensor * sorted = node->view_src ? node->view_src : node;
            const bool    ours   = sorted->op != GGML_OP_NONE && !sorted->data && ggml_is_contiguous(sorted);
            found.push_back({ layer, node, ours ? sorted : nullptr, node->ne[1], node->ne[0] });
        }
    }
    return found;
}

size_t llama_expert_counter::pack_of(ggml_backend_dev_t device) {
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
    pack.ids = ggml_new_tensor_1d(pack.context.get(), GGML_TYPE_F32, pack.used);
    ggml_set_name(pack.ids, "expert_ids");
    pack.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(pack.context.get(), ggml_backend_dev_buffer_type(pack.device)));

    ggml_backend_buffer_type_t host_type = ggml_backend_dev_host_buffer_type(pack.device);
    pack.host_buffer.reset(ggml_backend_buft_alloc_buffer(host_type ? host_type : ggml_backend_cpu_buffer_type(),
                                                          MAX_WAITING*ggml_nbytes(pack.ids)));
    if (!pack.buffer || !pack.host_buffer || !ggml_backend_buffer_is_host(pack.host_buffer.get())) {
        return false;
    }
    pack.host     = (uint8_t *) ggml_backend_buffer_get_base(pack.host_buffer.get());
    pack.capacity = pack.used;
    return true;
}

bool llama_expert_counter::placeable(const router_list & found) const {
    return std::all_of(found.begin(), found.end(), [&](const router & r) {
        ggml_backend_dev_t device = model->dev_layer(r.layer);
        return r.n_tokens <= MAX_PLACED_TOKENS && r.sorted && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_META &&
               ggml_backend_dev_supports_op(device, r.sorted);
    });
}

// When an answer is decoded, the routers themselves write into the pack, and nothing is added to the graph.
// With a copy per layer, tracking took 1 to 2 % of a token on a large device.
bool llama_expert_counter::place(router_list & found, ggml_backend_sched_t sched) {
    for (auto & router : found) {
        router.pack = pack_of(model->dev_layer(router.layer));
        pack & to   = packs[router.pack];
        const size_t unit = ggml_backend_buft_get_alignment(ggml_backend_dev_buffer_type(to.device)) / sizeof(int32_t);
        to.used       = GGML_PAD(to.used, (int64_t) std::max<size_t>(unit, 1));
        router.offset = to.used;
        router.stride = router.chosen->nb[1] / sizeof(int32_t);
        to.used      += ggml_nelements(router.sorted);
    }
    for (auto & pack : packs) {
        if (!reserve(pack, sched)) {
            return false;
        }
    }
    for (auto & router : found) {
        const pack & to = packs[router.pack];
        if (ggml_backend_tensor_alloc(to.buffer.get(), router.sorted, (float *) to.ids->data + router.offset) != GGML_STATUS_SUCCESS) {
            return false;
        }
        router.offset += (int64_t) (router.chosen->view_offs / sizeof(int32_t));
    }
    return true;
}

// At the graph's end, not where the ids are chosen: backends fuse the router's steps when they follow one another. As floats:
// CUDA makes a copy of rows of one type a two-dimensional memcpy, with a type to change it is a kernel.
bool llama_expert_counter::copy(router_list & found, llm_graph_result & graph, ggml_backend_sched_t sched) {
    ggml_cgraph *  gf  = graph.get_gf();
    ggml_context * ctx = graph.get_ctx();

    // twice: two tensors per router are made to ask with
    const size_t n_nodes = found.size() * NODES_PER_ROUTER;
    if (ggml_graph_n_nodes(gf) + (int) n_nodes > ggml_graph_size(gf) ||
        ggml_used_mem(ctx) + 2 * n_nodes * ggml_tensor_overhead() > ggml_get_mem_size(ctx)) {
        return false;
    }
    for (auto & router : found) {
        // in main memory where the device cannot copy such numbers
        ggml_backend_dev_t device = model->dev_layer(router.layer);
        ggml_tensor *      probe  = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, router.n_used, router.n_tokens);
        if (!ggml_backend_dev_supports_op(device, ggml_cpy(ctx, router.chosen, probe))) {
            device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        }
        router.pack      = pack_of(device);
        router.offset    = packs[router.pack].used;
        router.stride    = router.n_used;
        router.as_floats = true;
        packs[router.pack].used += router.n_used * router.n_tokens;
    }
    for (auto & pack : packs) {
        if (!reserve(pack, sched)) {
            return false;
        }
    }
    for (const auto & router : found) {
        ggml_tensor * dst = ggml_view_2d(ctx, packs[router.pack].ids, router.n_used, router.n_tokens,
                                         router.stride * sizeof(float), router.offset * sizeof(float));
        ggml_build_forward_expand(gf, ggml_cpy(ctx, router.chosen, dst));
    }
    return true;
}

void llama_expert_counter::extend(llm_graph_result & graph, ggml_backend_sched_t sched) {
    routers.reset();
    if (!active) {
        return;
    }
    router_list found = find_routers(graph);
    for (auto & pack : packs) {
        pack.used = 0;
    }
    if (placeable(found) ? !place(found, sched) : !copy(found, graph, sched)) {
        return give_up("there is no memory, or no room in the graph");
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
        uint8_t *    place = pack.host + waiting.size() * pack.capacity * sizeof(float);
        const size_t size  = static_cast<size_t>(pack.used) * sizeof(float);
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

template <typename id_type>
static void count_ids(const id_type * ids, int64_t n_tokens, int64_t n_used, int64_t stride, uint64_t * counts, uint32_t n_expert) {
    for (int64_t i_token = 0; i_token < n_tokens; ++i_token, ids += stride) {
        for (int64_t i_used = 0; i_used < n_used; ++i_used) {
            if (ids[i_used] >= 0 && ids[i_used] < (id_type) n_expert) {
                counts[(size_t) ids[i_used]]++;
            }
        }
    }
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
            const pack & from = packs[router.pack];
            const auto * ids  = from.host + (i * from.capacity + router.offset) * sizeof(float);
            uint64_t *   to   = counts.data() + static_cast<size_t>(router.layer) * n_expert;
            if (router.as_floats) {
                count_ids((const float *) ids, router.n_tokens, router.n_used, router.stride, to, n_expert);
            } else {
                count_ids((const int32_t *) ids, router.n_tokens, router.n_used, router.stride, to, n_expert);
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

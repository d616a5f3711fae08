#include "server/experts/expert_view.h"

#include "expert_stats.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace llama_run {

static void add(std::vector<uint64_t> & to, const std::vector<uint64_t> & from) {
    to.resize(from.size());
    std::transform(from.begin(), from.end(), to.begin(), to.begin(), std::plus<>());
}

void expert_view::open(llama_context * target) {
    std::lock_guard<std::mutex> guard(mu);
    const llama_model * model = llama_get_model(target);
    context              = target;
    before.n_expert      = llama_model_n_expert(model);
    before.n_expert_used = llama_model_n_expert_used(model);
    llama_expert_tracking_enable(context, before.tracking);
}

void expert_view::close() {
    std::lock_guard<std::mutex> guard(mu);
    if (context) {
        before  = now();
        context = nullptr;
    }
}

expert_view::counts expert_view::now() const {
    counts sum = before;
    if (context) {
        const llama_expert_stats size = llama_expert_stats_get(context, nullptr, nullptr);
        const size_t n_layer = static_cast<size_t>(size.n_layer);
        std::vector<uint64_t> layer_tokens(n_layer);
        std::vector<uint64_t> chosen(n_layer * static_cast<size_t>(size.n_expert));
        const llama_expert_stats stats = llama_expert_stats_get(context, layer_tokens.data(), chosen.data());
        sum.tracking = stats.tracking;
        sum.n_tokens += stats.n_tokens;
        add(sum.layer_tokens, layer_tokens);
        add(sum.chosen, chosen);
    }
    return sum;
}

void expert_view::track(bool on) {
    std::lock_guard<std::mutex> guard(mu);
    before.tracking = on;
    if (context) {
        llama_expert_tracking_enable(context, on);
    }
}

void expert_view::reset() {
    std::lock_guard<std::mutex> guard(mu);
    before.n_tokens = 0;
    before.layer_tokens.clear();
    before.chosen.clear();
    if (context) {
        llama_expert_stats_reset(context);
    }
}

// The layer's experts, most used first; those of equal use in their own order.
static common_json activations(const uint64_t * chosen, size_t n_expert) {
    std::vector<size_t> order(n_expert);
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return chosen[a] > chosen[b]; });

    const uint64_t total = std::accumulate(chosen, chosen + n_expert, uint64_t(0));
    common_json list = common_json::array();
    for (const size_t expert : order) {
        list.push_back({
            { "expert",    expert },
            { "count",     chosen[expert] },
            { "frequency", total == 0 ? 0.0 : static_cast<double>(chosen[expert]) / static_cast<double>(total) },
        });
    }
    return list;
}

common_json expert_view::describe() const {
    counts sum;
    {
        std::lock_guard<std::mutex> guard(mu);
        sum = now();
    }
    common_json layers = common_json::array();
    for (size_t i = 0; i < sum.layer_tokens.size(); ++i) {
        if (sum.layer_tokens[i] > 0) {
            const size_t n_expert = static_cast<size_t>(sum.n_expert);
            layers.push_back({
                { "layer",       i },
                { "tokens",      sum.layer_tokens[i] },
                { "activations", activations(sum.chosen.data() + i * n_expert, n_expert) },
            });
        }
    }
    return {
        { "n_expert",         sum.n_expert },
        { "n_expert_used",    sum.n_expert_used },
        { "total_tokens",     sum.n_tokens },
        { "tracking_enabled", sum.tracking },
        { "layers",           layers },
    };
}

} // namespace llama_run

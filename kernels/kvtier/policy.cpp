#include "kvtier/policy.h"

#include <algorithm>
#include <cmath>

namespace kvtier {

const char * tier_name(tier t) {
    switch (t) {
        case tier::hot:  return "hot";
        case tier::warm: return "warm";
        case tier::cold: return "cold";
    }
    return "unknown";
}

tier tier_of(uint64_t idle_turns, bool in_ram, const tier_windows & windows) {
    if (!in_ram || idle_turns >= windows.warm) {
        return tier::cold;
    }
    return idle_turns < windows.hot ? tier::hot : tier::warm;
}

double keep_score(const object_facts & facts) {
    // An hour or a turn without use halve the value about equally: a busy server counts turns, an idle one hours.
    const double hours  = static_cast<double>(std::max<int64_t>(facts.age_ms, 0)) / 3.6e6;
    const double recent = 1.0 / (1.0 + hours + 0.25 * static_cast<double>(facts.idle_turns));
    const double hits   = 1.0 + std::log2(1.0 + static_cast<double>(facts.hits));
    const double shared = 1.0 + std::log2(static_cast<double>(std::max<uint32_t>(facts.n_conversations, 1)));
    // Size counts little: anchors are ten times a page and worth more than ten pages.
    const double size   = std::pow(1.0 + static_cast<double>(facts.bytes) / (1 << 20), -0.125);
    const double value  = recent * hits * shared * size; // at most some thousands

    constexpr double upper_class = 1e6;
    double score = value;
    if (facts.n_conversations > 1 || facts.static_prefix) {
        score += upper_class;
    }
    if (facts.lapsed) {
        score = -1 / (1 + value); // more than what nothing can use, which has -1
    }
    if (facts.being_served) {
        score += 2 * upper_class;
    }
    return score;
}

std::vector<size_t> thin_anchors(const std::vector<anchor_facts> & anchors, size_t max_anchors) {
    std::vector<size_t> kept(anchors.size());
    for (size_t i = 0; i < kept.size(); i++) {
        kept[i] = i;
    }
    std::vector<size_t> dropped;
    while (kept.size() > max_anchors) {
        // The one goes whose loss costs least: the tokens back to its neighbour, less the further it lies behind.
        size_t best      = kept.size();
        double best_cost = 0;
        for (size_t i = 0; i + 2 < kept.size(); i++) {
            const anchor_facts & a = anchors[kept[i]];
            if (a.static_prefix) {
                continue;
            }
            const uint32_t before = i == 0 ? 0 : anchors[kept[i - 1]].n_tokens;
            const double   gap    = a.n_tokens - before;
            const double   behind = 1.0 + anchors[kept.back()].n_tokens - a.n_tokens;
            const double   cost   = gap / behind;
            if (best == kept.size() || cost < best_cost) {
                best      = i;
                best_cost = cost;
            }
        }
        if (best == kept.size()) {
            break; // only ones that stay
        }
        dropped.push_back(kept[best]);
        kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(best));
    }
    std::sort(dropped.begin(), dropped.end());
    return dropped;
}

restore_decision restore_or_recompute(const restore_facts & facts) {
    restore_decision out;
    if (facts.n_tokens == 0) {
        return out;
    }
    if (facts.ram_bytes_per_s > 0) {
        out.restore_ms += 1e3 * static_cast<double>(facts.bytes_ram + facts.bytes_disk) / facts.ram_bytes_per_s;
    }
    if (facts.disk_bytes_per_s > 0) {
        out.restore_ms += 1e3 * static_cast<double>(facts.bytes_disk) / facts.disk_bytes_per_s;
    }
    if (facts.tokens_per_s > 0) {
        out.eval_ms = 1e3 * static_cast<double>(facts.n_tokens) / facts.tokens_per_s;
    }
    const bool known = facts.tokens_per_s > 0 && (facts.bytes_disk == 0 || facts.disk_bytes_per_s > 0);
    out.restore = !known || out.restore_ms <= out.eval_ms;
    return out;
}

} // namespace kvtier

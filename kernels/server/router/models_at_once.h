// How many models may be loaded together, by the memory that each of them takes. It is pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace llama_run {

// A model whose need nobody knows takes all of the memory: it is loaded alone.
constexpr uint64_t unknown_need = UINT64_MAX;

// Counts those that are running and, in their order, those that are wanted, up to the first that does not fit beside the ones
// before it: whoever came first is not overtaken. What would take more than there is takes all of it, so that it is tried when
// nothing else is left. `most` is a limit on the count, 0 or less is none. It is at least 1: 0 has another meaning for upstream.
inline int models_at_once(uint64_t memory, const std::vector<uint64_t> & running, const std::vector<uint64_t> & wanted, int most) {
    uint64_t   free  = memory;
    const auto takes = [&](uint64_t need) { return std::min(need, memory); };
    for (const uint64_t need : running) {
        free -= std::min(takes(need), free);
    }
    size_t count = running.size();
    for (const uint64_t need : wanted) {
        if (takes(need) > free) {
            break;
        }
        free -= takes(need);
        count++;
    }
    const size_t limit = most > 0 ? static_cast<size_t>(most) : count;
    return static_cast<int>(std::max<size_t>(1, std::min(count, limit)));
}

} // namespace llama_run

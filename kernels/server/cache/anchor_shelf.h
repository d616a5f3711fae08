// Folded state at some lengths of what each slot holds, in RAM: a slot whose prompt parts from what it holds goes back to one of them,
// and keeps its rows. It takes the place of upstream's context checkpoints, which are copied while evaluation waits.
//
// Thread safety: any function from any thread. What a slot holds changes on the inference thread alone, which says so by keep_first.
#pragma once

#include "kvtier/thread_annotations.h"
#include "llama/anchor_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace llama_run {

class anchor_shelf {
public:
    // most: anchors of one slot.
    anchor_shelf(size_t n_slots, size_t most) : slots(n_slots), most(most) {}

    // Where there are too many, the one goes whose neighbours are closest; the longest stays.
    void put(int slot, anchor_copy anchor) {
        std::vector<anchor_copy> gone; // They are freed without the lock, because that can take a while.
        kvtier::mutex_lock guard(mu);
        std::vector<anchor_copy> & own = slots[static_cast<size_t>(slot)];
        const auto after = std::lower_bound(own.begin(), own.end(), anchor.n_tokens, shorter);
        if (after != own.end() && after->n_tokens == anchor.n_tokens) {
            std::swap(*after, anchor);
            gone.push_back(std::move(anchor));
        } else {
            own.insert(after, std::move(anchor));
        }
        while (own.size() > most) {
            const size_t i = least_needed(own);
            gone.push_back(std::move(own[i]));
            own.erase(own.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }

    std::vector<uint32_t> lengths(int slot) const {
        kvtier::mutex_lock guard(mu);
        std::vector<uint32_t> out;
        for (const anchor_copy & a : slots[static_cast<size_t>(slot)]) {
            out.push_back(a.n_tokens);
        }
        return out;
    }

    // Its data is null where there is none.
    anchor_copy at(int slot, uint32_t n_tokens) const {
        kvtier::mutex_lock guard(mu);
        const std::vector<anchor_copy> & own = slots[static_cast<size_t>(slot)];
        const auto found = std::lower_bound(own.begin(), own.end(), n_tokens, shorter);
        return found != own.end() && found->n_tokens == n_tokens ? *found : anchor_copy();
    }

    // Of what the slot holds, so many tokens are left at most.
    void keep_first(int slot, size_t n_tokens) {
        std::vector<anchor_copy> gone;
        kvtier::mutex_lock guard(mu);
        std::vector<anchor_copy> & own = slots[static_cast<size_t>(slot)];
        while (!own.empty() && own.back().n_tokens > n_tokens) {
            gone.push_back(std::move(own.back()));
            own.pop_back();
        }
    }

    void clear(int slot) { keep_first(slot, 0); }

private:
    static bool shorter(const anchor_copy & a, uint32_t n_tokens) { return a.n_tokens < n_tokens; }

    static size_t least_needed(const std::vector<anchor_copy> & own) {
        size_t   least = 0;
        uint32_t gap   = UINT32_MAX;
        for (size_t i = 0; i + 1 < own.size(); i++) {
            const uint32_t left = own[i + 1].n_tokens - (i > 0 ? own[i - 1].n_tokens : 0);
            least = left < gap ? i : least;
            gap   = std::min(gap, left);
        }
        return least;
    }

    mutable kvtier::mutex                 mu;
    std::vector<std::vector<anchor_copy>> slots GUARDED_BY(mu); // each with the shortest first
    const size_t                          most;
};

} // namespace llama_run

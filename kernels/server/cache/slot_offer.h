// How much of a prompt a slot can give without help: upstream's own rules while the cache is on, as a pure function.
//
// A slot holds the state of some tokens. Of a prompt that begins with them it reuses the common part, if the memory can be
// cut there; else it goes back to an anchor (anchor_shelf.h), or to one of the context checkpoints that upstream keeps in RAM.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace llama_run {

struct slot_checkpoint {
    int64_t n_tokens;
    int32_t pos_min;
    int32_t pos_max;
};

struct slot_reuse {
    size_t n_tokens = 0;
    bool   back_to_anchor = false; // of just that length
};

struct slot_offer {
    std::vector<int32_t>         tokens;
    std::vector<slot_checkpoint> checkpoints;
    std::vector<uint32_t>        anchors; // their lengths
    int32_t                      pos_min = -1; // of what the memory holds
    int32_t                      n_swa   = 0;

    size_t common(const std::vector<int32_t> & prompt) const {
        const size_t n = std::min(tokens.size(), prompt.size());
        return static_cast<size_t>(std::mismatch(tokens.begin(), tokens.begin() + n, prompt.begin()).first - tokens.begin());
    }

    // Tokens of the prompt that need not be evaluated; at least one always is.
    size_t reusable(const std::vector<int32_t> & prompt) const { return reuse(prompt).n_tokens; }

    slot_reuse reuse(const std::vector<int32_t> & prompt) const {
        const size_t n = common(prompt);
        if (n == 0 || pos_min < 0) {
            return {};
        }
        const int64_t all_known = n == prompt.size(); // the last token is evaluated again
        const int64_t most      = static_cast<int64_t>(n) - all_known;
        const int64_t threshold = std::max<int64_t>(0, static_cast<int64_t>(n) - n_swa - all_known);
        if (pos_min < threshold || pos_min == 0) { // see cache_report::is_whole
            return { static_cast<size_t>(most), false };
        }
        int64_t best = 0;
        for (const slot_checkpoint & c : checkpoints) {
            if (fits(c, n) && (c.pos_min < threshold || c.pos_min == 0)) {
                best = std::max(best, std::min<int64_t>(c.n_tokens, std::max(c.pos_min + 1, c.pos_max)));
            }
        }
        best = std::min(best, most);
        bool back_to_anchor = false;
        for (const int64_t length : anchors) {
            if (length > best && length <= most) {
                best           = length;
                back_to_anchor = true;
            }
        }
        return { static_cast<size_t>(best), back_to_anchor };
    }

    // Whether a checkpoint's tokens are those of a prompt that has n_common tokens in common with the slot. Upstream looks at
    // positions alone, and so takes one that ends one token behind where the prompts part.
    template <typename Checkpoint>
    static bool fits(const Checkpoint & c, size_t n_common) {
        return c.n_tokens <= static_cast<int64_t>(n_common);
    }
};

} // namespace llama_run

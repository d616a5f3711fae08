// Where the evaluation of a prompt pauses so that its folded state can be copied: other prompts will want to go on from there.
//
// Each cut costs a batch of its own, which a mixture of experts evaluates hardly faster than a whole one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace llama_run {

// Prompts that go on with another answer, or with the same one in other words, part a few tokens before the end: behind the last
// message comes what opens the answer.
inline constexpr uint32_t tokens_after_last_cut = 4;

// Who edits the last message evaluates so many tokens again rather than that every turn pays for a cut.
inline constexpr uint32_t least_before_last_message = 256;

// n_begin: tokens that are there. n_static: tokens before the first user message; last_user: before the last one; 0: there is none.
inline std::vector<uint32_t> prompt_cuts(uint32_t n_begin, uint32_t n_tokens, uint32_t n_static, uint32_t last_user) {
    std::vector<uint32_t> cuts;
    const auto add = [&](uint32_t at) {
        if (at > n_begin && at < n_tokens && (cuts.empty() || at > cuts.back())) {
            cuts.push_back(at);
        }
    };
    add(n_static);
    if (last_user >= (cuts.empty() ? n_begin : cuts.back()) + least_before_last_message) {
        add(last_user);
    }
    add(n_tokens - std::min(n_tokens, tokens_after_last_cut));
    return cuts;
}

} // namespace llama_run

// Where the evaluation of a prompt pauses so that its folded state can be copied: other prompts will want to go on from there. And
// where it goes token by token.
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

// Where prompts of several conversations part, others will part as well: between two files, or between the tasks of several agents.
// One that has so many tokens to evaluate again is worth a cut for those.
inline constexpr uint32_t least_before_parting = 256;

// The next ones may part a little earlier, at another word of the same line.
inline constexpr uint32_t tokens_before_parting = 32;

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

// Where else a prompt is cut that has n_common tokens in common with what is known, or 0. Folded state is there for n_begin of them.
// Where a page ends nearby, it is there: the page's rows are stored, and those of a part of it would be stored again.
inline uint32_t cut_before_parting(const std::vector<uint32_t> & cuts, uint32_t n_begin, uint32_t n_common, uint32_t page_size) {
    const auto     behind = std::upper_bound(cuts.begin(), cuts.end(), n_common);
    const uint32_t before = behind == cuts.begin() ? n_begin : *(behind - 1);
    if (n_common < before + least_before_parting) {
        return 0;
    }
    return std::max(n_common - tokens_before_parting, n_common - n_common % page_size);
}

// Whether what is left of a prompt, behind a restore or behind its last cut, is evaluated token by token beside others that answer.
// Folded state takes sequences of equal length at a time: beside one token of each answer, several of a prompt are a part of their own,
// in a shape that comes once, and who answers waits for it. One token of each is the shape in which all go on.
// n_beside: tokens of others in the batch, which are one for each where all_answer.
inline bool goes_token_by_token(uint32_t n_left, size_t n_beside, bool all_answer) {
    return n_beside > 0 && all_answer && n_left <= tokens_after_last_cut;
}

} // namespace llama_run

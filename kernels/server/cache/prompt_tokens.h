// Prompts as the cache has them: plain tokens, without what upstream keeps beside them.
#pragma once

#include "kvtier/keys.h"

#include "server-common.h"
#include "server-task.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace llama_run {

// Requests of these kinds have a prompt whose state is worth keeping.
inline bool is_cached_kind(server_task_type type) {
    return type == SERVER_TASK_TYPE_COMPLETION || type == SERVER_TASK_TYPE_INFILL;
}

inline std::vector<kvtier::token> tokens_of(const server_tokens & from, size_t n) {
    std::vector<kvtier::token> out(n);
    for (size_t i = 0; i < n; i++) {
        out[i] = from[i];
    }
    return out;
}

inline std::vector<kvtier::token> tokens_of(const server_tokens & from) {
    return tokens_of(from, from.size());
}

// The tokens that name a prompt's conversation.
inline std::vector<kvtier::token> naming_tokens(const std::vector<kvtier::token> & prompt) {
    const size_t n = std::min(prompt.size(), kvtier::n_conversation_tokens);
    return { prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(n) };
}

inline bool has_media(const std::vector<kvtier::token> & tokens) {
    return std::find(tokens.begin(), tokens.end(), LLAMA_TOKEN_NULL) != tokens.end();
}

} // namespace llama_run

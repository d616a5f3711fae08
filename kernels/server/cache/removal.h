// What somebody asked to remove, and whose state it concerns. Pure.
#pragma once

#include "kvtier/keys.h"
#include "llama/sequence_store.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace llama_run {

// Whose slot it is when a request was in it that brings no ticket: one of the answers of n > 1, an embedding. It is not an id
// that a client can have.
inline constexpr const char * nobody = "\n";

// All of a user, or one conversation.
struct removal {
    std::string user;
    bool        everything = false;
    uint64_t    hash       = 0;
    size_t      n_tokens   = 0; // tokens of the conversation that name it; 0 if that is not known

    // Whether state of these tokens is part of it, or goes on from it.
    bool concerns(const sequence_scope & scope, const std::vector<kvtier::token> & tokens) const {
        return scope.user == nobody ||
               (scope.user == user && (everything || names(tokens, tokens.size()) || names(tokens, n_tokens)));
    }

private:
    bool names(const std::vector<kvtier::token> & tokens, size_t n) const {
        return n > 0 && n <= tokens.size() && kvtier::conversation_hash(tokens.data(), n) == hash;
    }
};

} // namespace llama_run

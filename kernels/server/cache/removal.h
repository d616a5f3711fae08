// What somebody asked to remove, and whose state it concerns. Pure.
#pragma once

#include "kvtier/file_names.h"
#include "kvtier/keys.h"
#include "llama/sequence_store.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace llama_run {

// Whose slot it is when a request was in it that brings no ticket: one of the answers of n > 1, an embedding. It is not an id
// that a client can have.
inline constexpr const char * nobody = "\n";

// What came of it.
struct removal_result {
    uint64_t bytes_freed    = 0;
    bool     is_shared      = false; // there is a shared folder
    bool     shared_removed = true;  // nothing of it is left there that this server knows of
    uint64_t shared_files   = 0;     // that went
};

// It is all of a user or of everybody, or one conversation.
struct removal {
    kvtier::key name_space{}; // of the user
    bool        everything = false;
    bool        of_all     = false; // users
    uint64_t    hash       = 0;
    size_t      n_tokens   = 0; // tokens of the conversation that name it, where tokens do; 0 if that is not known

    // Whether state of these tokens is part of it, or goes on from it. conversation: which one its request belongs to; 0: the
    // tokens tell. They are asked in any case: conversations of an older store have such names alone.
    bool concerns(const sequence_scope & scope, uint64_t conversation, const std::vector<kvtier::token> & tokens) const {
        return scope.user == nobody ||
               ((of_all || kvtier::user_key(scope.user) == name_space) &&
                (everything || (conversation != 0 && conversation == hash) ||
                 names(tokens, tokens.size()) || names(tokens, n_tokens)));
    }

    // Whether this conversation is part of it, by its name.
    bool concerns(const kvtier::conversation_id & id) const {
        return (of_all || id.first == name_space) && (everything || id.second == hash);
    }

private:
    bool names(const std::vector<kvtier::token> & tokens, size_t n) const {
        return n > 0 && n <= tokens.size() && kvtier::conversation_hash(tokens.data(), n) == hash;
    }
};

} // namespace llama_run

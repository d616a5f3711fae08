// Which conversation a request belongs to, what that is about, and how long it is to be kept, as far as its client says so.
//
// It decides how state is listed, limited and removed, and which slot a request prefers; never what may be reused. The first of
// these that is there names it:
//
//   llama_conversation_id   in the body of any API
//   X-Conversation-Id       a header
//   prompt_cache_key        in the body of any API
//   metadata.user_id        Claude Code's session in it
//   the prompt              through the end of the user's first message, or its first tokens: kvtier/keys.h
//
// Thread safety: all functions are pure.
#pragma once

#include "server/user_id.h"

#include "kvtier/lifetime.h"
#include "kvtier/store.h"

#include "chat.h"
#include "json.h"

#include <string>
#include <vector>

namespace llama_run {

inline constexpr const char * conversation_header = "X-Conversation-Id";

struct conversation_request {
    std::string             key;   // empty: the client gives none
    std::string             title; // the first words of the user; empty: there are none
    size_t                  n_greetings = 0; // messages of the assistant before the user's first
    kvtier::lifetime_change change;
};

// Throws std::invalid_argument, naming the field and what it takes, for a llama_conversation_id or llama_cache that is none. What
// other vendors' fields say is understood or passed over. converted: the body came through keep_conversation.
conversation_request conversation_of_request(const http_headers & headers, const common_json & body, bool converted);

// The same for {"ttl": ..., "expire": ...}, which stands in a field of this name.
kvtier::lifetime_change lifetime_of(const common_json & value, const std::string & name);

// Called where an Anthropic body is converted: what of the original says which conversation it is and how long it is kept.
void keep_conversation(const common_json & anthropic, common_json & converted);

// The conversation of a prompt.
kvtier::conversation_facts facts_of(const conversation_request & said, const std::vector<kvtier::token> & tokens,
                                    const common_chat_msg_spans & messages);

// The words of the user's first message, without what agents put before them, in one line and at most 80 characters.
std::string title_of(const common_json & messages);

} // namespace llama_run

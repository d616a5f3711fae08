// Conversations that do not end where the context ends: `--context-overflow evict`, or `llama_context_overflow` in a request.
//
// Before the chat template is applied, behind the conversions of all APIs, the history is cut by kernels/history. What is left
// out is told in the answer and left in the spool for the memory. Shortly before the next cut, what that one will keep is
// evaluated ahead.
//
//   fit      HTTP worker   cuts the messages of a body that is being parsed
//   admit    HTTP worker   the same thread, once it is known whose request it is: leaves what was dropped, plans ahead
//
// Without the flag and the field nothing of a body is changed.
#pragma once

#include "server/cache_report.h"
#include "server/conversation.h"
#include "server/overflow/ahead_warmer.h"
#include "server/overflow/archive_spool.h"
#include "server/overflow/fit_messages.h"
#include "server/overflow/message_counter.h"

#include "kvtier/thread_annotations.h"

#include "common.h"
#include "json.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace llama_run {

// Stands where messages were left out, at the head of the first message behind them. It never changes: it is part of prompts
// that are stored.
inline constexpr const char * left_out_note =
    "[Earlier messages of this conversation were left out here. A search in the memory, if there is one, can find them.]";

class context_overflow {
public:
    ~context_overflow() { close(); }

    // The context must stay until close.
    void open(const common_params & params, const llama_context * target);
    void close();

    // Throws std::invalid_argument for a field that says neither error nor evict.
    void fit(common_json & body, const server_chat_params & chat);

    // Of the body that this thread has fitted last. A chat that may be cut is named by how it began, where its client gives it no
    // name: its first message will not be in its prompts for ever.
    static void     name_conversation(conversation_request & asked);
    static bool     was_cut(); // whether anything of it was dropped
    context_dropped admit(const std::string & user, const conversation_request & asked);

    // The calling thread parses bodies that are to stay as they are.
    static void never_on_this_thread();

    common_json describe() const;

    ahead_warmer ahead; // on where there is a cache to keep what it evaluates; state_cache opens it

private:
    uint64_t room_for(const common_json & body, message_counter & counter) const;

    std::shared_ptr<message_counter> counter_of(const server_chat_params & chat);
    std::shared_ptr<archive_spool>   spool_now() const;

    const llama_vocab *   vocab  = nullptr;
    int32_t               n_ctx  = 0;
    bool                  evicts = false; // unless the request says otherwise
    std::atomic<uint64_t> n_cut_requests{ 0 };

    mutable kvtier::mutex            mu;
    std::shared_ptr<archive_spool>   spool GUARDED_BY(mu);   // with the requests that are leaving something there
    std::shared_ptr<message_counter> counter GUARDED_BY(mu);
};

} // namespace llama_run

#include "server/overflow/context_overflow.h"

#include "server/json_fields.h"

#include "history/cut.h"

#include "log.h"
#include "server-common.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace llama_run {

static constexpr const char * request_field = "llama_context_overflow";

// So much of the context is left for the answer. It does not follow the request's max_tokens: the cut would move with it.
static constexpr int32_t answer_part  = 8; // of the context, an eighth
static constexpr int32_t max_answer   = 8192;
static constexpr int32_t n_end_tokens = 32; // of what templates put at the head and at the end

// What was cut from the body that a thread parses, until the request is let in.
struct cut_body {
    context_dropped                     dropped;
    std::vector<archive_spool::message> messages;      // that were dropped
    std::string                         beginning;     // through the user's first message, which no cut changes
    common_json                         ahead;         // the body behind the next cut; null while that is far
    const server_chat_params *          chat = nullptr;
};

static thread_local cut_body                   last_cut;
static thread_local bool                       never_cuts = false;
static std::atomic<context_overflow *>         serving{ nullptr };

void fit_messages(common_json & body, const server_chat_params & chat) {
    last_cut = {};
    context_overflow * const server = serving;
    if (server != nullptr && !never_cuts) {
        server->fit(body, chat);
    }
}

void context_overflow::never_on_this_thread() {
    never_cuts = true;
}

bool context_overflow::was_cut() {
    return last_cut.dropped.n_messages > 0;
}

void context_overflow::open(const common_params & params, const llama_context * target) {
    const llama_model * model = llama_get_model(target);
    n_ctx = std::min(static_cast<int32_t>(llama_n_ctx_seq(target)), llama_model_n_ctx_train(model));
    if (params.kv_unified_per_slot > 0) {
        n_ctx = std::min(n_ctx, params.kv_unified_per_slot);
    }
    vocab  = llama_model_get_vocab(model);
    evicts = params.cache_ssd.evict;
    if (!params.cache_ssd.spool.empty()) {
        kvtier::mutex_lock guard(mu);
        spool = std::make_shared<archive_spool>(kvtier::posix_env(), params.cache_ssd.spool, [](const std::string & trouble) {
            LOG_WRN("context: messages that were dropped are not archived: %s\n", trouble.c_str());
        });
    }
    serving = this;
}

void context_overflow::close() {
    context_overflow * self = this;
    serving.compare_exchange_strong(self, nullptr);
    ahead.close();
    std::shared_ptr<archive_spool> closing; // It writes what it has, which must not hold up those who want the lock.
    kvtier::mutex_lock guard(mu);
    std::swap(closing, spool);
    counter.reset();
    guard.unlock();
}

std::shared_ptr<message_counter> context_overflow::counter_of(const server_chat_params & chat) {
    kvtier::mutex_lock guard(mu);
    if (!counter) {
        counter = std::make_shared<message_counter>(vocab, chat.tmpls.get(), chat.use_jinja);
    }
    return counter;
}

std::shared_ptr<archive_spool> context_overflow::spool_now() const {
    kvtier::mutex_lock guard(mu);
    return spool;
}

//
// fit
//

static bool wants_evict(const common_json & body, bool by_default) {
    if (!body.contains(request_field) || body.at(request_field).is_null()) {
        return by_default;
    }
    const common_json & said = body.at(request_field);
    const std::string   word = said.is_string() ? said.get<std::string>() : std::string();
    if (word != "error" && word != "evict") {
        throw std::invalid_argument(std::string(request_field) + " must be \"error\" or \"evict\"");
    }
    return word == "evict";
}

static history::role role_of(const std::string & name) {
    return name == "system" || name == "developer" ? history::role::system
         : name == "user"                          ? history::role::user
         : name == "assistant"                     ? history::role::assistant : history::role::tool;
}

static history::message look_at(const common_json & message, uint32_t n_tokens) {
    history::message out;
    out.role     = role_of(string_at(message, "role"));
    out.n_tokens = n_tokens;
    if (message.contains("tool_calls") && message.at("tool_calls").is_array()) {
        for (const common_json & call : message.at("tool_calls")) {
            out.calls.push_back(string_at(call, "id"));
        }
    }
    if (message.contains("tool_call_id")) {
        out.results.push_back(string_at(message, "tool_call_id"));
    }
    return out;
}

static void put_note(common_json & message) {
    common_json & content = message["content"];
    if (content.is_array()) {
        common_json parts = common_json::array();
        parts.push_back({ { "type", "text" }, { "text", left_out_note } });
        parts.insert(content);
        content = std::move(parts);
    } else if (content.is_string()) {
        content = std::string(left_out_note) + "\n\n" + content.get<std::string>();
    }
}

static common_json pick(const common_json & messages, const std::vector<history::range> & ranges) {
    common_json out     = common_json::array();
    bool        noted   = false;
    size_t      n_taken = 0;
    for (const history::range & r : ranges) {
        for (size_t i = r.begin; i < r.end; i++) {
            common_json message = messages.at(i);
            // System messages stay, so the first other one behind what is left out begins an exchange.
            if (!noted && i > n_taken && string_at(message, "role") == "user") {
                put_note(message);
                noted = true;
            }
            n_taken++;
            out.push_back(std::move(message));
        }
    }
    return out;
}

uint64_t context_overflow::room_for(const common_json & body, message_counter & tokens) const {
    int64_t room = n_ctx - std::min(n_ctx / answer_part, max_answer) - n_end_tokens;
    if (body.contains("tools") && body.at("tools").is_array() && !body.at("tools").empty()) {
        room -= tokens.count(body.at("tools").dump_safe());
    }
    return static_cast<uint64_t>(std::max<int64_t>(room, 0));
}

void context_overflow::fit(common_json & body, const server_chat_params & chat) {
    if (!wants_evict(body, evicts) || !body.contains("messages") || !body.at("messages").is_array()) {
        return;
    }
    const common_json & messages = body.at("messages");
    const auto          tokens   = counter_of(chat);
    std::vector<std::string>      texts;
    std::vector<history::message> seen;
    for (const common_json & message : messages) {
        if (!message.is_object()) {
            return; // upstream says what is wrong with it
        }
        texts.push_back(message.dump_safe());
        seen.push_back(look_at(message, tokens->count(message, texts.back())));
    }
    history::limits limits;
    limits.n_tokens      = room_for(body, *tokens);
    limits.n_note_tokens = tokens->count(left_out_note);
    const history::cut cut = history::cut_history(seen, limits);

    last_cut.dropped = { static_cast<uint32_t>(cut.n_dropped), static_cast<uint32_t>(cut.n_tokens_dropped) };
    last_cut.chat    = &chat;
    for (size_t i = 0; i < seen.size() && (i == 0 || seen[i - 1].role != history::role::user); i++) {
        last_cut.beginning += texts[i];
    }
    if (!cut.ahead.empty() && ahead.is_on()) {
        last_cut.ahead             = body;
        last_cut.ahead["messages"] = pick(messages, cut.ahead);
    }
    if (cut.n_dropped == 0) {
        return;
    }
    size_t next = 0; // the next message that is kept or dropped
    for (const history::range & r : cut.kept) {
        for (; next < r.begin; next++) {
            last_cut.messages.push_back({ next, std::move(texts[next]) });
        }
        next = r.end;
    }
    body["messages"] = pick(messages, cut.kept);
}

//
// admit
//

void context_overflow::name_conversation(conversation_request & asked) {
    if (asked.key.empty() && !last_cut.beginning.empty()) {
        asked.key = "begins:" + last_cut.beginning;
    }
}

context_dropped context_overflow::admit(const std::string & user, const conversation_request & asked) {
    cut_body cut = std::move(last_cut);
    last_cut     = {};
    n_cut_requests += cut.dropped.n_messages > 0;
    if (cut.ahead.is_object()) {
        ahead.plan({ user, asked, std::move(cut.ahead), cut.chat, nullptr });
    }
    if (const auto to = spool_now(); to && cut.dropped.n_messages > 0) {
        to->leave(user, kvtier::conversation_of_key(asked.key), std::move(cut.messages));
    }
    return cut.dropped;
}

common_json context_overflow::describe() const {
    const auto                  to   = spool_now();
    const archive_spool::counts left = to ? to->count() : archive_spool::counts();
    return {
        { "requests_cut",      n_cut_requests.load() },
        { "messages_archived", left.n_left },
        { "messages_refused",  left.n_refused },
        { "tokens_ahead",      ahead.evaluated() },
        { "pending_ahead",     ahead.pending() },
    };
}

} // namespace llama_run

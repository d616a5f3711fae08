#include "server/overflow/message_counter.h"

#include "kvtier/blake2b.h"

#include "chat.h"
#include "common.h"

#include <array>
#include <exception>
#include <vector>

namespace llama_run {

static constexpr uint32_t n_media_tokens = 1024; // of a picture or a sound: most models take some hundred to a few thousand
static constexpr uint32_t n_call_tokens  = 16;   // of the words around a tool call's name and arguments
static constexpr size_t   max_known      = 65536;

static common_chat_msg says(const char * role, const char * content, const char * thoughts = "") {
    common_chat_msg m;
    m.role              = role;
    m.content           = content;
    m.reasoning_content = thoughts;
    return m;
}

static std::string rendered(const common_chat_templates * templates, bool use_jinja, std::vector<common_chat_msg> messages) {
    common_chat_templates_inputs inputs;
    inputs.messages              = std::move(messages);
    inputs.use_jinja             = use_jinja;
    inputs.add_generation_prompt = false;
    return common_chat_templates_apply(templates, inputs).prompt;
}

message_counter::message_counter(const llama_vocab * vocab, const common_chat_templates * templates, bool use_jinja) :
    vocab(vocab) {
    const common_chat_msg user      = says("user", "Hello");
    const common_chat_msg assistant = says("assistant", "Hello");
    const common_chat_msg thinks    = says("assistant", "Hello", "Zyzzyva");
    try {
        const uint32_t n_short = tokens_of(rendered(templates, use_jinja, { user, assistant, user }));
        const uint32_t n_long  = tokens_of(rendered(templates, use_jinja, { user, assistant, user, assistant, user }));
        const uint32_t n_texts = 2 * tokens_of("Hello");
        n_around       = n_long > n_short + n_texts ? (n_long - n_short - n_texts + 1) / 2 : 0;
        keeps_thoughts = rendered(templates, use_jinja, { user, thinks, user }).find("Zyzzyva") != std::string::npos;
    } catch (const std::exception &) {
        // Some templates refuse even this; what is assumed then is on the safe side.
    }
}

uint32_t message_counter::tokens_of(const std::string & text) const {
    return static_cast<uint32_t>(common_tokenize(vocab, text, false, true).size());
}

template <typename Count>
uint32_t message_counter::remembered(const std::string & name, const Count & count_it) {
    std::array<char, 16> digest;
    kvtier::blake2b hash(digest.size());
    hash.update(name.data(), name.size());
    hash.finish(reinterpret_cast<uint8_t *>(digest.data()));
    const std::string key(digest.data(), digest.size());
    {
        kvtier::mutex_lock guard(mu);
        const auto found = known.find(key);
        if (found != known.end()) {
            return found->second;
        }
    }
    const uint32_t n = count_it();
    kvtier::mutex_lock guard(mu);
    if (known.size() >= max_known) {
        known.clear();
    }
    known[key] = n;
    return n;
}

uint32_t message_counter::count(const std::string & text) {
    return remembered(text, [&] { return tokens_of(text); });
}

uint32_t message_counter::count(const common_json & message, const std::string & dumped) {
    return remembered(dumped, [&] { return count_anew(message); });
}

static std::string text_of(const common_json & value) {
    return value.is_string() ? value.get<std::string>() : value.is_null() ? std::string() : value.dump_safe();
}

static const common_json & at_or_null(const common_json & object, const char * name) {
    static const common_json nothing;
    return object.is_object() && object.contains(name) ? object.at(name) : nothing;
}

uint32_t message_counter::count_anew(const common_json & message) const {
    uint32_t            n       = n_around;
    const common_json & content = at_or_null(message, "content");
    if (content.is_array()) {
        for (const common_json & part : content) {
            const common_json & text = at_or_null(part, "text");
            n += text.is_string() ? tokens_of(text.get<std::string>()) : n_media_tokens;
        }
    } else {
        n += tokens_of(text_of(content));
    }
    if (keeps_thoughts) {
        n += tokens_of(text_of(at_or_null(message, "reasoning_content")));
    }
    const common_json & calls = at_or_null(message, "tool_calls");
    if (calls.is_array()) {
        for (const common_json & call : calls) {
            const common_json & function = at_or_null(call, "function");
            n += n_call_tokens + tokens_of(text_of(at_or_null(function, "name"))) +
                 tokens_of(text_of(at_or_null(function, "arguments")));
        }
    }
    return n;
}

} // namespace llama_run

#include "server/conversation.h"

#include "server/json_fields.h"

#include <algorithm>
#include <stdexcept>

namespace llama_run {

// Under this name the conversion of Anthropic bodies hands on what cache_control says. It counts in converted bodies alone.
static constexpr const char * converted_ttl = "__cache_control_ttl";

//
// the key
//

static std::string checked_key(const common_json & body) {
    constexpr const char * name = "llama_conversation_id";
    if (!body.contains(name) || body.at(name).is_null()) {
        return "";
    }
    if (!body.at(name).is_string()) {
        throw std::invalid_argument(std::string(name) + " must be a string");
    }
    return body.at(name).get<std::string>();
}

static std::string key_of_header(const http_headers & headers) {
    for (const auto & [name, value] : headers) {
        if (same_header(name, conversation_header)) {
            return value;
        }
    }
    return "";
}

static std::string key_of(const http_headers & headers, const common_json & body, bool converted) {
    std::string key = checked_key(body);
    if (key.empty()) {
        key = key_of_header(headers);
    }
    if (key.empty()) {
        key = string_at(body, "prompt_cache_key");
    }
    if (key.empty() && converted && body.contains(converted_metadata_user)) {
        key = session_of_metadata(body.at(converted_metadata_user));
    }
    return key;
}

//
// the title
//

static constexpr size_t max_title = 80; // characters

// Agents put these before what the user has said.
static std::string without_reminders(std::string text) {
    static const std::vector<std::string> names = { "system-reminder", "environment_context", "user_instructions" };
    for (bool found = true; found;) {
        found = false;
        text.erase(0, std::min(text.find_first_not_of(" \t\r\n"), text.size()));
        for (const std::string & name : names) {
            const std::string end = "</" + name + ">";
            const size_t      at  = text.rfind("<" + name + ">", 0) == 0 ? text.find(end) : std::string::npos;
            if (at != std::string::npos) {
                text.erase(0, at + end.size());
                found = true;
            }
        }
    }
    return text;
}

// What stands between words becomes one space. Characters are not cut in half.
static std::string one_line(const std::string & text) {
    std::string out;
    size_t      n_characters = 0;
    for (const char c : text) {
        const bool is_space   = static_cast<unsigned char>(c) <= ' ' || c == 0x7f;
        const bool goes_on    = (static_cast<unsigned char>(c) & 0xc0) == 0x80; // with the character of the byte before
        const bool is_dropped = is_space && (out.empty() || out.back() == ' ');
        if (is_dropped) {
            continue;
        }
        if (!goes_on && ++n_characters > max_title) {
            break;
        }
        out += is_space ? ' ' : c;
    }
    while (!out.empty() && out.back() == ' ') {
        out.pop_back();
    }
    return out;
}

static std::string words_of(const common_json & content) {
    if (content.is_string()) {
        return without_reminders(content.get<std::string>());
    }
    std::string out;
    if (content.is_array()) {
        for (const common_json & part : content) {
            out += without_reminders(string_at(part, "text")) + " ";
        }
    }
    return out;
}

std::string title_of(const common_json & messages) {
    if (!messages.is_array()) {
        return "";
    }
    for (const common_json & message : messages) {
        if (string_at(message, "role") == "user" && message.contains("content")) {
            const std::string title = one_line(words_of(message.at("content")));
            if (!title.empty()) {
                return title;
            }
        }
    }
    return "";
}

static size_t n_greetings_of(const common_json & messages) {
    size_t n = 0;
    for (size_t i = 0; messages.is_array() && i < messages.size() && string_at(messages.at(i), "role") != "user"; i++) {
        n += string_at(messages.at(i), "role") == "assistant";
    }
    return n;
}

//
// how long it is kept
//

static std::optional<int64_t> duration_at(const common_json & object, const std::string & of, const char * name,
                                          std::optional<int64_t> (*parse)(const std::string &), const char * known) {
    if (!object.contains(name) || object.at(name).is_null()) {
        return std::nullopt;
    }
    const std::optional<int64_t> ms = object.at(name).is_string() ? parse(object.at(name).get<std::string>()) : std::nullopt;
    if (!ms) {
        throw std::invalid_argument((of.empty() ? "" : of + ".") + name + " must be " + known);
    }
    return ms;
}

kvtier::lifetime_change lifetime_of(const common_json & value, const std::string & name) {
    kvtier::lifetime_change out;
    if (value.is_null()) {
        return out;
    }
    if (!value.is_object()) {
        throw std::invalid_argument((name.empty() ? "the body" : name) + R"( must be an object like {"ttl": "1h"})");
    }
    out.ttl_ms    = duration_at(value, name, "ttl", kvtier::parse_ttl, "5m, 1h, 24h, forever or none");
    out.expire_ms = duration_at(value, name, "expire", kvtier::parse_expire, "a duration like 90s, 30m, 12h or 7d, or none");
    return out;
}

static kvtier::lifetime_change change_of(const common_json & body, bool converted) {
    kvtier::lifetime_change out;
    if (body.contains("llama_cache")) {
        out = lifetime_of(body.at("llama_cache"), "llama_cache");
    }
    if (!out.ttl_ms) {
        out.ttl_ms = kvtier::parse_ttl(string_at(body, converted ? converted_ttl : "prompt_cache_retention"));
    }
    return out;
}

// The longest ttl that is written out. Without one, Anthropic's own cache forgets after 5 minutes; ours has no reason to.
static void find_ttl(const common_json & value, std::string & longest) {
    if (value.is_array()) {
        for (const common_json & item : value) {
            find_ttl(item, longest);
        }
        return;
    }
    if (!value.is_object()) {
        return;
    }
    if (value.contains("cache_control")) {
        const std::string ttl = string_at(value.at("cache_control"), "ttl");
        if (kvtier::parse_ttl(ttl).value_or(0) > kvtier::parse_ttl(longest).value_or(0)) {
            longest = ttl;
        }
    }
    for (const char * name : { "system", "tools", "messages", "content" }) {
        if (value.contains(name)) {
            find_ttl(value.at(name), longest);
        }
    }
}

void keep_conversation(const common_json & anthropic, common_json & converted) {
    for (const char * name : { "llama_conversation_id", "prompt_cache_key", "llama_cache" }) {
        if (anthropic.contains(name)) {
            converted[name] = anthropic.at(name);
        }
    }
    std::string ttl;
    find_ttl(anthropic, ttl);
    if (!ttl.empty()) {
        converted[converted_ttl] = ttl;
    }
}

//
// all of it
//

conversation_request conversation_of_request(const http_headers & headers, const common_json & body, bool converted) {
    conversation_request out;
    out.key    = key_of(headers, body, converted);
    out.title  = body.contains("messages") ? title_of(body.at("messages")) : std::string();
    out.change = change_of(body, converted);
    out.n_greetings = body.contains("messages") ? n_greetings_of(body.at("messages")) : 0;
    return out;
}

// Of the user; 0: it is not known. Where a template has a system message of its own, upstream takes that for a part of what the
// user's messages begin with, and finds none behind another message: the first answer, behind all greetings, then begins where
// the first message ends.
static size_t end_of_first_message(const common_chat_msg_spans & messages, size_t n_greetings) {
    size_t n_before = 0; // messages of the assistant
    size_t answer   = 0;
    for (const common_chat_msg_span & span : messages.spans) {
        if (span.role == COMMON_CHAT_ROLE_USER) {
            return span.pos + span.len;
        }
        if (span.role == COMMON_CHAT_ROLE_ASSISTANT && n_before++ == n_greetings) {
            answer = span.pos;
        }
    }
    return answer;
}

kvtier::conversation_facts facts_of(const conversation_request & said, const std::vector<kvtier::token> & tokens,
                                    const common_chat_msg_spans & messages) {
    kvtier::conversation_facts out;
    out.title  = said.title;
    out.change = said.change;
    if (const size_t n_naming = end_of_first_message(messages, said.n_greetings); n_naming > 0) {
        out.n_naming = static_cast<uint32_t>(std::min(n_naming, tokens.size()));
        out.hash     = kvtier::conversation_through(tokens.data(), out.n_naming);
    }
    if (!said.key.empty()) {
        out.hash = kvtier::conversation_of_key(said.key);
    }
    return out;
}

} // namespace llama_run

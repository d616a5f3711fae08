#include "server/warm/continuations.h"

#include "server/json_fields.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>

namespace llama_run {

// Words that begin in different ways: a tokeniser that takes a line's end together with what follows parts before it.
static const std::vector<std::string> & first_words() {
    static const std::vector<std::string> words = { "a", "\n\nb", "  c", "1" };
    return words;
}

static common_json said(const char * role, const std::string & text) {
    return { { "role", role }, { "content", text } };
}

static common_json array_at(const common_json & body, const char * name) {
    if (!body.contains(name) || body.at(name).is_null()) {
        return common_json::array();
    }
    if (!body.at(name).is_array()) {
        throw std::invalid_argument("\"" + std::string(name) + "\" must be an array");
    }
    return body.at(name);
}

static bool has(const common_json & body, const char * name) {
    return body.contains(name) && !body.at(name).is_null();
}

static bool has_anthropic_tools(const common_json & body) {
    const common_json tools = array_at(body, "tools");
    return !tools.empty() && tools.at(0).is_object() && tools.at(0).contains("input_schema");
}

std::string route_of_body(const common_json & body) {
    if (!body.is_object()) {
        throw std::invalid_argument("the body must be a JSON object: that of a chat request, or {\"prompt\": ...}");
    }
    if (has(body, "prompt")) {
        return "/completion";
    }
    if (has(body, "input") || has(body, "instructions")) {
        return "/v1/responses";
    }
    if (has(body, "system") || has_anthropic_tools(body)) {
        return "/v1/messages";
    }
    if (has(body, "messages") || has(body, "tools")) {
        return "/v1/chat/completions";
    }
    throw std::invalid_argument("there is no prompt in the body: give \"messages\", \"tools\", or a \"prompt\"");
}

static std::vector<common_json> continued_prompt(const common_json & body) {
    const common_json & prompt = body.at("prompt");
    if (prompt.is_array() && std::all_of(prompt.begin(), prompt.end(), [](const common_json & t) { return t.is_number(); })) {
        return { body };
    }
    if (!prompt.is_string()) {
        throw std::invalid_argument("\"prompt\" must be a text, or an array of tokens: one prompt at a time");
    }
    std::vector<common_json> out;
    for (const std::string & word : first_words()) {
        common_json one = body;
        one["prompt"] = prompt.get<std::string>() + word;
        out.push_back(one);
    }
    return out;
}

// The messages as an array, under the name that the route has for them. Responses may have a single text.
static common_json messages_of(const std::string & route, const common_json & body, const char * name) {
    if (route == "/v1/responses" && body.contains(name) && body.at(name).is_string()) {
        return common_json::array({ said("user", body.at(name).get<std::string>()) });
    }
    return array_at(body, name);
}

// After a user's message (or a tool's) comes an answer, after everything else a user's message.
static bool answer_follows(const common_json & messages) {
    if (messages.empty() || !messages.at(messages.size() - 1).is_object()) {
        return false;
    }
    const common_json & last = messages.at(messages.size() - 1);
    const std::string   role = string_at(last, "role");
    return role == "user" || role == "tool" || string_at(last, "type") == "function_call_output";
}

std::vector<common_json> continuations(const std::string & route, const common_json & body) {
    if (route == "/completion") {
        return continued_prompt(body);
    }
    const char * const name     = route == "/v1/responses" ? "input" : "messages";
    const common_json  messages = messages_of(route, body, name);
    std::vector<common_json> out;
    const auto add = [&](const common_json & all) {
        common_json one = body;
        one[name] = all;
        out.push_back(one);
    };
    if (answer_follows(messages)) {
        // The answer to it, and what a conversation looks like that has had one.
        add(messages);
        common_json later = messages;
        later.push_back(said("assistant", "a"));
        later.push_back(said("user", "b"));
        add(later);
        return out;
    }
    for (const std::string & word : first_words()) {
        common_json all = messages;
        all.push_back(said("user", word));
        add(all);
    }
    return out;
}

static bool is_marked(const common_json & block) {
    return block.is_object() && has(block, "cache_control");
}

static bool has_marked(const common_json & content) {
    return content.is_array() && std::any_of(content.begin(), content.end(), is_marked);
}

common_json cached_prefix(const common_json & anthropic) {
    common_json out = anthropic;
    for (const char * name : { "max_tokens", "stream" }) {
        if (out.contains(name)) {
            out.erase(name);
        }
    }
    const common_json     messages = array_at(anthropic, "messages");
    std::optional<size_t> n_kept; // messages up to the last mark
    if (has_marked(array_at(anthropic, "tools")) || (anthropic.contains("system") && has_marked(anthropic.at("system")))) {
        n_kept = 0;
    }
    for (size_t i = 0; i < messages.size(); i++) {
        if (messages.at(i).is_object() && messages.at(i).contains("content") && has_marked(messages.at(i).at("content"))) {
            n_kept = i + 1;
        }
    }
    if (n_kept && *n_kept < messages.size()) {
        common_json kept = common_json::array();
        for (size_t i = 0; i < *n_kept; i++) {
            kept.push_back(messages.at(i));
        }
        out["messages"] = kept;
    }
    return out;
}

} // namespace llama_run

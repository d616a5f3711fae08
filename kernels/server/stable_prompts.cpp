#include "server/stable_prompts.h"

#include "server/json_fields.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

namespace llama_run {

// Bits, in the order of the table.
enum change : uint8_t { billing_header = 1, late_system = 2, tool_order = 4 };

const std::vector<volatile_text> & volatile_texts() {
    static const std::vector<volatile_text> known = {
        { "claude-code-billing-header", "Claude Code", "2.1.20 to 2.1.325",
          "the first block of the system prompt, a line `x-anthropic-billing-header: ...` with a number made from the user's first "
          "words, is left out" },
        { "claude-code-late-system", "Claude Code", "2.1.197 to 2.1.325",
          "system messages between the user's first words and the first answer, which say the same in every conversation, are put "
          "at the end of the system prompt" },
        { "tool-order", "any", "with --stable-tools only",
          "tools are sorted by name and the keys of their schemas alphabetically" },
    };
    return known;
}

//
// Claude Code
//

// A whole block of one line. What follows the version changes from release to release.
static bool is_billing_header(const std::string & text) {
    static const std::string begin = "x-anthropic-billing-header: cc_version=";
    return text.rfind(begin, 0) == 0 && text.size() < 1024 &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

static bool drop_billing_header(common_json & body) {
    if (!body.contains("system") || !body.at("system").is_array() || body.at("system").empty() ||
        !is_billing_header(string_at(body.at("system").at(0), "text"))) {
        return false;
    }
    body["system"].erase(size_t(0));
    return true;
}

// The text of a message's content: a string, or blocks of text alone. False for anything else.
static bool text_of(const common_json & message, std::string & out) {
    if (!message.contains("content")) {
        return false;
    }
    const common_json & content = message.at("content");
    if (content.is_string()) {
        out = content.get<std::string>();
        return true;
    }
    if (!content.is_array()) {
        return false;
    }
    for (const common_json & block : content) {
        if (string_at(block, "type") != "text") {
            return false;
        }
        out += string_at(block, "text");
    }
    return true;
}

static bool move_late_system(common_json & body) {
    if (!body.contains("system") || !body.at("system").is_array() || !body.contains("messages") || !body.at("messages").is_array()) {
        return false;
    }
    common_json kept     = common_json::array();
    bool        answered = false;
    bool        moved    = false;
    for (const common_json & message : body.at("messages")) {
        const std::string role = string_at(message, "role");
        std::string       text;
        answered = answered || role == "assistant";
        if (!answered && role == "system" && text_of(message, text)) {
            body["system"].push_back({ { "type", "text" }, { "text", "\n\n" + text } });
            moved = true;
        } else {
            kept.push_back(message);
        }
    }
    if (moved) {
        body["messages"] = std::move(kept);
    }
    return moved;
}

//
// tools
//

static common_json sorted_keys(const common_json & value) {
    if (value.is_array()) {
        common_json out = common_json::array();
        for (const common_json & item : value) {
            out.push_back(sorted_keys(item));
        }
        return out;
    }
    if (!value.is_object()) {
        return value;
    }
    std::vector<std::string> names;
    for (const auto & [name, unused] : value.items()) {
        names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    common_json out = common_json::object();
    for (const std::string & name : names) {
        out[name] = sorted_keys(value.at(name));
    }
    return out;
}

// Chat Completions nest the name in "function".
static std::string tool_name(const common_json & tool) {
    return tool.is_object() && tool.contains("function") ? string_at(tool.at("function"), "name") : string_at(tool, "name");
}

static common_json sorted_tools(const common_json & tools) {
    std::vector<std::pair<std::string, common_json>> all;
    for (const common_json & tool : tools) {
        all.emplace_back(tool_name(tool), sorted_keys(tool));
    }
    std::stable_sort(all.begin(), all.end(), [](const auto & a, const auto & b) { return a.first < b.first; });
    common_json out = common_json::array();
    for (auto & [name, tool] : all) {
        out.push_back(std::move(tool));
    }
    return out;
}

static bool has_tools(const common_json & body) {
    return body.contains("tools") && body.at("tools").is_array() && !body.at("tools").empty();
}

static constexpr size_t max_watched = 256;

void tool_watch::see(const std::string & user, const common_json & body) {
    if (!has_tools(body)) {
        return;
    }
    const std::hash<std::string> hash;
    const std::string sorted = user + " " + std::to_string(hash(sorted_tools(body.at("tools")).dump_safe()));
    const uint64_t    given  = hash(body.at("tools").dump_safe());
    kvtier::mutex_lock guard(mu);
    if (last.size() >= max_watched && last.count(sorted) == 0) {
        last.clear();
    }
    const auto [known, is_new] = last.emplace(sorted, given);
    n_reordered += !is_new && known->second != given;
    known->second = given;
}

uint64_t tool_watch::reordered() const {
    kvtier::mutex_lock guard(mu);
    return n_reordered;
}

common_json stable_names(uint8_t changes) {
    common_json out = common_json::array();
    for (size_t i = 0; i < volatile_texts().size(); i++) {
        if ((changes >> i & 1) != 0) {
            out.push_back(volatile_texts()[i].name);
        }
    }
    return out;
}

// Whoever walks through a body calls itself for each level, and a few ten thousand end the process.
static constexpr size_t max_depth = 512;

static void check_depth(const std::string & text) {
    size_t depth     = 0;
    bool   in_string = false;
    for (size_t i = 0; i < text.size(); i++) {
        const char c = text[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > max_depth) {
                throw std::invalid_argument("the body is nested deeper than " + std::to_string(max_depth) + " levels");
            }
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        }
    }
}

common_json stable_prompt(const std::string & text, const cache_options & options) {
    check_depth(text);
    common_json body = common_json::parse(text);
    if (!body.is_object()) {
        return body; // upstream says what is wrong with it
    }
    int done = 0;
    if (options.stable_prompts && !options.path.empty()) {
        done |= drop_billing_header(body) ? billing_header : 0;
        done |= move_late_system(body) ? late_system : 0;
    }
    if (options.stable_tools && has_tools(body)) {
        body["tools"] = sorted_tools(body.at("tools"));
        done |= tool_order;
    }
    body[stable_field] = done;
    return body;
}

} // namespace llama_run

#include "server/user_id.h"

#include "server/conversation.h"
#include "server/json_fields.h"
#include "server/stable_prompts.h"
#include "server/warm/vendors.h"

#include "kvtier/file_names.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>

namespace llama_run {

static std::string checked(const std::string & name, const common_json & value) {
    if (value.is_null()) {
        return ""; // how clients say that they leave a field out
    }
    if (!value.is_string() || !kvtier::is_user_id(value.get<std::string>())) {
        throw std::invalid_argument(name + " must be a string of at most " + std::to_string(kvtier::max_user_id) +
                                    " letters, digits, '_' and '-'");
    }
    return value.get<std::string>();
}

//
// metadata.user_id
//

static std::string hashed(const char * kind, const std::string & text) {
    return std::string(kind) + "-" + kvtier::hex(kvtier::user_key(text));
}

struct claude_name {
    std::string device;
    std::string account; // may be empty
    std::string session;

    std::string user() const { return hashed("claude", device + "/" + account); }
};

// user_<device>_account_<account>_session_<session>: Claude Code 1.x and 2.0.
static bool is_old_claude(const std::string & text, claude_name & out) {
    static const std::string before_device = "user_", before_account = "_account_", before_session = "_session_";
    const size_t account = text.find(before_account);
    const size_t session = account == std::string::npos ? account : text.find(before_session, account + before_account.size() - 1);
    if (text.rfind(before_device, 0) != 0 || session == std::string::npos) {
        return false;
    }
    const size_t begin = account + before_account.size();
    out.device  = text.substr(before_device.size(), account - before_device.size());
    out.account = session > begin ? text.substr(begin, session - begin) : std::string();
    out.session = text.substr(session + before_session.size());
    return true;
}

// A JSON text with device_id, account_uuid and session_id: Claude Code 2.1.
static bool is_new_claude(const std::string & text, claude_name & out) {
    if (text.empty() || text[0] != '{') {
        return false;
    }
    try {
        const common_json named = common_json::parse(text);
        const std::string device = string_at(named, "device_id");
        if (device.empty() || !named.contains("session_id")) {
            return false;
        }
        out = { device, string_at(named, "account_uuid"), string_at(named, "session_id") };
        return true;
    } catch (const std::exception &) {
        return false; // it only looks like JSON
    }
}

std::string user_of_metadata(const common_json & value) {
    if (value.is_null()) {
        return "";
    }
    if (!value.is_string()) {
        return hashed("metadata", value.dump_safe());
    }
    const std::string text = value.get<std::string>();
    claude_name       claude;
    if (is_new_claude(text, claude) || is_old_claude(text, claude)) {
        return claude.user();
    }
    return kvtier::is_user_id(text) ? text : hashed("metadata", text);
}

std::string session_of_metadata(const common_json & value) {
    claude_name claude;
    if (value.is_string()) {
        const std::string text = value.get<std::string>();
        (void) (is_new_claude(text, claude) || is_old_claude(text, claude));
    }
    return claude.session;
}

void keep_user(const common_json & anthropic, common_json & converted) {
    converted[converted_metadata_user] = nullptr;
    if (anthropic.contains("metadata") && anthropic.at("metadata").is_object() && anthropic.at("metadata").contains("user_id")) {
        converted[converted_metadata_user] = anthropic.at("metadata").at("user_id");
    }
    for (const char * name :
         { "llama_user_id", "llama_conversation_id", "llama_context_overflow", "prompt_cache_key", stable_field }) {
        if (anthropic.contains(name)) {
            converted[name] = anthropic.at(name);
        }
    }
    keep_conversation(anthropic, converted);
    keep_warm(anthropic, converted);
}

//
// whose it is
//

bool same_header(const std::string & a, const std::string & b) {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
        return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
    });
}

// Null where there is no such header, or none is trusted. A client that sends it twice, in whatever spelling, is refused: which
// of them the proxy has set, nobody knows.
static const std::string * user_header(const http_headers & headers, const cache_options & options) {
    const std::string * found = nullptr;
    for (const auto & [name, value] : headers) {
        if (options.user_header.empty() || !same_header(name, options.user_header)) {
            continue;
        }
        if (found != nullptr) {
            throw std::invalid_argument("the header " + options.user_header + " is there twice");
        }
        found = &value;
    }
    return found;
}

std::string user_of_request(const http_headers & headers, const common_json & body, bool converted, const cache_options & options) {
    if (!options.user_header.empty()) {
        const std::string * header = user_header(headers, options);
        return header != nullptr ? checked("the header " + options.user_header, *header) : std::string();
    }
    if (body.contains("llama_user_id")) {
        const std::string user = checked("llama_user_id", body.at("llama_user_id"));
        if (!user.empty()) {
            return user;
        }
    }
    const bool metadata = converted && options.metadata_users && body.contains(converted_metadata_user);
    return metadata ? user_of_metadata(body.at(converted_metadata_user)) : std::string();
}

std::string user_of_route(const http_headers & headers, const std::string & named, const cache_options & options) {
    const std::string user = checked("user_id", named);
    if (options.user_header.empty()) {
        return user;
    }
    const std::string * header = user_header(headers, options);
    const std::string   own    = header != nullptr ? checked("the header " + options.user_header, *header) : std::string();
    if (!user.empty() && user != own) {
        throw std::invalid_argument("the header " + options.user_header + " says that this is another user's request");
    }
    return own;
}

std::shared_ptr<void> user_gate::enter(const std::string & user, uint32_t limit) {
    kvtier::mutex_lock guard(shared->mu);
    uint32_t & active = shared->active[user];
    if (limit > 0 && active >= limit) {
        return nullptr;
    }
    active++;
    // The address only says that there is something: an empty shared_ptr would read as a refusal.
    return std::shared_ptr<void>(shared.get(), [counts = shared, user](void *) {
        kvtier::mutex_lock leaving(counts->mu);
        if (--counts->active[user] == 0) {
            counts->active.erase(user);
        }
    });
}

} // namespace llama_run

#include "server/browser_guard.h"

#include "server/printable.h"

#include "common.h"
#include "log.h"
#include "server-common.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <climits>

#include <unistd.h>

namespace llama_run {

static std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

static bool ends_with(const std::string & text, const std::string & end) {
    return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The host of "host:port", "[::1]:port" or "host".
static std::string name_of(const std::string & authority) {
    if (!authority.empty() && authority[0] == '[') {
        return lower(authority.substr(0, std::min(authority.size(), authority.find(']')) + 1));
    }
    std::string name = lower(authority.substr(0, authority.rfind(':')));
    if (!name.empty() && name.back() == '.') {
        name.pop_back(); // a name that is complete, as resolvers write it
    }
    return name;
}

// An address cannot be made to resolve to something else.
static bool is_address(const std::string & name) {
    if (name.size() > 1 && name[0] == '[') {
        return name.back() == ']';
    }
    return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) || c == '.'; });
}

static bool is_local_name(const std::string & name) {
    return name == "localhost" || ends_with(name, ".localhost");
}

static bool is_local(const std::string & name) {
    return is_local_name(name) || name == "[::1]" || (is_address(name) && name.rfind("127.", 0) == 0);
}

static std::atomic<bool> process_has_guard{ false };

bool is_checked_by_router(const std::string & header) {
    return process_has_guard && (header == "origin" || header.rfind("sec-fetch-", 0) == 0);
}

// A router's models may keep prompts, each where its preset says.
static bool has_something_to_guard(const common_params & params) {
    return !params.cache_ssd.path.empty() || !params.mcp_servers_config.empty() || !params.models_preset.empty();
}

browser_guard::browser_guard(const common_params & params) :
    on(has_something_to_guard(params)), any_origin(params.cors_origins == "*"),
    origins(string_split<std::string>(params.cors_origins, ',')) {
    process_has_guard = on;
    // No browser reaches a socket of the file system, and clients there send what they like.
    any_host = std::all_of(params.hostnames.begin(), params.hostnames.end(), [](const auto & h) { return ends_with(h, ".sock"); });
    for (const std::string & name : params.hostnames) {
        hosts.push_back(lower(name));
    }
    // Tools are for pages of this machine alone, whatever a file of settings says.
    const bool has_tools = !params.mcp_servers_config.empty();
    for (const std::string & name : has_tools ? std::vector<std::string>() : params.cache_ssd.allowed_hosts) {
        hosts.push_back(name_of(name));
    }
    hosts.push_back("host.docker.internal"); // how containers reach this machine; no site can have that name
    char own[HOST_NAME_MAX + 1] = {};
    if (gethostname(own, HOST_NAME_MAX) == 0 && own[0] != '\0') {
        const std::string whole = lower(own);
        const std::string label = whole.substr(0, whole.find('.'));
        hosts.insert(hosts.end(), { whole, label, label + ".local" });
    }
}

bool browser_guard::knows_host(const std::string & authority) const {
    const std::string name = name_of(authority);
    return any_host || authority.empty() || is_address(name) || is_local_name(name) ||
           std::find(hosts.begin(), hosts.end(), name) != hosts.end();
}

bool browser_guard::knows_origin(const std::string & origin, const std::string & host) const {
    const size_t scheme_end = origin.find("://");
    if (scheme_end == std::string::npos || origin.find('@') != std::string::npos) {
        return false; // "null": a page without an origin of its own, which any site can make
    }
    if (any_origin || std::find(origins.begin(), origins.end(), origin) != origins.end()) {
        return true;
    }
    // Of programs with a browser inside; no site can have them.
    static const std::set<std::string> own_schemes = { "app", "tauri", "capacitor", "vscode-webview" };
    const std::string authority = origin.substr(scheme_end + 3);
    return own_schemes.count(lower(origin.substr(0, scheme_end))) != 0 || is_local(name_of(authority)) ||
           lower(authority) == lower(host);
}

std::string browser_guard::refused(const std::string & message) const {
    static constexpr size_t max_said = 32;
    {
        kvtier::mutex_lock guard(log->mu);
        if (log->said.size() < max_said && log->said.insert(message).second) {
            LOG_WRN("refused: %s\n", message.c_str());
        }
    }
    return safe_json_to_str({ { "error", { { "code", 403 }, { "message", message }, { "type", "permission_error" } } } });
}

std::string browser_guard::refusal(const request_origin & from) const {
    if (!on) {
        return "";
    }
    if (!knows_host(from.host)) {
        const std::string name = printable(name_of(from.host));
        return refused("this server is not known as '" + name + "': if it should be, start it with --allowed-host " + name);
    }
    if (!from.origin.empty()) {
        if (knows_origin(from.origin, from.host)) {
            return "";
        }
        const std::string origin = printable(from.origin);
        const bool        named  = origin.find("://") != std::string::npos;
        return refused("pages of '" + origin + "' may not use this server: " +
                       (named ? "if they should, start it with --cors-origins " + origin
                              : std::string("serve them from http://localhost, which may")));
    }
    // A browser leaves the Origin out where a page may only load something without reading it. Following a link is fine.
    const bool visits = from.method == "GET" && from.fetch_mode == "navigate" && from.fetch_dest == "document";
    if (from.fetch_site == "cross-site" && !visits) {
        return refused("pages of another site may not use this server: if they should, start it with --cors-origins ORIGIN");
    }
    return "";
}

} // namespace llama_run

#include "server/browser_guard.h"

#include "common.h"
#include "server-common.h"

#include <algorithm>
#include <cctype>
#include <climits>

#include <unistd.h>

namespace llama_run {

static std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

// The host of "host:port", "[::1]:port" or "host".
static std::string name_of(const std::string & authority) {
    if (!authority.empty() && authority[0] == '[') {
        return lower(authority.substr(0, authority.find(']') + 1));
    }
    std::string name = lower(authority.substr(0, authority.rfind(':')));
    if (!name.empty() && name.back() == '.') {
        name.pop_back(); // a name that is complete, as resolvers write it
    }
    return name;
}

// An address cannot be made to resolve to something else.
static bool is_address(const std::string & name) {
    if (name.empty()) {
        return false;
    }
    return name[0] == '[' || std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) || c == '.'; });
}

static bool is_local_name(const std::string & name) {
    static const std::string below = ".localhost";
    const bool ends = name.size() > below.size() && name.compare(name.size() - below.size(), below.size(), below) == 0;
    return name == "localhost" || ends;
}

static bool is_local(const std::string & name) {
    return is_local_name(name) || name == "[::1]" || (is_address(name) && name.rfind("127.", 0) == 0);
}

browser_guard::browser_guard(const common_params & params) :
    on(!params.cache_ssd.path.empty()), any_origin(params.cors_origins == "*"),
    origins(string_split<std::string>(params.cors_origins, ',')) {
    for (const std::string & name : params.hostnames) {
        hosts.push_back(lower(name));
    }
    for (const std::string & name : params.cache_ssd.allowed_hosts) {
        hosts.push_back(name_of(name));
    }
    char own[HOST_NAME_MAX + 1] = {};
    if (gethostname(own, HOST_NAME_MAX) == 0 && own[0] != '\0') {
        hosts.push_back(lower(own));
        hosts.push_back(lower(own) + ".local");
    }
}

bool browser_guard::knows_host(const std::string & authority) const {
    const std::string name = name_of(authority);
    return name.empty() || is_address(name) || is_local_name(name) ||
           std::find(hosts.begin(), hosts.end(), name) != hosts.end();
}

bool browser_guard::knows_origin(const std::string & origin, const std::string & host) const {
    if (any_origin || std::find(origins.begin(), origins.end(), origin) != origins.end()) {
        return true;
    }
    const size_t scheme = origin.find("://");
    if (scheme == std::string::npos) {
        return false; // "null": a page without an origin of its own, which any site can make
    }
    const std::string authority = origin.substr(scheme + 3);
    return is_local(name_of(authority)) || lower(authority) == lower(host);
}

static std::string forbidden(const std::string & message) {
    return safe_json_to_str({ { "error", { { "code", 403 }, { "message", message }, { "type", "permission_error" } } } });
}

std::string browser_guard::refusal(const std::string & method, const std::string & host, const std::string & origin,
                                   const std::string & fetch_site) const {
    if (!on) {
        return "";
    }
    if (!knows_host(host)) {
        return forbidden("this server is not known as '" + name_of(host) + "': if it should be, start it with --allowed-host " +
                         name_of(host));
    }
    // A browser leaves the Origin out where a page may only load something without reading it.
    const bool changes = method != "GET" && method != "HEAD";
    const bool foreign = origin.empty() ? changes && fetch_site == "cross-site" : !knows_origin(origin, host);
    if (foreign) {
        return forbidden("pages of " + (origin.empty() ? "another site" : "'" + origin + "'") +
                         " may not use this server: if they should, start it with --cors-origins " +
                         (origin.empty() ? "ORIGIN" : origin));
    }
    return "";
}

} // namespace llama_run

#include "server/plan/prompt_probe.h"

#include <algorithm>
#include <cctype>

namespace llama_run {

// Upstream keeps streams under a conversation's id, for clients that come back to them: nobody comes back to these.
static http_headers without_stream(const http_headers & headers) {
    http_headers out;
    for (const auto & [name, value] : headers) {
        std::string lower = name;
        std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        if (lower != "x-conversation-id") {
            out[name] = value;
        }
    }
    return out;
}

server_http_res_ptr prompt_probe::call(errand & own, const std::string & route, const http_headers & headers, const common_json & body,
                                       const std::function<bool()> & stop) const {
    const auto handler = http.handlers.find(route);
    if (handler == http.handlers.end()) {
        throw std::runtime_error("this server has no route " + route);
    }
    common_json whole = body;
    whole["stream"] = false;
    const server_http_req req{ {}, without_stream(headers), http.path_prefix + route, "", whole.dump_safe(), {}, stop };
    const errand_scope    scope(own);
    return handler->second(req);
}

errand prompt_probe::look(const std::string & route, const http_headers & headers, const common_json & body, size_t n_first) const {
    static const std::function<bool()> never = [] { return false; };
    errand own;
    own.what   = errand::kind::look;
    own.n_keep = n_first;
    const auto res = call(own, route, headers, body, never);
    if (!own.done) {
        throw handler_refusal(res->status, res->data);
    }
    return own;
}

bool prompt_probe::evaluate(errand & own, const std::string & route, const http_headers & headers, const common_json & body,
                            const std::function<bool()> & stop) const {
    own.what = errand::kind::warm;
    const auto res = call(own, route, headers, body, stop);
    if (res->status != 200) {
        throw handler_refusal(res->status, res->data);
    }
    return !res->data.empty();
}

} // namespace llama_run

#include "server/plan/prompt_probe.h"

#include "server/conversation.h"

namespace llama_run {

// Upstream keeps streams under a conversation's id, for clients that come back to them: nobody comes back to these. Which
// conversation it is, the body says then.
static http_headers without_stream(const http_headers & headers, common_json & body) {
    http_headers out;
    for (const auto & [name, value] : headers) {
        if (!same_header(name, conversation_header)) {
            out[name] = value;
        } else if (!body.contains("llama_conversation_id")) {
            body["llama_conversation_id"] = value;
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
    const http_headers    rest = without_stream(headers, whole);
    const server_http_req req{ {}, rest, http.path_prefix + route, "", whole.dump_safe(), {}, stop };
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

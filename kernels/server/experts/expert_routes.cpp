#include "server/experts/expert_routes.h"

#include "server/experts/expert_view.h"

#include <stdexcept>

namespace llama_run {

// Throws std::invalid_argument, which upstream answers with 400.
static common_json parse_tracking(const std::string & text) {
    const char * const rule = "the body is {\"enabled\": true or false, \"reset\": true or false}, either or both of them";
    common_json body;
    try {
        body = common_json::parse(text);
    } catch (const std::exception &) {
        throw std::invalid_argument(rule);
    }
    if (!body.is_object() || body.empty()) {
        throw std::invalid_argument(rule);
    }
    for (const auto & [name, value] : body.items()) {
        if ((name != "enabled" && name != "reset") || !value.is_boolean()) {
            throw std::invalid_argument("\"" + name + "\": " + rule);
        }
    }
    return body;
}

static server_http_res_ptr change_tracking(expert_view & experts, const server_http_req & req) {
    const common_json body = parse_tracking(req.body);
    if (body.contains("enabled")) {
        experts.track(body.at("enabled").get<bool>());
    }
    if (body.contains("reset") && body.at("reset").get<bool>()) {
        experts.reset();
    }
    return answer(200, experts.describe());
}

void add_expert_routes(const server_http_context & http, expert_view & experts, const route_maker & here_or_there) {
    http.get("/expert-stats", here_or_there("GET", [&experts](const server_http_req &) {
        return answer(200, experts.describe());
    }));
    http.post("/expert-tracking", here_or_there("POST", [&experts](const server_http_req & req) {
        return change_tracking(experts, req);
    }));
}

} // namespace llama_run

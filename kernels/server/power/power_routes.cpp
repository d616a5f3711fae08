#include "server/power/power_routes.h"

#include "server/state_cache.h"

#include <stdexcept>

namespace llama_run {

static server_http_res_ptr set_power(state_cache & cache, const server_http_req & req) {
    const common_json body = common_json::parse(req.body);
    const bool known = body.is_object() && body.contains("mains") && body.at("mains").is_boolean() &&
                       (!body.contains("battery") || body.at("battery").is_number());
    const double percent = known && body.contains("battery") ? body.at("battery").get<double>() : -1;
    if (!known || percent > 100) {
        throw std::invalid_argument("the body is {\"mains\": true or false, \"battery\": percent}, the battery only where there is one");
    }
    cache.set_power(body.at("mains").get<bool>(), static_cast<int>(percent));
    return answer(200, cache.describe());
}

void add_power_routes(const server_http_context & http, state_cache & cache, const route_maker & here_or_there) {
    http.post("/cache/power", here_or_there("POST", [&cache](const server_http_req & req) { return set_power(cache, req); }));
}

} // namespace llama_run

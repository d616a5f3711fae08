#include "server/power/power_routes.h"

#include "server/state_cache.h"

#include <cmath>
#include <stdexcept>

namespace llama_run {

static constexpr double max_bytes = 1e18;

static server_http_res_ptr set_power(state_cache & cache, const server_http_req & req) {
    const common_json body = common_json::parse(req.body);
    const auto number_at = [&](const char * name) {
        return !body.contains(name) ? -1 : body.at(name).is_number() ? body.at(name).get<double>() : std::nan("");
    };
    const bool   known   = body.is_object() && body.contains("mains") && body.at("mains").is_boolean();
    const double percent = known ? number_at("battery") : -1;
    const double written = known ? number_at("disk_written") : -1;
    const double rated   = known ? number_at("disk_rated") : -1;
    if (!known || !(percent <= 100) || !(written < max_bytes) || !(rated < max_bytes)) {
        throw std::invalid_argument("the body is {\"mains\": true or false, \"battery\": percent, \"disk_written\": bytes, \"disk_rated\": "
                                    "bytes}, all but the first only where they are known");
    }
    cache.set_power(body.at("mains").get<bool>(), static_cast<int>(percent));
    if (written >= 0 && rated > 0) {
        cache.set_disk(static_cast<uint64_t>(written), static_cast<uint64_t>(rated));
    }
    return answer(200, cache.describe());
}

void add_power_routes(const server_http_context & http, state_cache & cache, const route_maker & here_or_there) {
    http.post("/cache/power", here_or_there("POST", [&cache](const server_http_req & req) { return set_power(cache, req); }));
}

} // namespace llama_run

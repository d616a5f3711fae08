#include "server/warm/warm_routes.h"

#include "server/routes.h"
#include "server/state_cache.h"
#include "server/warm/continuations.h"
#include "server/warm/warmer.h"

namespace llama_run {

static server_http_res_ptr warm(const state_cache & cache, const server_http_req & req) {
    const common_json body = common_json::parse(req.body);
    try {
        return answer(200, cache.warming().warm(route_of_body(body), req.headers, body, req.should_stop).describe());
    } catch (const handler_refusal & refused) {
        return answer(refused.status, common_json::parse(refused.what()));
    }
}

void add_warm_routes(const server_http_context & http, const state_cache & cache, const route_maker & here_or_there) {
    const route_handler warmed = here_or_there("POST", [&cache](const server_http_req & req) {
        return with_store(cache, [&] { return warm(cache, req); });
    });
    http.post("/cache/warm", warmed);
    http.post("/v1/warm", warmed);
}

} // namespace llama_run

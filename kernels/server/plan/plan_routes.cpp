#include "server/plan/plan_routes.h"

#include "server/plan/prompt_probe.h"
#include "server/routes.h"
#include "server/state_cache.h"
#include "server/warm/continuations.h"

namespace llama_run {

static server_http_res_ptr plan(const server_http_context & http, const state_cache & cache, const server_http_req & req) {
    const common_json body = common_json::parse(req.body);
    try {
        return answer(200, cache.plan(prompt_probe(http).look(route_of_body(body), req.headers, body)));
    } catch (const handler_refusal & refused) {
        return answer(refused.status, common_json::parse(refused.what()));
    }
}

void add_plan_routes(const server_http_context & http, const state_cache & cache, const route_maker & here_or_there) {
    http.post("/cache/plan", here_or_there("POST", [&http, &cache](const server_http_req & req) {
        return with_store(cache, [&] { return plan(http, cache, req); });
    }));
}

} // namespace llama_run

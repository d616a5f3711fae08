// POST /cache/plan. See docs/http-api.md.
#pragma once

#include "server/answers.h"

namespace llama_run {

class state_cache;

void add_plan_routes(const server_http_context & http, const state_cache & cache, const route_maker & here_or_there);

} // namespace llama_run

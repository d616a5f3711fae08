// POST /cache/power. See docs/http-api.md.
#pragma once

#include "server/answers.h"

namespace llama_run {

class state_cache;

void add_power_routes(const server_http_context & http, state_cache & cache, const route_maker & here_or_there);

} // namespace llama_run

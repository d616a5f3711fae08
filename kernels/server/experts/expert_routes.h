// GET /expert-stats, POST /expert-tracking. See docs/http-api.md.
#pragma once

#include "server/answers.h"

namespace llama_run {

class expert_view;

void add_expert_routes(const server_http_context & http, expert_view & experts, const route_maker & here_or_there);

} // namespace llama_run

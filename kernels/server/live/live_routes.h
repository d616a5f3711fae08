// GET /cache/slots, GET /cache/saved and GET /cache/events: what happens now, and what the cache was good for. See
// docs/http-api.md.
#pragma once

#include "server/answers.h"

#include <functional>
#include <string>

namespace llama_run {

class state_cache;

// user_of: whose the request is, and throws std::invalid_argument.
void add_live_routes(const server_http_context & http, const state_cache & cache, const route_maker & here_or_there,
                     const std::function<std::string(const server_http_req &)> & user_of);

} // namespace llama_run

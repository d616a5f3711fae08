// GET and POST /cache/conversations/:hash/state: a conversation is handed to another server. See docs/http-api.md.
#pragma once

#include "server/answers.h"

#include <functional>
#include <string>

namespace llama_run {

class state_cache;

// user_of: whose the request is, and throws std::invalid_argument.
void add_handover_routes(const server_http_context & http, const state_cache & cache, const route_maker & here_or_there,
                         const std::function<std::string(const server_http_req &)> & user_of);

} // namespace llama_run

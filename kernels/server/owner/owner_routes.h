// What concerns all users at once, for who can read the cache folder: GET and DELETE /cache/everything, POST /cache/gc,
// POST /cache/verify. See docs/http-api.md.
#pragma once

#include "server/answers.h"

namespace llama_run {

class state_cache;

void add_owner_routes(const server_http_context & http, state_cache & cache, const route_maker & here_or_there);

} // namespace llama_run

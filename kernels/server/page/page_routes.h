// GET /dashboard: the page that shows what the routes of docs/http-api.md say.
//
// Everybody may load the page itself, with or without an API key: it holds nothing, and asks for the key before it asks for
// anything else.
#pragma once

#include "server/answers.h"

namespace llama_run {

void add_page_routes(const server_http_context & http, const std::function<route_handler(route_handler)> & wrap);

} // namespace llama_run

// GET /cache, GET /cache/conversations, GET /cache/requests, GET /cache/disk, DELETE /cache/conversations/:hash,
// DELETE /cache/users/:id, POST /cache/flush, and those of the other *_routes.h. See docs/http-api.md.
#pragma once

#include "server/answers.h"

#include <functional>
#include <stdexcept>

namespace llama_run {

class state_cache;
struct cache_options;
struct removal_result; // cache/removal.h

using route_proxy = std::function<server_http_res_ptr(const server_http_req &, const char * method)>;

// What is stored is only known while the store is open: calls what tells or changes it with the server awake, or says why that
// cannot be.
server_http_res_ptr with_store(const state_cache & cache, const std::function<server_http_res_ptr()> & work);

// An answer, with what became of the copies that others can read.
common_json with_shared(common_json out, const removal_result & done);

// wrap: upstream's, which turns exceptions into answers. proxy: see below; null where the model is served by this process.
void add_routes(const server_http_context & http, state_cache & cache, const cache_options & options,
                const std::function<route_handler(route_handler)> & wrap, const route_proxy & proxy);

// In router mode: asks the server of the model that the request names (?model=NAME). A template, because upstream's class
// is linked after us.
template <typename Router>
route_proxy proxy_of(Router & router) {
    if (!router.has_value()) {
        return nullptr;
    }
    return [&router](const server_http_req & req, const char * method) {
        if (req.get_param("model").empty()) {
            throw std::invalid_argument("several models are served here: say which, with ?model=NAME");
        }
        return router->models.proxy_request(req, method, req.get_param("model"), false);
    };
}

} // namespace llama_run

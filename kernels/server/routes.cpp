#include "server/routes.h"

#include "server/expert_routes.h"
#include "server/state_cache.h"

#include "kvtier/file_names.h"

#include <utility>

namespace llama_run {

// ?user_id=NAME; empty: anonymous. Throws std::invalid_argument, which upstream answers with 400.
static std::string user_of(const server_http_req & req) {
    return user_id_of({ { "llama_user_id", req.get_param("user_id") } });
}

static server_http_res_ptr remove_conversation(const state_cache & cache, const server_http_req & req) {
    uint64_t hash;
    if (!kvtier::parse_hex(req.get_param("hash"), hash)) {
        return refuse("the conversation's hash is 16 hex digits, as GET /cache/conversations lists it", ERROR_TYPE_INVALID_REQUEST);
    }
    uint64_t freed = 0;
    if (!cache.remove_conversation(user_of(req), hash, freed)) {
        return refuse("no such conversation is stored", ERROR_TYPE_NOT_FOUND);
    }
    return answer(200, { { "hash", kvtier::hex(hash) }, { "bytes_freed", freed } });
}

static server_http_res_ptr remove_user(const state_cache & cache, const server_http_req & req) {
    const std::string user = user_id_of({ { "llama_user_id", req.get_param("id") } });
    uint64_t freed = 0;
    if (user.empty() || !cache.remove_user(user, freed)) {
        return refuse("not everything of this user could be removed: see the server's log", ERROR_TYPE_SERVER);
    }
    return answer(200, { { "user", user }, { "bytes_freed", freed } });
}

void add_routes(const server_http_context & http, state_cache & cache,
                const std::function<route_handler(route_handler)> & wrap, const route_proxy & proxy) {
    const route_maker here_or_there = [&](const char * method, route_handler here) {
        return wrap(!proxy ? std::move(here) : [proxy, method](const server_http_req & req) { return proxy(req, method); });
    };
    http.get("/cache", here_or_there("GET", [&cache](const server_http_req & req) {
        const std::string user = user_of(req);
        return answer(200, user.empty() ? cache.describe() : cache.describe_user(user));
    }));
    http.get("/cache/conversations", here_or_there("GET", [&cache](const server_http_req & req) {
        return answer(200, { { "conversations", cache.conversations(user_of(req)) } });
    }));
    http.del("/cache/conversations/:hash", here_or_there("DELETE", [&cache](const server_http_req & req) {
        return remove_conversation(cache, req);
    }));
    http.del("/cache/users/:id", here_or_there("DELETE", [&cache](const server_http_req & req) {
        return remove_user(cache, req);
    }));
    http.post("/cache/flush", here_or_there("POST", [&cache](const server_http_req &) {
        cache.flush();
        return answer(200, cache.describe());
    }));
    add_expert_routes(http, cache.experts, here_or_there);
}

} // namespace llama_run

#include "server/routes.h"

#include "server/cache/removal.h"
#include "server/experts/expert_routes.h"
#include "server/handover/handover_routes.h"
#include "server/live/live_routes.h"
#include "server/owner/owner_routes.h"
#include "server/page/page_routes.h"
#include "server/plan/plan_routes.h"
#include "server/power/power_routes.h"
#include "server/state_cache.h"
#include "server/warm/warm_routes.h"

#include "kvtier/file_names.h"

#include <utility>

namespace llama_run {

server_http_res_ptr with_store(const state_cache & cache, const std::function<server_http_res_ptr()> & work) {
    const auto awake = cache.wake();
    const std::string why = cache.off_because();
    return why.empty() ? work() : refuse("the cache is off: " + why, ERROR_TYPE_NOT_SUPPORTED);
}

static constexpr const char * not_a_hash = "the conversation's hash is 16 hex digits, as GET /cache/conversations lists it";
static constexpr const char * not_stored = "no such conversation is stored";

common_json with_shared(common_json out, const removal_result & done) {
    if (done.is_shared) {
        out["shared"] = common_json{ { "removed", done.shared_removed }, { "files", done.shared_files } };
    }
    return out;
}

static server_http_res_ptr remove_conversation(state_cache & cache, const std::string & user, const server_http_req & req) {
    uint64_t hash;
    if (!kvtier::parse_hex(req.get_param("hash"), hash)) {
        return refuse(not_a_hash, ERROR_TYPE_INVALID_REQUEST);
    }
    removal_result done;
    if (const kvtier::status s = cache.remove_conversation(user, hash, done); !s.is_ok()) {
        return s.is_miss() ? refuse(not_stored, ERROR_TYPE_NOT_FOUND) : refuse(s.message(), ERROR_TYPE_SERVER);
    }
    return answer(200, with_shared({ { "hash", kvtier::hex(hash) }, { "bytes_freed", done.bytes_freed } }, done));
}

static server_http_res_ptr change_conversation(const state_cache & cache, const std::string & user, const server_http_req & req) {
    uint64_t hash;
    if (!kvtier::parse_hex(req.get_param("hash"), hash)) {
        return refuse(not_a_hash, ERROR_TYPE_INVALID_REQUEST);
    }
    const common_json             body   = common_json::parse(req.body);
    const kvtier::lifetime_change change = lifetime_of(body, "");
    const bool keeps = change.ttl_ms || change.expire_ms;
    const bool warms = body.is_object() && body.contains("warm") && body.at("warm").is_boolean() && body.at("warm").get<bool>();
    if (!keeps && !warms) {
        return refuse(R"(say how long it is to be kept, {"ttl": "24h"} or {"expire": "7d"}, or to read it into RAM, {"warm": true})",
                      ERROR_TYPE_INVALID_REQUEST);
    }
    common_json    now;
    kvtier::status s = keeps ? cache.keep(user, hash, change, now) : kvtier::status::ok();
    if (s.is_ok() && warms) {
        s = cache.warm(user, hash, now);
    }
    return s.is_ok() ? answer(200, now)
         : s.is_miss() ? refuse(not_stored, ERROR_TYPE_NOT_FOUND) : refuse(s.message(), ERROR_TYPE_SERVER);
}

static server_http_res_ptr remove_user(state_cache & cache, const std::string & user) {
    if (user.empty()) {
        return refuse("say whose state is to be removed: DELETE /cache/users/ID", ERROR_TYPE_INVALID_REQUEST);
    }
    removal_result done;
    if (const kvtier::status s = cache.remove_user(user, done); !s.is_ok()) {
        return refuse(s.message(), ERROR_TYPE_SERVER);
    }
    return answer(200, with_shared({ { "user", user }, { "bytes_freed", done.bytes_freed } }, done));
}

void add_routes(const server_http_context & http, state_cache & cache, const cache_options & options,
                const std::function<route_handler(route_handler)> & wrap, const route_proxy & proxy) {
    const route_maker here_or_there = [&](const char * method, route_handler here) {
        return wrap(!proxy ? std::move(here) : [proxy, method](const server_http_req & req) { return proxy(req, method); });
    };
    // ?user_id=NAME; empty: anonymous. Throws std::invalid_argument, which upstream answers with 400.
    const auto user_of = [options](const server_http_req & req, const char * param) {
        return user_of_route(req.headers, req.get_param(param), options);
    };
    const route_handler stats = here_or_there("GET", [&cache, user_of](const server_http_req & req) {
        const std::string user = user_of(req, "user_id");
        return answer(200, user.empty() ? cache.describe() : cache.describe_user(user));
    });
    http.get("/cache", stats);
    http.get("/v1/stats", stats);
    http.get("/cache/conversations", here_or_there("GET", [&cache, user_of](const server_http_req & req) {
        return with_store(cache, [&] {
            return answer(200, { { "conversations", cache.conversations(user_of(req, "user_id")) } });
        });
    }));
    http.get("/cache/requests", here_or_there("GET", [&cache, user_of](const server_http_req & req) {
        return answer(200, { { "requests", cache.requests(user_of(req, "user_id")) } });
    }));
    http.del("/cache/conversations/:hash", here_or_there("DELETE", [&cache, user_of](const server_http_req & req) {
        return with_store(cache, [&] { return remove_conversation(cache, user_of(req, "user_id"), req); });
    }));
    http.post("/cache/conversations/:hash", here_or_there("POST", [&cache, user_of](const server_http_req & req) {
        return with_store(cache, [&] { return change_conversation(cache, user_of(req, "user_id"), req); });
    }));
    http.del("/cache/users/:id", here_or_there("DELETE", [&cache, user_of](const server_http_req & req) {
        return with_store(cache, [&] { return remove_user(cache, req.get_param("id").empty() ? "" : user_of(req, "id")); });
    }));
    http.post("/cache/flush", here_or_there("POST", [&cache](const server_http_req &) {
        cache.flush();
        return answer(200, cache.describe());
    }));
    add_power_routes(http, cache, here_or_there);
    add_plan_routes(http, cache, here_or_there);
    if (!proxy) {
        cache.serve_warm(http, options.warm_file);
    }
    add_warm_routes(http, cache, here_or_there);
    http.get("/cache/disk", here_or_there("GET", [&cache](const server_http_req &) {
        return with_store(cache, [&] { return answer(200, cache.disk()); });
    }));
    const auto named_user = [user_of](const server_http_req & req) { return user_of(req, "user_id"); };
    add_live_routes(http, cache, here_or_there, named_user);
    add_handover_routes(http, cache, here_or_there, named_user);
    add_owner_routes(http, cache, here_or_there);
    add_page_routes(http, wrap);
    add_expert_routes(http, cache.experts, here_or_there);
}

} // namespace llama_run

#include "server/owner/owner_routes.h"

#include "server/cache/removal.h"
#include "server/owner/owner_key.h"
#include "server/routes.h"
#include "server/state_cache.h"
#include "server/user_id.h"

#include <functional>

namespace llama_run {

static constexpr const char * not_the_owner =
    "this concerns all users: the header X-Cache-Owner has to be what .owner-key in the cache folder says";
static constexpr const char * not_all = "not everything could be removed: see the server's log";

static std::string given_key(const server_http_req & req) {
    for (const auto & [name, value] : req.headers) {
        if (same_header(name, owner_header)) {
            return value;
        }
    }
    return {};
}

void add_owner_routes(const server_http_context & http, state_cache & cache, const route_maker & here_or_there) {
    const auto for_owner = [&](const char * method, const std::function<server_http_res_ptr()> & work) {
        return here_or_there(method, [&cache, work](const server_http_req & req) {
            return with_store(cache, [&] {
                return cache.is_owner(given_key(req)) ? work() : refuse(not_the_owner, ERROR_TYPE_PERMISSION);
            });
        });
    };
    http.get("/cache/everything", for_owner("GET", [&cache] {
        return answer(200, { { "conversations", cache.all_conversations() } });
    }));
    http.del("/cache/everything", for_owner("DELETE", [&cache] {
        removal_result done;
        return cache.remove_everything(done) ? answer(200, with_shared({ { "bytes_freed", done.bytes_freed } }, done))
             : refuse(not_all, ERROR_TYPE_SERVER);
    }));
    http.post("/cache/gc", for_owner("POST", [&cache] {
        uint64_t freed = 0;
        return cache.collect(freed) ? answer(200, { { "bytes_freed", freed } })
             : refuse(not_all, ERROR_TYPE_SERVER);
    }));
    http.post("/cache/verify", for_owner("POST", [&cache] { return answer(200, cache.verify()); }));
}

} // namespace llama_run

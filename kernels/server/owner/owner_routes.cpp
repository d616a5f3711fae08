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

static std::string given_key(const server_http_req & req) {
    for (const auto & [name, value] : req.headers) {
        if (same_header(name, owner_header)) {
            return value;
        }
    }
    return {};
}

void add_owner_routes(const server_http_context & http, state_cache & cache, const route_maker & here_or_there) {
    const auto for_owner = [&](const char * method, const std::function<server_http_res_ptr(const server_http_req &)> & work) {
        return here_or_there(method, [&cache, work](const server_http_req & req) {
            return with_store(cache, [&] {
                return cache.is_owner(given_key(req)) ? work(req) : refuse(not_the_owner, ERROR_TYPE_PERMISSION);
            });
        });
    };
    http.get("/cache/everything", for_owner("GET", [&cache](const server_http_req &) {
        return answer(200, { { "conversations", cache.all_conversations() } });
    }));
    http.del("/cache/everything", for_owner("DELETE", [&cache](const server_http_req &) {
        removal_result       done;
        const kvtier::status s = cache.remove_everything(done);
        return s.is_ok() ? answer(200, with_shared({ { "bytes_freed", done.bytes_freed } }, done))
             : refuse(s.message(), ERROR_TYPE_SERVER);
    }));
    http.post("/cache/gc", for_owner("POST", [&cache](const server_http_req &) {
        uint64_t             freed = 0;
        const kvtier::status s     = cache.collect(freed);
        return s.is_ok() ? answer(200, { { "bytes_freed", freed } }) : refuse(s.message(), ERROR_TYPE_SERVER);
    }));
    http.post("/cache/verify", for_owner("POST", [&cache](const server_http_req & req) {
        common_json          found;
        const kvtier::status read = cache.verify(req.should_stop, found);
        return read.is_ok() ? answer(200, found) : refuse(read.message(), ERROR_TYPE_UNAVAILABLE);
    }));
}

} // namespace llama_run

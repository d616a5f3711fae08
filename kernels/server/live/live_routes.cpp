#include "server/live/live_routes.h"

#include "server/live/live_view.h"
#include "server/state_cache.h"

namespace llama_run {

// It ends when the client goes, which the HTTP library sees, or when the server stops.
static server_http_res_ptr stream_events(const state_cache & cache, const std::string & user) {
    const auto stream = live_view::listen(cache.live, user);
    if (!stream) {
        return refuse("too many listen to what happens here: close a page", ERROR_TYPE_UNAVAILABLE);
    }
    auto res = std::make_unique<server_http_res>();
    res->content_type = "text/event-stream";
    res->headers      = { { "Cache-Control", "no-store" } };
    res->next         = [&cache, stream](std::string & out) {
        out = stream->next();
        return !cache.is_stopping();
    };
    return res;
}

void add_live_routes(const server_http_context & http, const state_cache & cache, const route_maker & here_or_there,
                     const std::function<std::string(const server_http_req &)> & user_of) {
    http.get("/cache/slots", here_or_there("GET", [&cache, user_of](const server_http_req & req) {
        return answer(200, cache.live->describe(user_of(req)));
    }));
    http.get("/cache/saved", here_or_there("GET", [&cache, user_of](const server_http_req & req) {
        return answer(200, cache.saved(user_of(req)));
    }));
    http.get("/cache/events", here_or_there("GET", [&cache, user_of](const server_http_req & req) {
        return stream_events(cache, user_of(req));
    }));
}

} // namespace llama_run

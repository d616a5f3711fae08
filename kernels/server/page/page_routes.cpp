#include "server/page/page_routes.h"

#include "server/page/page_files.h"

#include <map>
#include <memory>
#include <string>

namespace llama_run {

// The page loads its own files and talks to this server; nobody else may be asked, show it in a frame, or run anything in it.
static const std::map<std::string, std::string> page_headers = {
    { "Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
                                 "base-uri 'none'; form-action 'none'; frame-ancestors 'none'" },
    { "X-Content-Type-Options",  "nosniff" },
    { "X-Frame-Options",         "DENY" },
    { "Referrer-Policy",         "no-referrer" },
    { "Cache-Control",           "no-cache" }, // A newer server has a newer page.
};

static route_handler file(const std::string & name, const char * content_type) {
    const auto text = std::make_shared<const std::string>(page_files().at(name));
    return [text, content_type](const server_http_req &) {
        auto res = std::make_unique<server_http_res>();
        res->content_type = content_type;
        res->headers      = page_headers;
        res->data         = *text;
        return res;
    };
}

void add_page_routes(const server_http_context & http, const std::function<route_handler(route_handler)> & wrap) {
    http.get("/dashboard", wrap(file("dashboard.html", "text/html; charset=utf-8")));
    http.get("/dashboard.css", wrap(file("dashboard.css", "text/css; charset=utf-8")));
    http.get("/dashboard.js", wrap(file("dashboard.js", "text/javascript; charset=utf-8")));
}

} // namespace llama_run

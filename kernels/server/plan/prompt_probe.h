// Asks upstream's own handlers what the prompt of a body is, without evaluating it; or has a part of it evaluated.
//
// Thread safety: all functions may be called from any thread, which they run the handlers on.
#pragma once

#include "server/plan/errand.h"
#include "server/user_id.h"

#include "json.h"
#include "server-http.h"

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

namespace llama_run {

// The handler would not have it.
struct handler_refusal : std::runtime_error {
    handler_refusal(int status, const std::string & answer) : std::runtime_error(answer), status(status) {}

    const int status;
};

class prompt_probe {
public:
    // http: with the routes of the server that it belongs to, which it must not outlive.
    explicit prompt_probe(const server_http_context & http) : http(http) {}

    // n_first: the prompt's first tokens, which are looked up to the last one; 0: the whole prompt, as a request would. Throws
    // handler_refusal.
    errand look(const std::string & route, const http_headers & headers, const common_json & body, size_t n_first = 0) const;

    // Evaluates the first tokens of the prompt, own.n_keep. False when `stop` was true before they were. Throws handler_refusal.
    bool evaluate(errand & own, const std::string & route, const http_headers & headers, const common_json & body,
                  const std::function<bool()> & stop) const;

private:
    server_http_res_ptr call(errand & own, const std::string & route, const http_headers & headers, const common_json & body,
                             const std::function<bool()> & stop) const;

    const server_http_context & http;
};

} // namespace llama_run

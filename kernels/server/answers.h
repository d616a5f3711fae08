// How our routes answer.
#pragma once

#include "server-common.h"
#include "server-http.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace llama_run {

using route_handler = server_http_context::handler_t;

// Where the model is served by this process: the handler, with exceptions turned into answers. In router mode: a handler that
// asks the model's own process by this method.
using route_maker = std::function<route_handler(const char * method, route_handler here)>;

inline server_http_res_ptr answer(int status, const common_json & body) {
    auto res = std::make_unique<server_http_res>();
    res->status = status;
    res->data   = body.dump_safe();
    return res;
}

inline server_http_res_ptr refuse(const std::string & message, error_type type) {
    const common_json error = format_error_response(message, type);
    return answer(error.at("code").get<int>(), { { "error", error } });
}

} // namespace llama_run

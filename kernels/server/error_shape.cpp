#include "server/error_shape.h"

#include "server/plan/errand.h"

#include "json.h"

#include <algorithm>
#include <array>
#include <new>

namespace llama_run {

static bool has(const std::string & path, const char * part) {
    return path.find(part) != std::string::npos;
}

bool is_clients_fault(const std::string & path, const std::exception & e) {
    static constexpr std::array<const char *, 4> chat_routes = { "/chat/completions", "/v1/messages", "/responses", "/apply-template" };
    if (dynamic_cast<const std::bad_alloc *>(&e) != nullptr) {
        return false;
    }
    return dynamic_cast<const common_json_error *>(&e) != nullptr ||
           std::any_of(chat_routes.begin(), chat_routes.end(), [&](const char * route) { return has(path, route); });
}

// Upstream's names where they differ.
static std::string anthropic_type(int status, const std::string & type) {
    return status == 503 ? "overloaded_error" : status >= 500 ? "api_error" : type;
}

void shape_error(const std::string & path, server_http_res & response) {
    replace_answer(response);
    if (response.status < 400 || response.is_stream() || !has(path, "/v1/messages")) {
        return;
    }
    try {
        const common_json told  = common_json::parse(response.data);
        const common_json & why = told.at("error");
        response.data = common_json({
            { "type",  "error" },
            { "error", {
                { "type",    anthropic_type(response.status, why.at("type").get<std::string>()) },
                { "message", why.at("message").get<std::string>() },
                { "code",    response.status },
            } },
        }).dump_safe();
    } catch (const common_json_error &) {
        // It is not one of upstream's errors, and says what it says.
    }
}

} // namespace llama_run

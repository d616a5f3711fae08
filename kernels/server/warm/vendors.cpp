#include "server/warm/vendors.h"

#include "server/json_fields.h"
#include "server/warm/continuations.h"

#include "server-common.h"

#include <ctime>
#include <stdexcept>

namespace llama_run {

static constexpr const char * warm_field = "__llama_run_warm";

void keep_warm(const common_json & anthropic, common_json & converted) {
    if (anthropic.contains("max_tokens") && anthropic.at("max_tokens").is_number_integer() &&
        anthropic.at("max_tokens").get<int64_t>() == 0) {
        converted[warm_field] = cached_prefix(anthropic);
    }
}

bool asks_to_warm(const common_json & body, task_response_type api) {
    if (api == TASK_RESPONSE_TYPE_ANTHROPIC) {
        return body.contains(warm_field);
    }
    if (api != TASK_RESPONSE_TYPE_OAI_RESP || !body.contains("prompt_cache_options")) {
        return false;
    }
    const common_json & options = body.at("prompt_cache_options");
    return options.is_object() && options.contains("prewarm") && options.at("prewarm").is_boolean() && options.at("prewarm").get<bool>();
}

vendor_warm warm_of_vendor(const common_json & body, task_response_type api) {
    if (body.contains("stream") && body.at("stream").is_boolean() && body.at("stream").get<bool>()) {
        throw std::invalid_argument("a prompt that is only prepared has no answer to stream: leave \"stream\" out");
    }
    if (api == TASK_RESPONSE_TYPE_ANTHROPIC) {
        return { "/v1/messages", body.at(warm_field) };
    }
    // Upstream has made a chat request of it, and has put the rendered prompt beside it.
    common_json chat = common_json::object();
    for (const char * name : { "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort",
                               "response_format", "llama_user_id" }) {
        if (body.contains(name)) {
            chat[name] = body.at(name);
        }
    }
    return { "/v1/chat/completions", chat };
}

common_json vendor_answer(const common_json & body, task_response_type api, const warm_result & done) {
    if (api == TASK_RESPONSE_TYPE_ANTHROPIC) {
        return {
            { "id",            gen_chatcmplid() },
            { "type",          "message" },
            { "role",          "assistant" },
            { "content",       common_json::array() },
            { "model",         string_at(body, "model") },
            { "stop_reason",   "max_tokens" },
            { "stop_sequence", nullptr },
            { "usage",         {
                { "cache_creation_input_tokens", done.n_evaluated },
                { "cache_read_input_tokens",     done.n_restored },
                { "input_tokens",                0 },
                { "output_tokens",               0 },
            } },
            { "llama_warm",    done.describe() },
        };
    }
    return {
        { "id",                  "resp_" + gen_chatcmplid() },
        { "object",              "response" },
        { "created_at",          static_cast<int64_t>(std::time(nullptr)) },
        { "status",              "completed" },
        { "model",               string_at(body, "model") },
        { "output",              common_json::array() },
        { "parallel_tool_calls", true },
        { "tool_choice",         "auto" },
        { "tools",               common_json::array() },
        { "usage",               {
            { "input_tokens",          done.n_tokens },
            { "input_tokens_details",  { { "cached_tokens", done.n_restored }, { "cache_write_tokens", done.n_evaluated } } },
            { "output_tokens",         0 },
            { "output_tokens_details", { { "reasoning_tokens", 0 } } },
            { "total_tokens",          done.n_tokens },
        } },
        { "llama_warm",          done.describe() },
    };
}

} // namespace llama_run

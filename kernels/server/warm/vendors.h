// Warming in the words of other APIs: Anthropic's max_tokens: 0, and prompt_cache_options.prewarm of OpenAI's Responses.
#pragma once

#include "server/warm/warmer.h"

#include "json.h"
#include "server-task.h"

#include <string>

namespace llama_run {

// Called at the end of upstream's conversion of Anthropic bodies: what is to be prepared travels with the converted body, which
// was made from nothing.
void keep_warm(const common_json & anthropic, common_json & converted);

// Whether this body, as upstream has converted it, wants to be prepared and not answered.
bool asks_to_warm(const common_json & body, task_response_type api);

struct vendor_warm {
    std::string route;
    common_json body;
};

// Throws std::invalid_argument for a stream: there is nothing to stream.
vendor_warm warm_of_vendor(const common_json & body, task_response_type api);

// An answer without content, of the shape that the vendor's client expects.
common_json vendor_answer(const common_json & body, task_response_type api, const warm_result & done);

} // namespace llama_run

// The hook in upstream's parser of chat bodies, behind the conversions of all APIs and before the template is applied.
#pragma once

#include "json.h"

struct server_chat_params;

namespace llama_run {

// Leaves out of the messages what does not fit, where that is asked for: context_overflow.h. The parser knows no server; there is
// one in a process.
void fit_messages(common_json & body, const server_chat_params & chat);

} // namespace llama_run

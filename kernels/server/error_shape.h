// Errors as the clients of each API know them.
#pragma once

#include "server-http.h"

#include <exception>
#include <string>

namespace llama_run {

// Whether an exception that a route's handler let out is about what the client sent. Chat requests are parsed, converted and put
// into the model's template by the handler, and all that can go wrong there is theirs; evaluating reports its errors otherwise.
bool is_clients_fault(const std::string & path, const std::exception & e);

// What is told instead of an answer (plan/errand.h) takes its place. The Anthropic API wraps its errors: {"type": "error",
// "error": {"type": ..., "message": ...}}. Other answers stay as they are.
void shape_error(const std::string & path, server_http_res & response);

} // namespace llama_run

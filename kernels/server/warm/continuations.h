// Where a prompt may go on: pure functions over the bodies of requests.
//
// A prompt is prepared for whatever follows it. How much of its tokens that is depends on the template (what it puts between
// messages) and on the tokeniser (which characters it takes together), so several continuations are rendered, and where the first
// two of them part is the end of what they share.
#pragma once

#include "json.h"

#include <string>
#include <vector>

namespace llama_run {

// The route whose bodies look like this: a prompt, Responses, Anthropic Messages, or Chat Completions. Throws
// std::invalid_argument for what is none of them.
std::string route_of_body(const common_json & body);

// The body with different messages or words added, at least two of them; or the body itself, where it ends exactly where the
// answer begins (tokens). Throws std::invalid_argument for bodies that name no prompt, or several.
std::vector<common_json> continuations(const std::string & route, const common_json & body);

// What of an Anthropic body is to be prepared by max_tokens: 0. Everything up to the last cache_control; behind it stands, in
// clients' bodies, a message that only fills the place of the user's.
common_json cached_prefix(const common_json & anthropic);

} // namespace llama_run

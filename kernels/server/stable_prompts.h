// What agents put into the beginning of their prompts and change without meaning anything by it, made stable before the chat
// template is applied. One such line at the start costs the whole prompt behind it in every new conversation.
//
// Off with --no-stable-prompts. Every change is counted, and named in the answer's timings.
#pragma once

#include "server/cache_options.h"

#include "kvtier/thread_annotations.h"

#include "json.h"

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace llama_run {

// One line of the table; docs/agents.md has them in words.
struct volatile_text {
    const char * name;   // as timings show it
    const char * agent;
    const char * seen;   // versions
    const char * change; // what is replaced by what
};

// All that is known; at most 8, one bit for each in what stable_prompt notes.
const std::vector<volatile_text> & volatile_texts();

// The body of a chat request of any of the three APIs (Chat Completions, Responses, Anthropic Messages), parsed and made stable.
// Under `stable_field` it says what was done; a field of that name that a client wrote is gone in any case. Throws for what is
// no JSON, and std::invalid_argument for what is nested so deep that nobody could walk through it.
common_json stable_prompt(const std::string & text, const cache_options & options);

// Under this name the changes travel with the body, one bit for each line of the table.
inline constexpr const char * stable_field = "__llama_run_stable";

// The names of these bits.
common_json stable_names(uint8_t changes);

// Counts how often tools came in another order, or with the keys of their schemas in another order, and were otherwise those of
// an earlier request: the same prompt to a person, and another one to a cache. Thread-safe, of bounded memory.
class tool_watch {
public:
    void see(const std::string & user, const common_json & body);

    uint64_t reordered() const;

private:
    mutable kvtier::mutex                     mu;
    std::unordered_map<std::string, uint64_t> last GUARDED_BY(mu); // by user and sorted tools: how they came last
    uint64_t                                  n_reordered GUARDED_BY(mu) = 0;
};

} // namespace llama_run

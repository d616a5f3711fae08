// The last requests, for GET /cache/requests: what each reused, and where it parted from what is known, in words.
//
// Thread safety: all functions may be called from any thread. Memory is bounded by n_kept and max_words.
#pragma once

#include "server/cache_report.h"
#include "server/plan/request_line.h"

#include "kvtier/keys.h"
#include "kvtier/thread_annotations.h"

#include "json.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace llama_run {

// Where a prompt left what is known.
struct parting {
    std::string words;  // on both sides of the place, " | " between them; empty: nothing to tell
    std::string advice; // what of the client's settings would help; empty: nothing is known
    bool        early = false; // before the first message of the user, which prompts of one agent should share
};

// What the words around such a place suggest. early: see above. A pure function.
std::string advice_for(const std::string & words, bool early);

struct finished_request {
    int64_t      at_ms = 0; // Unix time of its end
    std::string  user;
    uint64_t     conversation = 0; // 0: not known
    cache_report report;
    parting      parted;
    request_times took;            // from its arrival
    uint64_t     n_reused    = 0;
    uint64_t     n_evaluated = 0;
    uint64_t     n_answered  = 0;
    double       prompt_ms   = 0;
    double       answer_ms   = 0;
};

// As GET /cache/requests has it.
common_json describe_request(const finished_request & request);

class request_log {
public:
    static constexpr size_t n_kept    = 256;
    static constexpr size_t max_words = 400; // bytes

    // Is called for each request, before it is kept. It is set before the first one.
    std::function<void(const finished_request &)> told = [](const finished_request &) {};

    void add(finished_request request);

    // Newest first.
    common_json describe(const std::string & user) const;

    // What was removed is not told any more: all of a user, of everybody, or the words of a conversation.
    void forget(const std::string & user);
    void forget_all();
    void forget_words(const kvtier::conversation_id & of);

private:
    mutable kvtier::mutex        mu;
    std::deque<finished_request> kept GUARDED_BY(mu);
};

} // namespace llama_run

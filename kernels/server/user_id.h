// Whose request it is: `llama_user_id` in OpenAI bodies, `metadata.user_id` in Anthropic ones. An id separates state, it
// does not prove who asks.
#pragma once

#include "json.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace llama_run {

// Empty: anonymous. Throws std::invalid_argument, naming the field and the rule, for anything but letters, digits, _ and -,
// 512 at most.
std::string user_id_of(const common_json & body);

bool is_user_id(const std::string & text);

// How many requests of a user are being served. Thread-safe.
class user_gate {
public:
    // Counts a request for as long as the result lives. Null: the user has `limit` of them already; 0 = no limit.
    std::shared_ptr<void> enter(const std::string & user, uint32_t limit);

private:
    struct counts {
        std::mutex                      mu;
        std::map<std::string, uint32_t> active;
    };

    std::shared_ptr<counts> shared = std::make_shared<counts>(); // with the requests, which may outlive this
};

} // namespace llama_run

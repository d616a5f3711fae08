// Whose request it is. An id separates state, it does not prove who asks.
//
// What counts, the first that is there (docs/http-api.md has the table for those who run a proxy):
//
//   --user-header NAME   that header alone; nothing in a body counts
//   llama_user_id        in the body of any API
//   metadata.user_id     in bodies of the Anthropic API, unless --metadata-users off
#pragma once

#include "server/cache_options.h"

#include "kvtier/thread_annotations.h"

#include "json.h"

#include <atomic>
#include <map>
#include <memory>
#include <string>

namespace llama_run {

using http_headers = std::map<std::string, std::string>; // as upstream hands them on: names as the client wrote them

// Under this name upstream's conversion of Anthropic bodies hands metadata.user_id on. It counts in converted bodies alone: a
// client may write it into its own.
inline constexpr const char * converted_metadata_user = "__metadata_user_id";

// Called at the end of that conversion: what of the original says whose it is and which conversation it belongs to, what was
// made stable in it, and our own fields. `converted` was made from nothing.
void keep_user(const common_json & anthropic, common_json & converted);

// Empty: anonymous. converted: the body came through keep_user. Throws std::invalid_argument, naming the field and the rule,
// for a header or a llama_user_id that breaks the rule of kvtier::is_user_id.
std::string user_of_request(const http_headers & headers, const common_json & body, bool converted, const cache_options & options);

// The same for our own routes, where the user is named in the address. Behind a proxy that sets the header, nobody reaches
// another's: std::invalid_argument.
std::string user_of_route(const http_headers & headers, const std::string & named, const cache_options & options);

// The user that any text of metadata.user_id stands for, always by the rule of kvtier::is_user_id: an id stays as it is, Claude Code's
// names of device, account and session lose the session, the rest is hashed whole.
std::string user_of_metadata(const common_json & value);

// The session that Claude Code names there; empty where it does not.
std::string session_of_metadata(const common_json & value);

// Names of headers are spelled any way.
bool same_header(const std::string & a, const std::string & b);

// Upstream's resumable streams (X-Conversation-Id, /v1/stream) know no users: whoever names a conversation can read its answer
// and end it. Set once, where --user-header is read; there are none of them then.
inline std::atomic<bool> resumable_streams{ true };

// How many requests of a user are being served. Thread-safe.
class user_gate {
public:
    // Counts a request for as long as the result lives. Null: the user has `limit` of them already; 0 = no limit.
    std::shared_ptr<void> enter(const std::string & user, uint32_t limit);

private:
    struct counts {
        kvtier::mutex                   mu;
        std::map<std::string, uint32_t> active GUARDED_BY(mu);
    };

    std::shared_ptr<counts> shared = std::make_shared<counts>(); // with the requests, which may outlive this
};

} // namespace llama_run

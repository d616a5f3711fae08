// Who can read the cache folder can read everybody's prompts in it: a key that lies there proves it to the server, whose routes
// otherwise speak of one user at a time. It is a hidden file, for its owner alone, and stays from one server to the next.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "kvtier/env.h"

#include <string>

namespace llama_run {

inline constexpr const char * owner_header = "X-Cache-Owner";

// Makes the key of a cache folder, unless there is one.
kvtier::status ensure_owner_key(kvtier::env & e, const std::string & root_dir);

// Whether it is the key that lies there now. Nothing fits where none can be read.
bool is_owner_key(kvtier::env & e, const std::string & root_dir, const std::string & given);

} // namespace llama_run

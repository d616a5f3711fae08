// Where the bytes of the cache's folder are: by model, and of the model that is served by what they are for.
#pragma once

#include "kvtier/store.h"

#include "json.h"

#include <string>

namespace llama_run {

// Walks the folder, which takes longer the more files there are.
common_json describe_disk(kvtier::env & e, const std::string & root_dir, const kvtier::store & store);

} // namespace llama_run

// The --cache-ssd flags, for upstream's parser of arguments.
#pragma once

#include <functional>

struct common_arg;

namespace llama_run {

void add_cache_args(const std::function<void(common_arg)> & add_opt);

} // namespace llama_run

// The flags that llama-run adds, for upstream's parser of arguments.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

struct common_arg;

namespace llama_run {

void add_cache_args(const std::function<void(common_arg)> & add_opt);

// "64G", "512M", "1.5GiB", "1048576": bytes, in powers of 1024. Throws std::invalid_argument for what is none.
uint64_t parse_size(const std::string & text);

} // namespace llama_run

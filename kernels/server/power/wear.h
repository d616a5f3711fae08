// How much may be written to the disk in a day: --cache-ssd-write-budget.
#pragma once

#include <atomic>
#include <cstdint>

namespace llama_run {

// Set once, where the flag is read; 0: no limit.
inline std::atomic<uint64_t> write_bytes_per_day{ 0 };

} // namespace llama_run

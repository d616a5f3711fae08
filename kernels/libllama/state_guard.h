// Called by the patched llama-kv-cache.cpp before cells are written to: their rows may still be on their way to host memory
// (state_takings.h). It returns at once where they are not, and waits for them where they are.
#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

class llama_kv_cache;

void llama_state_before_write(const llama_kv_cache * kv); // to any cell

void llama_state_before_write(const llama_kv_cache * kv, const std::vector<llama_seq_id> & streams, const std::vector<std::vector<uint32_t>> & cells);

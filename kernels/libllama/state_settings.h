// The settings of a context that shape the bytes of its state, besides model and K/V types.
//
// Compiled into libllama (libllama.cmake): what was asked for and what the context settled on differ (flash attention
// "auto", RoPE values taken from the model), and only libllama knows the latter.
#pragma once

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// "name=value" lines in a fixed order, as llama_model_desc returns its text: the length, or more than size - 1 when it was
// cut. Context and batch sizes, threads and backends are left out: they do not change what a sequence's state means.
LLAMA_API int32_t llama_state_settings(const struct llama_context * ctx, char * buf, size_t size);

#ifdef __cplusplus
}
#endif

// The fingerprint of a model as a context runs it: the name of its folder in the cache, and part of every key.
#pragma once

#include "kvtier/keys.h"
#include "kvtier/status.h"

#include "llama.h"

#include <string>
#include <utility>
#include <vector>

namespace llama_run {

struct fingerprint_request {
    std::string           model_path; // the first part of a split set
    const llama_context * ctx    = nullptr;
    ggml_type             type_k = GGML_TYPE_F16;
    ggml_type             type_v = GGML_TYPE_F16;

    // Whatever else is applied to all requests: control vectors, adapters loaded with the model. Name and content.
    std::vector<std::pair<std::string, std::string>> extras;
};

// Reads the metadata, the tensor table and a sample of every tensor from the GGUF files: two fine-tunes of one shape
// differ in their tensors only. Takes milliseconds for small models and well under a second for large ones.
// facts, if given, gets what went into it, for people: lines of name=value.
kvtier::status model_fingerprint(const fingerprint_request & request, kvtier::key & out, std::string * facts = nullptr);

// Of an adapter's or control vector's file: head, tensor table and samples.
kvtier::status file_key(const std::string & path, kvtier::key & out);

} // namespace llama_run

// The stores of a model and its draft model: which folder, how large, for which model.
//
// Thread safety: open belongs to the thread that loads the model; afterwards the members do not change, and the stores look
// after themselves.
#pragma once

#include "kvtier/status.h"
#include "llama/sequence_store.h"

#include "common.h"

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace llama_run {

struct cache_stores {
    std::string                     root_dir;
    std::unique_ptr<sequence_store> target;
    std::unique_ptr<sequence_store> draft;     // null: there is none, or one whose state does not travel
    std::set<uint64_t>              elsewhere; // conversations of other fingerprints

    kvtier::status open(const common_params & params, llama_context * target_ctx, llama_context * draft_ctx);

    // Waits until all that was saved is on disk.
    void flush();

    // Those that there are.
    std::vector<sequence_store *> all();

private:
    kvtier::status open_one(const common_params & params, llama_context * ctx, const std::string & model_path,
                            ggml_type type_k, ggml_type type_v, std::unique_ptr<sequence_store> & out);
    void           look_elsewhere(const kvtier::key & fingerprint);
};

} // namespace llama_run

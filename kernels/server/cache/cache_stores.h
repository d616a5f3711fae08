// The stores of a model and its draft model: which folder, how large, for which model.
//
// Thread safety: open and close belong to the thread that loads the model. In between the members do not change; the stores look
// after themselves, and sequence_store.h says what of them belongs to the context's thread.
#pragma once

#include "kvtier/shared/shared_tier.h"
#include "kvtier/status.h"
#include "llama/sequence_store.h"

#include "common.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace llama_run {

struct shared_folder_options;

struct cache_stores {
    std::string                     root_dir;
    std::unique_ptr<sequence_store> target;
    std::unique_ptr<sequence_store> draft;     // null: there is none, or one whose state does not travel
    std::unique_ptr<kvtier::shared_tier> shared; // of the model alone; null: there is none
    std::chrono::milliseconds            patience{ 0 }; // with the shared folder
    std::set<uint64_t>              elsewhere; // conversations of other fingerprints

    kvtier::status open(const common_params & params, llama_context * target_ctx, llama_context * draft_ctx);

    // Removes these conversations, and what of the draft model's has expired.
    void remove_expired(const std::vector<kvtier::conversation_id> & of_target);

    // Waits until all that was saved is on disk.
    void flush();

    // Waits for a while until it is in the shared folder, too.
    void publish();

    // The same, and the contexts are not needed afterwards. Requests that still hold what they found keep the stores.
    void close();

    // Gives those that there are.
    std::vector<sequence_store *> all();

private:
    kvtier::status open_one(const common_params & params, llama_context * ctx, const std::string & model_path,
                            ggml_type type_k, ggml_type type_v, std::unique_ptr<sequence_store> & out);
    void           open_shared(const shared_folder_options & want);
    void           look_elsewhere(const kvtier::key & fingerprint);
};

} // namespace llama_run

// The experts' counts of the model that is being served, across its sleeps: a model that sleeps has no context, its counts stay.
//
// Thread safety: any thread. open and close belong to the thread that loads the model.
#pragma once

#include "kvtier/thread_annotations.h"

#include "json.h"
#include "llama.h"

#include <cstdint>
#include <vector>

namespace llama_run {

class expert_view {
public:
    void open(llama_context * target);
    void close();

    void        track(bool on);
    void        reset();
    common_json describe() const;

private:
    struct counts {
        bool                  tracking      = false;
        int32_t               n_expert      = 0;
        int32_t               n_expert_used = 0;
        uint64_t              n_tokens      = 0;
        std::vector<uint64_t> layer_tokens; // a value per layer
        std::vector<uint64_t> chosen;       // layers x experts
    };

    counts now() const REQUIRES(mu);

    mutable kvtier::mutex mu;
    llama_context *       context GUARDED_BY(mu) = nullptr;
    counts                before GUARDED_BY(mu); // what contexts counted that are gone
};

} // namespace llama_run

// Which chain a request's state belongs to: its user, and the adapters it is evaluated with.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "kvtier/status.h"
#include "llama/sequence_store.h"

#include "common.h"
#include "server-task.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace llama_run {

class adapter_scopes {
public:
    // Reads the adapters' files. Call it once, before everything else.
    kvtier::status open(const std::vector<common_adapter_lora_info> & at_start);

    // False when an adapter is active whose state cannot be told apart: one that came after the start, or that sets in
    // somewhere within the prompt.
    bool of(const std::string & user, const std::vector<common_adapter_lora_info> & lora, sequence_scope & out) const;

    // For a request that has no slot yet.
    sequence_scope of_request(const std::string & user, const task_params & params) const;

    // The adapters of requests that name none: a client may change them while the server runs.
    void set_defaults(const std::vector<common_adapter_lora_info> & lora);

private:
    std::map<std::string, kvtier::key>    keys; // by path; they do not change once open has returned
    mutable std::mutex                    mu;
    std::vector<common_adapter_lora_info> defaults;
};

} // namespace llama_run

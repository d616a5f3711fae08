#include "server/cache/adapter_scopes.h"

#include "llama/model_fingerprint.h"

namespace llama_run {

using kvtier::status;

status adapter_scopes::open(const std::vector<common_adapter_lora_info> & at_start) {
    for (const common_adapter_lora_info & adapter : at_start) {
        if (status s = file_key(adapter.path, keys[adapter.path]); !s.is_ok()) {
            return s;
        }
    }
    set_defaults(at_start);
    return status::ok();
}

bool adapter_scopes::of(const std::string & user, const std::vector<common_adapter_lora_info> & lora,
                        sequence_scope & out) const {
    out = {};
    out.user = user;
    for (const common_adapter_lora_info & adapter : lora) {
        if (adapter.scale == 0) {
            continue;
        }
        const auto known = keys.find(adapter.path);
        if (known == keys.end() ||
            (adapter.ptr != nullptr && llama_adapter_get_alora_n_invocation_tokens(adapter.ptr) > 0)) {
            return false;
        }
        out.adapters.push_back({ known->second, adapter.scale });
    }
    return true;
}

sequence_scope adapter_scopes::of_request(const std::string & user, const task_params & params) const {
    std::vector<common_adapter_lora_info> lora;
    {
        std::lock_guard<std::mutex> guard(mu);
        lora = defaults;
    }
    if (!params.lora.empty()) {
        for (size_t i = 0; i < lora.size(); i++) {
            const auto named = params.lora.find(static_cast<int>(i));
            lora[i].scale = named == params.lora.end() ? 0.0f : named->second;
        }
    }
    sequence_scope scope;
    (void) of(user, lora, scope);
    return scope;
}

void adapter_scopes::set_defaults(const std::vector<common_adapter_lora_info> & lora) {
    std::lock_guard<std::mutex> guard(mu);
    defaults = lora;
}

} // namespace llama_run

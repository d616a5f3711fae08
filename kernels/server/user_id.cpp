#include "server/user_id.h"

#include <algorithm>
#include <stdexcept>

namespace llama_run {

static constexpr size_t max_length = 512;

bool is_user_id(const std::string & text) {
    return text.size() <= max_length && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    });
}

static std::string checked(const char * name, const common_json & value) {
    if (value.is_null()) {
        return ""; // how clients say that they leave a field out
    }
    if (!value.is_string() || !is_user_id(value.get<std::string>())) {
        throw std::invalid_argument(std::string(name) + " must be a string of at most " + std::to_string(max_length) +
                                    " letters, digits, '_' and '-'");
    }
    return value.get<std::string>();
}

std::string user_id_of(const common_json & body) {
    // The conversion of Anthropic bodies leaves metadata.user_id under this name.
    if (body.contains("__metadata_user_id")) {
        return checked("metadata.user_id", body.at("__metadata_user_id"));
    }
    return body.contains("llama_user_id") ? checked("llama_user_id", body.at("llama_user_id")) : std::string();
}

std::shared_ptr<void> user_gate::enter(const std::string & user, uint32_t limit) {
    std::lock_guard<std::mutex> guard(shared->mu);
    uint32_t & active = shared->active[user];
    if (limit > 0 && active >= limit) {
        return nullptr;
    }
    active++;
    // The address only says that there is something: an empty shared_ptr would read as a refusal.
    return std::shared_ptr<void>(shared.get(), [counts = shared, user](void *) {
        std::lock_guard<std::mutex> leaving(counts->mu);
        if (--counts->active[user] == 0) {
            counts->active.erase(user);
        }
    });
}

} // namespace llama_run

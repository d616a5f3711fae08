// Fields of what clients send, which may be of any kind.
#pragma once

#include "json.h"

#include <string>

namespace llama_run {

// Empty: there is no such field, or it is no string.
inline std::string string_at(const common_json & object, const char * name) {
    return object.is_object() && object.contains(name) && object.at(name).is_string() ? object.at(name).get<std::string>()
                                                                                      : std::string();
}

} // namespace llama_run

// Text from clients, for logs and error messages.
#pragma once

#include <string>

namespace llama_run {

// Without control characters, which could begin a line of their own, and cut where nobody reads on.
inline std::string printable(std::string text, size_t max_bytes = 100) {
    if (text.size() > max_bytes) {
        text.resize(max_bytes);
        text += "...";
    }
    for (char & c : text) {
        c = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    }
    return text;
}

} // namespace llama_run

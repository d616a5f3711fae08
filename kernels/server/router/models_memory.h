// What --models-memory says. It is the process's own: no part of upstream's settings asks for it.
#pragma once

#include <cstdint>

namespace llama_run {

// Bytes that the models of a router may take together; 0: they are counted, as upstream does. It is written while the command
// line is read, by one thread, and only read after that.
inline uint64_t & models_memory() {
    static uint64_t bytes = 0;
    return bytes;
}

} // namespace llama_run

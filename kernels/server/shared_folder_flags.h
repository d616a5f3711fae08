// What the flags of the shared folder say. They are the process's own: no part of upstream's settings asks for them.
#pragma once

#include <cstdint>
#include <string>

namespace llama_run {

struct shared_folder_flags {
    std::string path;                 // empty: there is none
    uint64_t    max_bytes    = 0;     // in it; 0: a fifth of the free space, at most 64 GiB
    double      timeout_s    = 5;     // of a call on it
    bool        users        = false; // named ones share, too
    bool        all_backends = false; // state is used that other kinds of backend have computed
};

// They are written while the command line is read, by one thread, and only read after that.
inline shared_folder_flags & shared_flags() {
    static shared_folder_flags flags;
    return flags;
}

} // namespace llama_run

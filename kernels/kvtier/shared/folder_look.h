// A look at the shared folder: the index learns what is there.
#pragma once

#include "kvtier/shared/shared_folder.h"
#include "kvtier/shared/shared_index.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace kvtier {

struct folder_look {
    std::vector<unfinished_file> unfinished;
    std::string                  lease; // what it says; empty: there is none
    uint64_t                     free_bytes = 0;
    uint64_t                     n_damaged  = 0;
    bool                         is_marked  = false;

    // What was passed over, and why the first of it was.
    std::vector<std::string> unreadable_folders;
    uint64_t                 n_unreadable_files = 0;
    std::string              problem;

    uint64_t n_unreadable() const { return unreadable_folders.size() + n_unreadable_files; }
};

// Damaged files go at once, so that sound ones can take their place; one that cannot be read is tried again by the next
// look. was_used: it must have its mark. It may hang for as long as the folder does.
status look_into(shared_folder & folder, shared_index & index, bool was_used, const std::atomic<bool> & abandoned,
                 folder_look & out);

} // namespace kvtier

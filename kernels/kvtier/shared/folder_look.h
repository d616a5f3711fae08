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
    std::vector<std::string> unfinished; // names of files that are being written, or were
    std::string              lease;      // what it says; empty: there is none
    uint64_t                 free_bytes = 0;
    uint64_t                 n_damaged  = 0;
};

// Damaged files go at once, so that sound ones can take their place. It may hang for as long as the folder does.
status look_into(shared_folder & folder, shared_index & index, const std::atomic<bool> & abandoned, folder_look & out);

} // namespace kvtier

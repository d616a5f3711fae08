// What a restore reads, cut into pieces that threads can share out, and how one piece is read and checked.
#pragma once

#include "kvtier/env.h"
#include "kvtier/file_names.h"
#include "kvtier/search.h"
#include "kvtier/status.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvtier {

// Runs next to each other in one file, or a part of the anchor: they are read one after the other, ahead of use.
struct read_task {
    std::string         path;
    uint64_t            file_size = 0;        // of an anchor
    uint64_t            offset    = 0;
    uint64_t            bytes     = 0;
    const segment *     owner     = nullptr;  // is kept by the match
    bool                is_anchor = false;
    bool                is_large  = false;    // is read in blocks
    bool                is_cached = true;     // by the system: no disk is waited for
    bool                given_up  = false;    // nobody waited for it
    std::vector<size_t> runs;                 // indices into match::runs
    status              result = status::ok();
};

// What has to be read of a match, beyond what is there already.
std::vector<read_task> read_tasks(const file_layout & layout, const match & m, const loaded_state & have);

// Of all tasks of a load.
struct read_progress {
    std::atomic<uint64_t> n_bytes{ 0 };
    std::atomic<bool>     abandoned{ false }; // nobody waits for the rest
};

status given_up();                          // what abandoned reading ends with
status mismatch(const std::string & path); // state that does not match its checksum

// Opens the file of a task and tells the system what is about to be read.
status open_for(env & e, const read_task & task, std::unique_ptr<readable_file> & out);

// Fills the buffer from the file and checks it on the way.
status read_verified(readable_file & file, const read_task & task, uint64_t offset, buffer & out, uint64_t expected,
                     read_progress & progress);

// Fills a part of a buffer and leaves the check to whoever has the whole. A large buffer must be made for this file's offset.
status read_part(readable_file & file, const read_task & task, uint8_t * to, read_progress & progress);

} // namespace kvtier

// Folded state of a sequence: it is valid at one length and nowhere else.
#pragma once

#include "kvtier/buffer.h"
#include "kvtier/writer.h"

#include <cstdint>
#include <memory>

namespace llama_run {

struct anchor_copy {
    uint32_t     n_tokens = 0;
    kvtier::blob data;
    std::shared_ptr<const kvtier::arriving_data> arriving; // null: it is there
    bool         is_shared = false; // Other conversations go on from it, too.
};

} // namespace llama_run

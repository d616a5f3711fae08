// The head of a file, as it is read before anything in it is believed.
#pragma once

#include "kvtier/env.h"
#include "kvtier/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvtier {

// Reads the head alone. The file must be of this kind and as long as it says.
status read_head(env & e, const std::string & path, uint16_t kind, uint64_t & file_size, std::vector<uint8_t> & out);

// A restore takes as much memory as a file says it has state. No state shrinks to a 64th by compression: a large file with
// so little behind it was made up.
status check_space(uint64_t on_disk, uint64_t file_size);

} // namespace kvtier

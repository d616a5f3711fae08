// Cutting off what a removed conversation leaves in files that others need.
//
// A segment goes as a whole, but a conversation may have shared only its beginning. What is left then is still its words. The
// runs of a segment follow each other, so that those which nobody needs are its last ones: the file is written again without
// them. Their entries stay, empty, so that nothing that is being read moves.
#pragma once

#include "kvtier/store_rooms.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace kvtier {

// Cuts these segments, and those that could not be cut before. One that somebody reads waits for the next time. bytes_freed
// grows; changed gets the folders to be synced.
status trim(store_rooms & rooms, const std::vector<uint64_t> & segments, uint64_t & bytes_freed, std::set<std::string> & changed)
    REQUIRES(rooms.files.writing);

} // namespace kvtier

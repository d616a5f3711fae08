// What may not be evicted now, because a conversation needs it that is to be kept (lifetime.h).
//
// There is a budget for it. The longest lifetimes come first, of equal ones those used last; a conversation that does not fit any
// more is treated like one without. What several share counts once.
//
// Ownership: it points into the graph and is valid while nobody changes that.
#pragma once

#include "kvtier/object_graph.h"

#include <cstdint>
#include <unordered_set>

namespace kvtier {

class protection {
public:
    protection(const object_graph & all, uint64_t budget, int64_t now_ms);

    bool     covers(const segment * s) const { return segments.count(s) != 0; }
    bool     covers(const conversation * c) const { return conversations.count(c) != 0; }
    uint64_t bytes() const { return used; } // of segments, and of the anchors in them

private:
    std::unordered_set<const segment *>      segments;
    std::unordered_set<const conversation *> conversations;
    uint64_t                                 used = 0;
};

// The disk space of a segment with its anchors.
uint64_t size_with_anchors(const segment & s);

} // namespace kvtier

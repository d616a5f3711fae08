#include "kvtier/protection.h"

#include "kvtier/blocks.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace kvtier {

uint64_t size_with_anchors(const segment & s) {
    uint64_t bytes = disk_size(s.file_size);
    for (const run & r : s.runs) {
        bytes += r.anchored != nullptr && r.anchored->is_written() ? disk_size(r.anchored->file_size) : 0;
    }
    return bytes;
}

protection::protection(const object_graph & all, uint64_t budget, int64_t now_ms) {
    std::vector<const conversation *> wanted;
    for (const auto & [id, c] : all.conversations) {
        if (standing_of(c->life, now_ms - c->last_used_ms) == standing::kept) {
            wanted.push_back(c.get());
        }
    }
    if (wanted.empty()) {
        return; // most stores have none, and this is asked at every eviction
    }
    std::sort(wanted.begin(), wanted.end(), [](const conversation * a, const conversation * b) {
        return a->life.ttl_ms != b->life.ttl_ms ? a->life.ttl_ms > b->life.ttl_ms : a->last_used_ms > b->last_used_ms;
    });
    std::unordered_map<const conversation *, std::vector<const segment *>> needed;
    for (const conversation * c : wanted) {
        needed[c];
    }
    for (const auto & [id, s] : all.segments) {
        for (const auto & [user, n] : s->users) {
            if (const auto it = needed.find(user); it != needed.end()) {
                it->second.push_back(s.get());
            }
        }
    }
    for (const conversation * c : wanted) {
        uint64_t more = 0;
        for (const segment * s : needed[c]) {
            more += covers(s) ? 0 : size_with_anchors(*s);
        }
        if (more <= budget - used) {
            used += more;
            conversations.insert(c);
            segments.insert(needed[c].begin(), needed[c].end());
        }
    }
}

} // namespace kvtier

#include "kvtier/evictor.h"

#include "kvtier/protection.h"
#include "kvtier/store_rooms.h"

#include <algorithm>

namespace kvtier {

uint64_t evictor::evictable_bytes() const {
    return rooms.known.read([&](const object_graph & all) {
        const protection kept(all, rooms.options.protected_bytes, rooms.e.now_ms());
        uint64_t sum = 0;
        for (const auto & [id, s] : all.segments) {
            sum += s->pins == 0 && !kept.covers(s.get()) ? disk_size(s->file_size) : 0;
        }
        for (const auto & [id, a] : all.anchors) {
            const bool is_kept = a->at != nullptr && kept.covers(a->at->owner);
            sum += a->pins == 0 && a->is_written() && !is_kept ? disk_size(a->file_size) : 0;
        }
        for (const auto & [id, c] : all.conversations) { // their checkpoints go with the state
            if (kept.covers(c.get())) {
                continue;
            }
            sum += disk_size(c->index_size) + rooms.bytes.bytes_of(rooms.layout.conversation(c->name_space, c->hash));
            for (const auto & [number, point] : c->checkpoints) {
                sum += disk_size(point->file_size);
            }
        }
        return sum;
    });
}

static bool evict(store_rooms & rooms, const eviction & next) REQUIRES(rooms.files.writing) {
    std::vector<uint64_t> left;
    const doomed_files    gone = rooms.known.evict(next, left);
    rooms.untrimmed.insert(left.begin(), left.end()); // It is cut when a save is over: that takes room, which is just being made.
    if (gone.empty()) {
        return !next.is_empty(); // it was pinned or went since: look again
    }
    const uint64_t freed = rooms.files.remove(gone);
    rooms.count.evicted_bytes += freed;
    return freed > 0;
}

bool evictor::evict_below(double worth) {
    if (!rooms.files.writing.try_lock()) {
        return false;
    }
    mutex_lock     writing(rooms.files.writing, std::adopt_lock);
    const eviction next = rooms.known.next_eviction(rooms.e.now_ms());
    return next.worth < worth && evict(rooms, next);
}

bool free_room(store_rooms & rooms, uint64_t n_bytes) {
    disk_budget & budget   = rooms.bytes.budget();
    const auto    has_room = [&](uint64_t used) { return n_bytes <= budget.limit() && used <= budget.limit() - n_bytes; };
    if (!has_room(budget.used())) {
        uint64_t freed = 0;
        (void) rooms.files.empty_quarantine(freed).is_ok();
    }
    const uint64_t used = budget.used();
    if (!has_room(used) &&
        !has_room(used - std::min(used, rooms.room.evictable_bytes() + budget.evictable_of_others(&rooms.room)))) {
        return false;
    }
    while (!has_room(budget.used())) {
        const eviction next = rooms.known.next_eviction(rooms.e.now_ms());
        if (!budget.evict_of_others(&rooms.room, next.worth) && !evict(rooms, next)) {
            return false;
        }
    }
    return true;
}

bool make_room(store_rooms & rooms, uint64_t n_bytes, reservation & out) {
    if (rooms.bytes.budget().is_look_due(rooms.e.now_ms())) {
        count_other_models(rooms, n_bytes);
    }
    while (!rooms.bytes.reserve(n_bytes, out)) {
        if (!free_room(rooms, n_bytes)) {
            return false;
        }
    }
    return true;
}

} // namespace kvtier

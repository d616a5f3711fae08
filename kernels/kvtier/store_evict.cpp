// Making room: what is worth least goes, of all stores that share the budget.
#include "kvtier/store_state.h"

#include <algorithm>

namespace kvtier {

// What eviction could free at most.
uint64_t store_state::evictable_bytes() const {
    std::shared_lock<std::shared_mutex> guard(mu);
    uint64_t bytes = 0;
    for (const auto & [id, s] : segments) {
        bytes += s->pins == 0 ? disk_size(s->file_size) : 0;
    }
    for (const auto & [id, a] : anchors) {
        bytes += a->pins == 0 ? disk_size(a->file_size) : 0;
    }
    for (const auto & [id, c] : conversations) { // their checkpoints go with the state
        const auto folder = folders.find(names::join(folder_of(c->name_space), hex(c->hash)));
        bytes += disk_size(c->index_size) + (folder == folders.end() ? 0 : folder->second);
        for (const auto & [number, point] : c->checkpoints) {
            bytes += disk_size(point->file_size);
        }
    }
    return bytes;
}

eviction store_state::next_eviction() const {
    std::shared_lock<std::shared_mutex> guard(mu);
    eviction       next;
    const int64_t  now      = e.now_ms();
    const uint64_t serving  = n_lookups.load();
    const auto     facts_of = [&](const auto & object, const segment * of) {
        object_facts facts;
        facts.bytes           = object.file_size;
        facts.age_ms          = now - object.last_used_ms;
        facts.idle_turns      = turn_of(object.name_space) - std::min(turn_of(object.name_space), object.last_turn);
        facts.hits            = object.hits;
        facts.static_prefix   = (object.flags & format::flag_static_prefix) != 0;
        facts.n_conversations = static_cast<uint32_t>(of->users.size());
        facts.being_served    = serving != 0 && of->looked_up == serving;
        return facts;
    };
    for (const auto & [id, s] : segments) {
        if (s->pins != 0 || s->n_outer_children != 0) {
            continue;
        }
        if (const double worth = s->n_attached == 0 ? -1 : keep_score(facts_of(*s, s.get())); worth < next.worth) {
            next = { s, nullptr, worth };
        }
    }
    for (const auto & [id, a] : anchors) {
        if (a->pins != 0 || (a->at != nullptr && a->at->owner->pins != 0)) {
            continue;
        }
        if (const double worth = a->at == nullptr ? -1 : keep_score(facts_of(*a, a->at->owner)); worth < next.worth) {
            next = { nullptr, a, worth };
        }
    }
    return next;
}

bool store_state::evict(const eviction & next) {
    doomed_files files;
    {
        std::unique_lock<std::shared_mutex> guard(mu);
        const auto & [of_segment, of_anchor, worth] = next;
        const bool has_segment = of_segment != nullptr && segments.count(of_segment->id) != 0;
        const bool has_anchor  = of_anchor != nullptr && anchors.count({ of_anchor->name_space, of_anchor->k }) != 0;
        if (has_segment && of_segment->pins == 0) {
            forget_segment(*of_segment, files);
            count.evicted_segments++;
        } else if (has_anchor && of_anchor->pins == 0) {
            forget_checkpoints_at(of_anchor->at, files);
            forget_anchor(of_anchor, files);
            count.evicted_anchors++;
        }
    }
    if (files.empty()) {
        return next.of_segment != nullptr || next.of_anchor != nullptr; // pinned or gone since: look again
    }
    const uint64_t freed = remove_files(files);
    count.evicted_bytes += freed;
    return freed > 0;
}

bool store_state::evict_one() {
    const eviction next = next_eviction();
    return budget->evict_of_others(this, next.worth) || evict(next);
}

bool store_state::evict_below(double worth) {
    std::unique_lock<std::mutex> writing(write_mu, std::try_to_lock);
    if (!writing.owns_lock()) {
        return false;
    }
    const eviction next = next_eviction();
    return next.worth < worth && evict(next);
}

// Evicts until there is room for so many bytes more, or not at all: when other files alone take too much, throwing away
// what is stored would help nobody.
bool store_state::free_room(uint64_t bytes) {
    const auto has_room = [&](uint64_t used) { return bytes <= budget->limit() && used <= budget->limit() - bytes; };
    if (!has_room(budget->used())) {
        empty_quarantine();
    }
    const uint64_t used = budget->used();
    if (!has_room(used) && !has_room(used - std::min(used, evictable_bytes() + budget->evictable_of_others(this)))) {
        return false;
    }
    while (!has_room(budget->used())) {
        if (!evict_one()) {
            return false;
        }
    }
    return true;
}

bool store_state::make_room(uint64_t bytes) {
    while (!budget->reserve(bytes)) {
        if (!free_room(bytes)) {
            return false;
        }
    }
    own_bytes += bytes;
    return true;
}

} // namespace kvtier

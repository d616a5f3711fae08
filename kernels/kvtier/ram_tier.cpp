#include "kvtier/ram_tier.h"

#include <algorithm>

namespace kvtier {

static uint64_t idle(uint64_t now, uint64_t last) {
    return now > last ? now - last : 0;
}

ram_tier::entries::iterator ram_tier::drop(entries::iterator it) {
    bytes_ -= it->data->memory_size();
    uint64_t & held = by_name_space[it->name_space];
    held -= it->data->memory_size();
    if (held == 0) {
        by_name_space.erase(it->name_space);
    }
    map(it->kind).erase(it->k);
    return used.erase(it);
}

blob ram_tier::get(object_kind kind, const key & k, uint64_t turn) {
    mutex_lock guard(mu);
    const auto found = map(kind).find(k);
    if (found == map(kind).end()) {
        return nullptr;
    }
    const entries::iterator it = found->second;
    it->last_turn = std::max(it->last_turn, turn);
    used.splice(used.begin(), used, it);
    return it->data;
}

bool ram_tier::peek(object_kind kind, const key & k, uint64_t turn, tier & out) const {
    mutex_lock guard(mu);
    const auto found = map(kind).find(k);
    if (found == map(kind).end()) {
        return false;
    }
    out = tier_of(idle(turn, found->second->last_turn), true, windows);
    return true;
}

bool ram_tier::put(object_kind kind, const key & name_space, const key & k, blob data, uint64_t turn) {
    mutex_lock guard(mu);
    if (const auto found = map(kind).find(k); found != map(kind).end()) {
        found->second->last_turn = std::max(found->second->last_turn, turn);
        used.splice(used.begin(), used, found->second);
        return true;
    }
    const uint64_t size = data->memory_size();
    if (size > budget_) {
        return false;
    }
    // Whoever takes more than an equal share makes room first.
    const auto     held  = by_name_space.find(name_space);
    const uint64_t own   = held == by_name_space.end() ? 0 : held->second;
    const uint64_t share = budget_ / (by_name_space.size() + (held == by_name_space.end() ? 1 : 0));
    for (auto it = used.end(); bytes_ > budget_ - size && it != used.begin();) {
        --it;
        const bool over = it->name_space == name_space ? own + size > share : by_name_space[it->name_space] > share;
        if (over && it->data.use_count() == 1) {
            it = drop(it);
        }
    }
    if (bytes_ > budget_ - size) {
        return false;
    }
    used.push_front({ kind, k, name_space, std::move(data), turn });
    map(kind)[k] = used.begin();
    bytes_ += size;
    by_name_space[name_space] += size;
    peak_ = std::max(peak_, bytes_);
    return true;
}

void ram_tier::erase(object_kind kind, const key & k) {
    mutex_lock guard(mu);
    if (const auto found = map(kind).find(k); found != map(kind).end()) {
        drop(found->second);
    }
}

void ram_tier::erase_name_space(const key & name_space) {
    mutex_lock guard(mu);
    for (auto it = used.begin(); it != used.end();) {
        it = it->name_space == name_space ? drop(it) : std::next(it);
    }
}

void ram_tier::begin_turn(const key & name_space, uint64_t turn) {
    mutex_lock guard(mu);
    for (auto it = used.begin(); it != used.end();) {
        const bool cold = it->name_space == name_space && idle(turn, it->last_turn) >= windows.warm;
        it = cold ? drop(it) : std::next(it);
    }
}

uint64_t ram_tier::bytes() const {
    mutex_lock guard(mu);
    return bytes_;
}

uint64_t ram_tier::peak_bytes() const {
    mutex_lock guard(mu);
    return peak_;
}

size_t ram_tier::size() const {
    mutex_lock guard(mu);
    return used.size();
}

} // namespace kvtier

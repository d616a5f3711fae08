#include "server/cache/slot_board.h"

#include <algorithm>
#include <utility>

namespace llama_run {

sequence_scope slot_board::scope(int id) const {
    kvtier::mutex_lock guard(mu);
    return at(id).scope;
}

uint64_t slot_board::conversation(int id) const {
    kvtier::mutex_lock guard(mu);
    return at(id).conversation;
}

bool slot_board::is_removed(int id) const {
    kvtier::mutex_lock guard(mu);
    return at(id).removed;
}

size_t slot_board::best_offer(const sequence_scope & scope, const std::vector<kvtier::token> & prompt) const {
    kvtier::mutex_lock guard(mu);
    size_t best = 0;
    for (const entry & slot : slots) {
        if (slot.idle && !slot.removed && slot.scope == scope) {
            best = std::max(best, slot.held.reusable(prompt));
        }
    }
    return best;
}

bool slot_board::take(int id, const sequence_scope & scope, uint64_t conversation, std::vector<kvtier::token> naming,
                      const std::atomic<bool> & removed) {
    kvtier::mutex_lock guard(mu);
    const bool was_removed = at(id).removed;
    entry      now;
    now.scope        = scope;
    now.conversation = conversation;
    now.naming       = std::move(naming);
    now.idle         = false;
    now.removed      = removed;
    at(id) = std::move(now);
    handed_over.notify_all();
    return was_removed;
}

void slot_board::disown(int id) {
    kvtier::mutex_lock guard(mu);
    entry now;
    now.scope.user = nobody;
    now.idle       = false;
    now.removed    = at(id).removed;
    at(id) = std::move(now);
    handed_over.notify_all();
}

void slot_board::offer(int id, slot_offer held) {
    kvtier::mutex_lock guard(mu);
    rest(at(id), std::move(held));
}

void slot_board::offer_unnamed(int id, slot_offer held) {
    kvtier::mutex_lock guard(mu);
    at(id).scope        = {};
    at(id).conversation = 0;
    at(id).naming.clear();
    rest(at(id), std::move(held));
}

void slot_board::rest(entry & slot, slot_offer held) {
    slot.held         = std::move(held);
    slot.idle         = true;
    slot.handing_over = false;
    handed_over.notify_all();
}

void slot_board::begin_hand_over(int id) {
    kvtier::mutex_lock guard(mu);
    at(id).handing_over = true;
}

void slot_board::end_hand_over(int id) {
    kvtier::mutex_lock guard(mu);
    at(id).handing_over = false;
    handed_over.notify_all();
}

void slot_board::wait_until_handed_over() {
    kvtier::mutex_lock guard(mu);
    while (std::any_of(slots.begin(), slots.end(), [](const entry & slot) { return slot.handing_over; })) {
        handed_over.wait(guard);
    }
}

bool slot_board::concerns(const removal & what, const entry & slot) {
    return what.concerns(slot.scope, slot.conversation, slot.naming) ||
           what.concerns(slot.scope, slot.conversation, slot.held.tokens);
}

bool slot_board::is_served(const removal & what) const {
    kvtier::mutex_lock guard(mu);
    return std::any_of(slots.begin(), slots.end(), [&](const entry & slot) {
        return !slot.idle && slot.scope.user != nobody && concerns(what, slot);
    });
}

std::vector<int> slot_board::remove(const removal & what) {
    std::vector<int>   concerned;
    kvtier::mutex_lock guard(mu);
    for (size_t i = 0; i < slots.size(); i++) {
        entry & slot = slots[i];
        if (concerns(what, slot)) {
            slot.removed = true;
            concerned.push_back(static_cast<int>(i));
        }
    }
    guard.unlock(); // Freeing them takes a while.
    for (const int id : concerned) {
        anchors.clear(id); // A busy slot's are cleared once more when it is released.
    }
    return concerned;
}

} // namespace llama_run

#include "server/cache/slot_board.h"

#include <algorithm>
#include <utility>

namespace llama_run {

sequence_scope slot_board::scope(int id) const {
    std::lock_guard<std::mutex> guard(mu);
    return at(id).scope;
}

bool slot_board::is_removed(int id) const {
    std::lock_guard<std::mutex> guard(mu);
    return at(id).removed;
}

size_t slot_board::best_offer(const sequence_scope & scope, const std::vector<kvtier::token> & prompt) const {
    std::lock_guard<std::mutex> guard(mu);
    size_t best = 0;
    for (const entry & slot : slots) {
        if (slot.idle && !slot.removed && slot.scope == scope) {
            best = std::max(best, slot.held.reusable(prompt));
        }
    }
    return best;
}

bool slot_board::take(int id, const sequence_scope & scope, std::vector<kvtier::token> naming, bool removed) {
    std::lock_guard<std::mutex> guard(mu);
    const bool was_removed = at(id).removed;
    entry      now;
    now.scope   = scope;
    now.naming  = std::move(naming);
    now.idle    = false;
    now.removed = removed;
    at(id) = std::move(now);
    handed_over.notify_all();
    return was_removed;
}

void slot_board::disown(int id) {
    std::lock_guard<std::mutex> guard(mu);
    entry now;
    now.scope.user = nobody;
    now.idle       = false;
    now.removed    = at(id).removed;
    at(id) = std::move(now);
    handed_over.notify_all();
}

void slot_board::offer(int id, slot_offer held) {
    std::lock_guard<std::mutex> guard(mu);
    rest(at(id), std::move(held));
}

void slot_board::offer_unnamed(int id, slot_offer held) {
    std::lock_guard<std::mutex> guard(mu);
    at(id).scope = {};
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
    std::lock_guard<std::mutex> guard(mu);
    at(id).handing_over = true;
}

void slot_board::end_hand_over(int id) {
    std::lock_guard<std::mutex> guard(mu);
    at(id).handing_over = false;
    handed_over.notify_all();
}

void slot_board::wait_until_handed_over() {
    std::unique_lock<std::mutex> guard(mu);
    handed_over.wait(guard, [&] {
        return std::none_of(slots.begin(), slots.end(), [](const entry & slot) { return slot.handing_over; });
    });
}

std::vector<int> slot_board::remove(const removal & what) {
    std::lock_guard<std::mutex> guard(mu);
    std::vector<int> concerned;
    for (size_t i = 0; i < slots.size(); i++) {
        entry & slot = slots[i];
        if (what.concerns(slot.scope, slot.naming) || what.concerns(slot.scope, slot.held.tokens)) {
            slot.removed = true;
            concerned.push_back(static_cast<int>(i));
        }
    }
    return concerned;
}

} // namespace llama_run

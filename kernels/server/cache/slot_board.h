// What each slot holds, as far as others may know it.
//
// The inference thread writes what its slots hold; HTTP workers read what an idle one could give to a prompt, and removals mark
// what must be forgotten. Between both stands one mutex, held for moments.
//
// A slot's state after a removal: the mark stays until the next request takes the slot, which clears what it held. Until then
// nothing of it is offered or saved.
//
// Thread safety: all functions may be called from any thread; take, disown, offer and the handing over belong to the inference
// thread.
#pragma once

#include "server/cache/removal.h"
#include "server/cache/slot_offer.h"

#include "llama/sequence_store.h"

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <vector>

namespace llama_run {

class slot_board {
public:
    explicit slot_board(size_t n_slots) : slots(n_slots) {}

    // Whose state it is, or whose request is in it.
    sequence_scope scope(int id) const;

    // Whether what it holds was removed on request.
    bool is_removed(int id) const;

    // The most that an idle slot of this scope could give to a prompt without the store: tokens.
    size_t best_offer(const sequence_scope & scope, const std::vector<kvtier::token> & prompt) const;

    // A request begins in the slot: from now on a removal finds it here. removed: one has found it while it waited. Gives
    // whether what the slot has held was removed.
    bool take(int id, const sequence_scope & scope, std::vector<kvtier::token> naming, bool removed);

    // A request without a ticket begins in the slot.
    void disown(int id);

    // The slot is idle and holds this.
    void offer(int id, slot_offer held);

    // The same where somebody else put it there: state from upstream's files, which name no user.
    void offer_unnamed(int id, slot_offer held);

    // The client may have its answer while the store does not have its state yet. It ends with end_hand_over or offer.
    void begin_hand_over(int id);
    void end_hand_over(int id);
    void wait_until_handed_over();

    // Marks the slots that it concerns, and gives them: their state is the inference thread's to erase.
    std::vector<int> remove(const removal & what);

private:
    struct entry {
        sequence_scope             scope;
        std::vector<kvtier::token> naming; // of the prompt: the tokens that name its conversation
        slot_offer                 held;   // while it is idle
        bool                       idle         = true;
        bool                       removed      = false;
        bool                       handing_over = false;
    };

    entry &       at(int id) { return slots[static_cast<size_t>(id)]; }
    const entry & at(int id) const { return slots[static_cast<size_t>(id)]; }
    void          rest(entry & slot, slot_offer held); // mu held

    mutable std::mutex      mu;
    std::condition_variable handed_over;
    std::vector<entry>      slots; // by id
};

} // namespace llama_run

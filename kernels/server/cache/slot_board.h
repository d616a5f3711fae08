// What each slot holds, as far as others may know it.
//
// The inference thread writes what its slots hold; HTTP workers read what an idle one could give to a prompt, and removals mark
// what must be forgotten. Between both stands one mutex, held for moments.
//
// A slot's state after a removal: the mark stays until the next request with a ticket takes the slot, which clears what it held.
// Until then nothing of it is offered or saved.
//
// Thread safety: questions, remove and wait_until_handed_over may be called from any thread; whatever says what a slot holds
// belongs to the inference thread.
#pragma once

#include "server/cache/anchor_shelf.h"
#include "server/cache/removal.h"
#include "server/cache/slot_offer.h"

#include "kvtier/thread_annotations.h"
#include "llama/sequence_store.h"

#include <atomic>
#include <cstddef>
#include <vector>

namespace llama_run {

class slot_board {
public:
    // most_anchors: of each slot.
    slot_board(size_t n_slots, size_t most_anchors) : anchors(n_slots, most_anchors), slots(n_slots) {}

    anchor_shelf anchors; // of what the slots hold

    // Whose state it is, or whose request is in it.
    sequence_scope scope(int id) const;

    // Which conversation it belongs to; 0: its tokens tell.
    uint64_t conversation(int id) const;

    // Whether what it holds was removed on request.
    bool is_removed(int id) const;

    // How many tokens of a prompt the best idle slot of this scope could give without the store.
    size_t best_offer(const sequence_scope & scope, const std::vector<kvtier::token> & prompt) const;

    // A request begins in the slot: from now on a removal finds it here. removed: whether one has found it while it waited; it is
    // read under the lock, because a removal marks the requests that wait before it looks at the slots. Gives whether what the
    // slot has held was removed.
    bool take(int id, const sequence_scope & scope, uint64_t conversation, std::vector<kvtier::token> naming,
              const std::atomic<bool> & removed);

    // A request without a ticket begins in the slot.
    void disown(int id);

    // The slot is idle and holds this.
    void offer(int id, slot_offer held);

    // The slot is idle and holds state from upstream's files, which name no user.
    void offer_unnamed(int id, slot_offer held);

    // The client may have its answer while the store does not have its state yet. It ends with end_hand_over, or when the slot
    // is offered or taken.
    void begin_hand_over(int id);
    void end_hand_over(int id);
    void wait_until_handed_over();

    // Whether a request is in a slot that it concerns.
    bool is_served(const removal & what) const;

    // Marks the slots that it concerns, and gives them: their state is the inference thread's to erase.
    std::vector<int> remove(const removal & what);

private:
    struct entry {
        sequence_scope             scope;
        uint64_t                   conversation = 0;
        std::vector<kvtier::token> naming; // of the prompt: the first tokens, which may name its conversation
        slot_offer                 held;   // while it is idle
        bool                       idle         = true;
        bool                       removed      = false;
        bool                       handing_over = false;
    };

    static bool   concerns(const removal & what, const entry & slot);
    entry &       at(int id) REQUIRES(mu) { return slots[static_cast<size_t>(id)]; }
    const entry & at(int id) const REQUIRES(mu) { return slots[static_cast<size_t>(id)]; }
    void          rest(entry & slot, slot_offer held) REQUIRES(mu);

    mutable kvtier::mutex mu;
    kvtier::condition     handed_over;
    std::vector<entry>    slots GUARDED_BY(mu); // by id
};

} // namespace llama_run

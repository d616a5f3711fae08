// What the slots hold and are about to hold, for requests that begin like the one in another slot: instead of evaluating that part
// again they wait for it, without a slot, and go on from it.
//
// A prompt is known from the moment its evaluation begins. Rows can be gone on from anywhere; folded state only where it was copied, so
// the prompt is cut where somebody waits.
//
// Thread safety: it belongs to the inference thread.
#pragma once

#include "server/cache/cache_ticket.h"

#include "llama/sequence_store.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace llama_run {

class shared_prefixes {
public:
    // least: tokens that are worth waiting for.
    shared_prefixes(size_t n_slots, size_t least, bool folded) : slots(n_slots), least(least), folded(folded) {}

    // The slot's prompt is being evaluated, n_there tokens of it are there. cut: where it is cut for others in any case, or 0.
    void begin(int slot, const sequence_scope & scope, std::vector<kvtier::token> prompt, size_t n_there, size_t cut);
    void advance(int slot, size_t n_there) { at(slot).n_there = n_there; }

    // All of the slot's prompt is there; its end is not handed over before somebody waits for it or the answer has gone on for long.
    void complete(int slot)    { at(slot).whole = true; }

    // Others find in the store what the slot has by now, or will not find it there at all.
    void handed_over(int slot) { at(slot).n_handed = at(slot).n_there; }

    // The slot is idle and holds these tokens. True: somebody waited for more.
    bool rest(int slot, std::vector<kvtier::token> tokens);

    // Nobody knows what the slot holds. True: somebody waited for it.
    bool forget(int slot);

    // The longest beginning of the ticket's prompt that a slot other than `own` has now; its length is 0 where there is none. Slots that
    // are not `usable` do not count.
    template <typename Usable>
    shared_prefix there(const cache_ticket & ticket, int own, const Usable & usable) const {
        return longest(ticket, own, usable, [&](int id) { return held(id, ticket.tokens); });
    }

    // The longest that one will have sooner than the request itself could, which has n_have tokens without it.
    template <typename Usable>
    shared_prefix coming(const cache_ticket & ticket, size_t n_have, int own, const Usable & usable) const {
        return longest(ticket, own, usable, [&](int id) { return awaited(id, ticket.tokens, n_have); });
    }

    void wait(const std::shared_ptr<cache_ticket> & ticket, const shared_prefix & until);

    // Whether a batch of the slot's prompt must end at this length.
    bool is_cut(int slot, size_t n_tokens) const;

    // Whether somebody waits for a part that is there by now. It is told once.
    bool is_reached(int slot);

    // Whether those who waited for such a part may begin now. It is told once.
    bool lets_go(int slot);

    // Folded state at the length that the slot has now, for those who wait for it.
    void add_anchor(int slot, anchor_copy anchor) { at(slot).anchors.push_back(std::move(anchor)); }

private:
    struct waiting {
        std::weak_ptr<cache_ticket> ticket;
        size_t                      n_tokens;
    };

    struct entry {
        sequence_scope             scope;
        std::vector<kvtier::token> tokens;  // empty: not known
        size_t                     cut      = 0;
        size_t                     n_there  = 0;
        size_t                     n_handed = 0; // of those, what was handed over
        size_t                     n_owed   = 0; // for so many somebody has waited, who may not begin yet
        bool                       evaluating = false;
        bool                       whole = false; // All of the prompt is there.
        std::vector<anchor_copy>   anchors; // shortest first
        std::vector<waiting>       line;
    };

    entry &       at(int slot)       { return slots[static_cast<size_t>(slot)]; }
    const entry & at(int slot) const { return slots[static_cast<size_t>(slot)]; }
    size_t        n_common(const entry & e, const std::vector<kvtier::token> & prompt) const;
    shared_prefix held(int slot, const std::vector<kvtier::token> & prompt) const;
    shared_prefix awaited(int slot, const std::vector<kvtier::token> & prompt, size_t n_have) const;

    template <typename Usable, typename Find>
    shared_prefix longest(const cache_ticket & ticket, int own, const Usable & usable, const Find & find) const {
        shared_prefix found;
        for (int id = 0; id < static_cast<int>(slots.size()); id++) {
            if (id != own && !at(id).tokens.empty() && at(id).scope == ticket.scope && usable(id)) {
                shared_prefix here = find(id);
                found = here.n_tokens > found.n_tokens ? std::move(here) : std::move(found);
            }
        }
        return found;
    }

    std::vector<entry> slots;
    const size_t       least;
    const bool         folded;
};

} // namespace llama_run

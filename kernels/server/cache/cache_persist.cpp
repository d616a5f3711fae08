// What a request leaves behind: anchors on the way, pages of its prompt, the rest of its turn.
#include "server/cache/cache_core.h"

#include "server/cache/prompt_tokens.h"

#include "state_rows.h"

#include "log.h"

#include <algorithm>
#include <utility>

namespace llama_run {

using kvtier::status;

// Tokens that upstream moved to other positions are state that no evaluation of the prompt would give.
void cache_core::note_use(const slot_view & slot, turn & t) {
    if ((slot.full && shifts) || slot.stats.n_prompt_cached > t.n_reusable) {
        t.exact = false;
    }
}

// Hands over what of the sequence's n_tokens is not stored yet.
void cache_core::save(const slot_view & slot, turn & t, size_t n_tokens, bool complete, bool anchor_end) {
    sequence_turn now;
    now.scope        = board.scope(slot.id);
    now.conversation = t.conversation;
    now.tokens       = tokens_of(slot.prompt.tokens, n_tokens);
    now.n_static     = t.n_static;
    now.n_prompt     = static_cast<uint32_t>(slot.task->n_tokens());
    now.roles        = t.roles;
    now.complete     = complete;
    now.anchor_end   = anchor_end;
    now.anchors      = std::move(t.anchors);
    t.anchors.clear();
    if (now.tokens.empty() || has_media(now.tokens)) {
        return;
    }
    const size_t n_own = std::min(n_tokens, static_cast<size_t>(slot.task->n_tokens()));
    if (slot.prompt.tokens.get_common_prefix(slot.task->tokens) < n_own) {
        return; // It was released before it began, and the slot holds what the request before it left.
    }
    const status s = stores.target->save(slot.id, now, t.n_same);
    if (!s.is_ok()) {
        LOG_WRN("cache: slot %d: not stored: %s\n", slot.id, s.message().c_str());
        t.anchors   = std::move(now.anchors); // The end of the turn tries again, and cannot take them anew.
        t.n_refused = now.tokens.size();
        return;
    }
    t.n_saved = now.tokens.size();
    if (stores.draft != nullptr) {
        now.anchors.clear();
        (void) stores.draft->save(slot.id, now).is_ok(); // It may lag behind the target; the next turn has it.
    }
}

bool cache_core::takes_anchors(const slot_view & slot) {
    turn & t = turn_of(slot);
    note_use(slot, t);
    return t.store && t.exact && stores.target->folded() && draft_ctx == nullptr;
}

bool cache_core::is_cut(int id_slot, size_t n_tokens) const {
    const std::vector<uint32_t> & cuts = turns[static_cast<size_t>(id_slot)].cuts;
    return std::find(cuts.begin(), cuts.end(), n_tokens) != cuts.end() || is_shared_cut(id_slot, n_tokens);
}

// Whether others part there, too.
bool cache_core::is_shared_cut(int id_slot, size_t n_tokens) const {
    const uint32_t at = turns[static_cast<size_t>(id_slot)].shared_cut;
    return (at > 0 && at == n_tokens) || prefixes->is_cut(id_slot, n_tokens);
}

bool cache_core::ends_batch(int id_slot, size_t n_tokens) const {
    return turns[static_cast<size_t>(id_slot)].by_token || is_cut(id_slot, n_tokens);
}

// Where a batch ended for it: it is asked after every batch, also those of others.
void cache_core::take_anchor(const slot_view & slot, turn & t) {
    const uint32_t n_tokens = static_cast<uint32_t>(slot.prompt.tokens.size());
    if (n_tokens == t.n_anchored || !is_cut(slot.id, n_tokens)) {
        return;
    }
    const waited::timer timed(times, wait_cause::anchor);
    note_use(slot, t);
    const bool is_own = slot.prompt.tokens.get_common_prefix(slot.task->tokens) == n_tokens;
    if (!t.exact || !is_own || board.is_removed(slot.id)) {
        return;
    }
    anchor_copy copy;
    if (stores.target->take_anchor(slot.id, n_tokens, copy).is_ok()) {
        copy.is_shared = n_tokens != t.n_static && is_shared_cut(slot.id, n_tokens); // A static prefix is kept for all anyway.
        t.n_anchored   = n_tokens;
        if (anchors_shelved) {
            board.anchors.put(slot.id, copy);
        }
        t.anchors.push_back(std::move(copy));
    }
}

// The rows of so many tokens fill a segment. It is found out once.
size_t cache_core::chunk_tokens(const slot_view & slot) {
    const kvtier::store_options & options = stores.target->store().options();
    const llama_pos               page    = static_cast<llama_pos>(options.page_size);
    if (n_chunk_tokens == 0 && slot.prompt.tokens.size() >= options.page_size) {
        const size_t bytes = llama_state_rows_size(target_ctx, slot.id, 0, page);
        n_chunk_tokens = bytes == 0 ? SIZE_MAX : std::max<size_t>(8, options.segment_bytes / bytes) * options.page_size;
    }
    return n_chunk_tokens == 0 ? SIZE_MAX : n_chunk_tokens;
}

void cache_core::evaluated(const slot_view & slot) {
    turn & t = turn_of(slot);
    const bool whole = slot.stats.n_gen > 0; // Its prompt is.
    const bool ended = whole && t.in_prompt;
    t.in_prompt = t.in_prompt && !whole;
    if (t.prompt_saved || !t.store || slot.task == nullptr || slot.stats.n_prompt_processed == 0) {
        return; // This is asked after every batch, also where the slot still holds what the request before left in it.
    }
    take_anchor(slot, t);
    if (ended) {
        prefixes->complete(slot.id);
        if (slot.stats.n_prompt_processed >= 64) {
            measured.eval.add(static_cast<double>(slot.stats.n_prompt_processed), slot.stats.t_prompt_ms() / 1000);
        }
    }
    serve_waiting(slot, t);
    // A long prompt is handed over in parts, so that it never overfills the queue and a crash costs little of it. Its last part rests
    // while the answer begins: a short one should not be slowed by copies that can as well be made after it.
    const size_t n_new = slot.prompt.tokens.size() - std::min(std::max(t.n_saved, t.n_refused), slot.prompt.tokens.size());
    const bool is_last = slot.prompt.tokens.size() + 1 >= static_cast<size_t>(slot.n_ctx); // Behind it, tokens may be moved.
    if (whole ? slot.stats.t_gen_ms() < copies_after_ms && !is_last : n_new < chunk_tokens(slot)) {
        return;
    }
    t.prompt_saved = whole;
    hand_over(slot, t);
}

void cache_core::hand_over(const slot_view & slot, turn & t) {
    const waited::timer timed(times, wait_cause::persist);
    note_use(slot, t);
    board.begin_hand_over(slot.id);
    if (t.exact && !board.is_removed(slot.id)) {
        save(slot, t, slot.prompt.tokens.size(), false, false);
    }
    board.end_hand_over(slot.id);
    prefixes->handed_over(slot.id);
}

// Others may go on from what the slot has by now. It is handed over as well: they need not save it again.
void cache_core::serve_waiting(const slot_view & slot, turn & t) {
    prefixes->advance(slot.id, slot.prompt.tokens.size());
    if (prefixes->is_reached(slot.id)) {
        note_use(slot, t);
        if (t.exact && !board.is_removed(slot.id) && t.n_anchored == slot.prompt.tokens.size() && !t.anchors.empty()) {
            prefixes->add_anchor(slot.id, t.anchors.back());
        }
        hand_over(slot, t);
    }
    if (prefixes->lets_go(slot.id)) {
        queue.offer_deferred();
    }
}

// Folded state may have been written in part, and its lengths say nothing of that.
void cache_core::distrust(const slot_view & slot) {
    if (slot.task != nullptr) {
        turn_of(slot).store = false;
        turn_of(slot).exact = false;
    }
}

void cache_core::ending(const slot_view & slot) {
    if (slot.task != nullptr && is_cached_kind(slot.task->type)) {
        board.begin_hand_over(slot.id);
    }
}

// The tokens of the batch that was given up are in the slot's list and not in its memory.
void cache_core::interrupted(const slot_view & slot) {
    turn & t = turn_of(slot);
    if (slot.task == nullptr || !is_cached_kind(slot.task->type) || !t.store) {
        return;
    }
    note_use(slot, t);
    const llama_pos last     = llama_memory_seq_pos_max(llama_get_memory(target_ctx), slot.id);
    const size_t    n_tokens = std::min(static_cast<size_t>(last + 1), slot.prompt.tokens.size());
    board.begin_hand_over(slot.id);
    if (t.exact && n_tokens > 0 && !board.is_removed(slot.id)) {
        save(slot, t, n_tokens, true, false);
    }
    board.end_hand_over(slot.id);
    t.store = false; // Whoever releases the slot takes it for what its list says.
}

void cache_core::released(const slot_view & slot, const request_times & took) {
    const waited::timer timed(times, wait_cause::persist);
    turn & t = turn_of(slot);
    t.in_prompt = false;
    give_up_arrival(slot);
    if (slot.task == nullptr || !is_cached_kind(slot.task->type)) {
        return;
    }
    note_use(slot, t);
    board.begin_hand_over(slot.id);
    const bool removed = board.is_removed(slot.id);
    if (t.store && t.exact && !removed) {
        // A request that was cancelled within its prompt is saved, too: what is kept is listed, and can be removed.
        const bool is_end = t.warms != warming::part; // Nobody goes on from a part but the next part, in the slot itself.
        save(slot, t, slot.prompt.tokens.size(), is_end, is_end);
    }
    count(slot, t, took, removed);
    t.anchors.clear();
    if (removed || !t.exact) {
        board.anchors.clear(slot.id);
    }
    t.tokens     = tokens_of(slot.prompt.tokens);
    t.idle_since = stopwatch();
    board.offer(slot.id, offer_of(slot)); // It ends the handing over.
    // What may not be stored is nobody else's, either: it may be evaluated with other adapters, or for one user alone.
    const bool waited_for = t.store && t.exact && !removed ? prefixes->rest(slot.id, t.tokens) : prefixes->forget(slot.id);
    if (waited_for) {
        queue.offer_deferred(); // The next of them evaluates it.
    }
}

void cache_core::count(const slot_view & slot, const turn & t, const request_times & took, bool removed) {
    if (!t.report.shown || t.warms != warming::no) {
        return; // What was evaluated ahead is counted where it was asked for.
    }
    const std::string user = board.scope(slot.id).user;
    admin_->totals.add(user, t.report, slot.stats);
    admin_->days.add(user, slot.stats.n_prompt_cached, slot.stats.n_prompt_processed, slot.stats.n_gen, t.report.restore_ms,
                     measured.eval.get());
    if (removed) {
        return;
    }
    finished_request done;
    done.at_ms        = kvtier::posix_env().now_ms();
    done.user         = user;
    done.conversation = t.conversation.hash;
    done.report       = t.report;
    done.parted       = t.parted;
    done.took         = took;
    done.n_reused     = slot.stats.n_prompt_cached;
    done.n_evaluated  = slot.stats.n_prompt_processed;
    done.n_answered   = slot.stats.n_gen;
    done.prompt_ms    = slot.stats.t_prompt_ms();
    done.answer_ms    = slot.stats.t_gen_ms();
    admin_->finished.add(std::move(done));
}

} // namespace llama_run

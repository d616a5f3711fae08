// What a request leaves behind: anchors on the way, pages of its prompt, the rest of its turn.
#include "server/cache_core.h"

#include "state_rows.h"

#include "log.h"

#include <algorithm>
#include <utility>

namespace llama_run {

using kvtier::status;

// Counters of users beyond that are not kept: ids come from clients.
static constexpr size_t max_counted_users = 4096;

// Tokens that upstream moved to other positions are state that no evaluation of the prompt would give.
void cache_core::note_use(const slot_view & slot, slot_record & rec) {
    if (slot.shifted || slot.stats.n_prompt_cached > rec.n_reusable) {
        rec.exact = false;
    }
}

// n_tokens: what the sequence holds.
void cache_core::save(const slot_view & slot, slot_record & rec, size_t n_tokens, bool complete, bool anchor_end) {
    sequence_turn turn;
    turn.scope      = rec.scope;
    turn.tokens     = tokens_of(slot.prompt.tokens, n_tokens);
    turn.n_static   = rec.n_static;
    turn.roles      = rec.roles;
    turn.complete   = complete;
    turn.anchor_end = anchor_end;
    turn.anchors    = std::move(rec.anchors);
    rec.anchors.clear();
    if (turn.tokens.empty() || has_media(turn.tokens)) {
        return;
    }
    const size_t n_own = std::min(n_tokens, static_cast<size_t>(slot.task->n_tokens()));
    if (slot.prompt.tokens.get_common_prefix(slot.task->tokens) < n_own) {
        return; // it was released before it began, and the slot holds what the request before it left
    }
    const status s = target->save(slot.id, turn);
    if (!s.is_ok()) {
        LOG_WRN("cache: slot %d: not stored: %s\n", slot.id, s.message().c_str());
        rec.anchors   = std::move(turn.anchors); // the end of the turn tries again, and cannot take them anew
        rec.n_refused = turn.tokens.size();
        return;
    }
    rec.n_saved = turn.tokens.size();
    if (draft != nullptr) {
        turn.anchors.clear();
        (void) draft->save(slot.id, turn).is_ok(); // it may lag behind the target; the next turn has it
    }
}

bool cache_core::anchor(const slot_view & slot, uint32_t n_tokens) {
    slot_record & rec = records[static_cast<size_t>(slot.id)];
    note_use(slot, rec);
    if (!rec.store || !rec.exact || !target->folded() || slot.task == nullptr) {
        return false;
    }
    if (n_tokens == rec.n_restored) {
        return true; // it has just come from there
    }
    // Where other prompts will want to go on: after the static prefix, before the last message, before the answer.
    static constexpr uint32_t near_end = 4;
    const bool pays = n_tokens == rec.n_static || n_tokens == rec.last_user ||
                      n_tokens + near_end >= static_cast<uint32_t>(slot.task->n_tokens());
    anchor_copy copy;
    if (pays && target->take_anchor(slot.id, n_tokens, copy).is_ok()) {
        rec.anchors.push_back(std::move(copy));
    }
    return false;
}

// Tokens whose rows fill a segment.
size_t cache_core::chunk_tokens(const slot_view & slot) {
    const kvtier::store_options & options = target->store().options();
    const llama_pos               page    = static_cast<llama_pos>(options.page_size);
    if (n_chunk_tokens == 0 && slot.prompt.tokens.size() >= options.page_size) {
        const size_t bytes = llama_state_rows_size(target_ctx, slot.id, 0, page);
        n_chunk_tokens = bytes == 0 ? SIZE_MAX : std::max<size_t>(8, options.segment_bytes / bytes) * options.page_size;
    }
    return n_chunk_tokens == 0 ? SIZE_MAX : n_chunk_tokens;
}

void cache_core::evaluated(const slot_view & slot) {
    slot_record & rec = records[static_cast<size_t>(slot.id)];
    if (rec.prompt_saved || !rec.store || slot.task == nullptr) {
        return;
    }
    // A long prompt is handed over in parts, so that it never overfills the queue and a crash costs little of it.
    const bool   whole = slot.stats.n_gen > 0;
    const size_t n_new = slot.prompt.tokens.size() - std::min(std::max(rec.n_saved, rec.n_refused), slot.prompt.tokens.size());
    if (!whole && n_new < chunk_tokens(slot)) {
        return;
    }
    note_use(slot, rec);
    rec.prompt_saved = whole;
    if (whole && slot.stats.n_prompt_processed >= 64) {
        eval_speed.add(static_cast<double>(slot.stats.n_prompt_processed), slot.stats.t_prompt_ms() / 1000);
    }
    if (rec.exact && !hand_over(slot.id, true)) {
        save(slot, rec, slot.prompt.tokens.size(), false, false);
    }
    (void) hand_over(slot.id, false);
}

// Says that a slot's state is on its way to the writer, for flush to wait. Gives whether the state was removed on request.
bool cache_core::hand_over(int id_slot, bool begins) {
    std::lock_guard<std::mutex> guard(notice_mu);
    slot_notice & notice = notices[static_cast<size_t>(id_slot)];
    notice.handing_over  = begins;
    notice_changed.notify_all();
    return notice.forget;
}

void cache_core::ending(const slot_view & slot) {
    if (slot.task != nullptr && is_cached_kind(slot.task->type)) {
        (void) hand_over(slot.id, true);
    }
}

// The tokens of the batch that was given up are in the slot's list and not in its memory.
void cache_core::interrupted(const slot_view & slot) {
    slot_record & rec = records[static_cast<size_t>(slot.id)];
    if (slot.task == nullptr || !is_cached_kind(slot.task->type) || !rec.store) {
        return;
    }
    note_use(slot, rec);
    const llama_pos last     = llama_memory_seq_pos_max(llama_get_memory(target_ctx), slot.id);
    const size_t    n_tokens = std::min(static_cast<size_t>(last + 1), slot.prompt.tokens.size());
    if (rec.exact && n_tokens > 0 && !hand_over(slot.id, true)) {
        save(slot, rec, n_tokens, true, false);
    }
    (void) hand_over(slot.id, false);
    rec.store = false; // whoever releases the slot takes it for what its list says
}

void cache_core::released(const slot_view & slot) {
    slot_record & rec = records[static_cast<size_t>(slot.id)];
    if (slot.task == nullptr || !is_cached_kind(slot.task->type)) {
        return;
    }
    note_use(slot, rec);
    const bool removed = hand_over(slot.id, true);
    if (rec.store && rec.exact && !removed) {
        // Also of a request that was cancelled within its prompt: what is kept is listed, and can be removed.
        save(slot, rec, slot.prompt.tokens.size(), true, true);
    }
    if (rec.report.shown && !removed) {
        finished_request done;
        done.at_ms       = kvtier::posix_env().now_ms();
        done.user        = rec.scope.name_space;
        done.report      = rec.report;
        done.parted      = rec.parted;
        done.n_reused    = slot.stats.n_prompt_cached;
        done.n_evaluated = slot.stats.n_prompt_processed;
        done.n_answered  = slot.stats.n_gen;
        done.prompt_ms   = slot.stats.t_prompt_ms();
        done.answer_ms   = slot.stats.t_gen_ms();
        finished.add(std::move(done));
    }
    if (rec.report.shown) {
        std::lock_guard<std::mutex> guard(requests_mu);
        all_requests.add(rec.report, slot.stats);
        if (user_requests.size() < max_counted_users || user_requests.count(rec.scope.name_space) != 0) {
            user_requests[rec.scope.name_space].add(rec.report, slot.stats);
        }
    }
    rec.anchors.clear();
    rec.tokens = tokens_of(slot.prompt.tokens, slot.prompt.tokens.size());
    publish(slot, rec, true);
}

} // namespace llama_run

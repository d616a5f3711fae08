#include "server/cache/cache_core.h"

#include "server/cache/explain.h"
#include "server/cache/prompt_cuts.h"
#include "server/cache/prompt_tokens.h"
#include "server/cache/stopwatch.h"
#include "server/owner/owner_key.h"

#include "state_rows.h"

#include "log.h"

#include <algorithm>
#include <utility>

namespace llama_run {

using kvtier::status;

// Of a slot, in RAM, where --ctx-checkpoints allows as many.
static constexpr int most_anchors = 8;

// An answer that goes on for longer loses little by copies that are made beside it.
static constexpr double copies_after_s = 2;

// How long a slot has been idle when what it holds is in the way.
static constexpr double long_idle_ms = 10000;

// Then an answer is several tokens of a batch.
static bool speculates(const common_params & params) {
    const std::vector<common_speculative_type> & types = params.speculative.types;
    return std::any_of(types.begin(), types.end(), [](common_speculative_type t) { return t != COMMON_SPECULATIVE_TYPE_NONE; });
}

//
// opening and closing
//

cache_core::cache_core(const common_params & params, llama_context * target, llama_context * draft, server_queue & queue,
                       std::atomic<bool> & stopping) :
    target_ctx(target), draft_ctx(draft), server_stops(stopping),
    n_swa(params.swa_full ? 0 : llama_model_n_swa(llama_get_model(target))),
    checkpoints_exact((llama_state_parts(target) & LLAMA_STATE_PART_FOLDED) && !llama_state_has_window(target)),
    anchors_shelved(draft == nullptr && ((llama_state_parts(target) & LLAMA_STATE_PART_ROWS) || checkpoints_exact)),
    shifts(params.ctx_shift), copies_after_ms(1000 * std::min(params.cache_ssd.settle_seconds, copies_after_s)),
    min_similarity(params.slot_prompt_similarity),
    cells_unified(params.kv_unified),
    // With a window, or nothing but folded state, or cells of its own for each slot, a batch is parted in other ways.
    rests_by_token(checkpoints_exact && (llama_state_parts(target) & LLAMA_STATE_PART_ROWS) && cells_unified && draft == nullptr &&
                   !speculates(params)),
    cells_shareable(params.kv_unified && !params.ctx_shift && draft == nullptr), queue(queue),
    board(static_cast<size_t>(params.n_parallel), static_cast<size_t>(std::clamp(params.n_ctx_checkpoints, 0, most_anchors))),
    turns(static_cast<size_t>(params.n_parallel)) {}

status cache_core::open(const common_params & params, llama_context * target, llama_context * draft,
                        server_queue & queue, std::atomic<bool> & stopping, std::shared_ptr<cache_core> & out) {
    if (llama_get_memory(target) == nullptr) {
        return status::incompatible("this model keeps no state");
    }
    std::shared_ptr<cache_core> made(new cache_core(params, target, draft, queue, stopping));
    if (status s = made->scopes.open(params.lora_adapters); !s.is_ok()) {
        return s;
    }
    if (status s = made->stores.open(params, target, draft); !s.is_ok()) {
        return s;
    }
    (void) ensure_owner_key(kvtier::posix_env(), made->stores.root_dir).is_ok(); // Without one nobody is the owner.
    made->stores.remove_expired(made->stores.target->store().expired()); // also of the time when no server ran
    made->give_up_batches_when_stopping();
    made->prefixes = std::make_unique<shared_prefixes>(made->turns.size(), made->stores.target->store().options().page_size,
                                                       made->stores.target->folded());
    made->reader = std::make_unique<prompt_reader>(made->stores, made->measured, queue);
    made->admin_ = std::make_unique<cache_admin>(made->stores, made->board, *made->reader, queue, made->measured,
                                                 made->times, made->ahead, params.cache_ssd.metadata_users);
    made->handovers_ = std::make_unique<handover_desk>(made->stores, *made->admin_);
    made->admin_->on_removal = [desk = made->handovers_.get()](const removal & what) { desk->remove(what); };
    if (params.cache_ssd.read_ahead) {
        std::vector<kvtier::store *> all;
        for (sequence_store * store : made->stores.all()) {
            all.push_back(&store->store());
        }
        made->ahead.begin(std::move(all));
    }
    out = std::move(made);
    return status::ok();
}

// Evaluating a batch can take half a minute on a slow processor, and stopping should not. Backends that can be interrupted leave
// complete rows behind for all tokens but the batch's last ones; folded state, and a draft's, would be neither here nor there.
void cache_core::give_up_batches_when_stopping() {
    if (!stores.target->folded() && draft_ctx == nullptr) {
        llama_set_abort_callback(target_ctx, [](void * stops) { return static_cast<std::atomic<bool> *>(stops)->load(); },
                                 &server_stops);
    }
}

void cache_core::close() {
    ahead.stop();
    if (reader) {
        reader->stop();
        stores.close();
        admin_->days.close();
    }
}

//
// arrive and lookup
//

std::shared_ptr<cache_ticket> cache_core::make_ticket(const server_task & task, const std::string & user,
                                                      const conversation_request & asked) {
    ahead.end();
    auto ticket = std::make_shared<cache_ticket>(user, asked);
    ticket->core  = shared_from_this();
    ticket->scope = scopes.of_request(user, task.params);
    if (!is_cached_kind(task.type) || !task.params.cache_prompt || task.is_child()) {
        ticket->miss = cache_miss::off;
        return ticket;
    }
    ticket->tokens       = tokens_of(task.tokens);
    ticket->conversation = facts_of(asked, ticket->tokens, task.params.message_spans);
    if (has_media(ticket->tokens)) {
        ticket->miss = cache_miss::media;
    }
    reader->expect(ticket);
    return ticket;
}

void cache_core::arrive(server_task & task, const admission & from) {
    const auto ticket = make_ticket(task, from.user, from.conversation);
    ticket->stable = from.stable;
    task.cache     = ticket;
    if (ticket->is_looked_up()) {
        reader->arrive(*ticket, board.best_offer(ticket->scope, ticket->tokens));
    }
}

size_t cache_core::stored(const server_task & task, const std::string & user) {
    const std::vector<kvtier::token> tokens = tokens_of(task.tokens);
    return tokens.size() < 2 ? 0 : stores.target->find(scopes.of_request(user, task.params), tokens, tokens.size() - 1).n_tokens;
}

// The user's own slot that holds most of the prompt; else an empty one; else the user's least recently used; else the least
// recently used of all. A slot is spared while another is empty and the store has as much, if it is another conversation's or the
// prompt would throw away more than half of it.
int cache_core::choose(const std::vector<slot_candidate> & slots, const server_task & task) const {
    if (task.id_slot != -1 || !is_cached_kind(task.type) || !task.cache) {
        return -1;
    }
    const waited::timer  timed(times, wait_cause::lookup);
    const cache_ticket & ticket = *task.cache;
    int    similar = -1;
    int    empty   = -1;
    int    own     = -1;
    int    oldest  = -1;
    size_t most    = 0;
    bool   sparing = false;
    const auto older = [&](size_t i, int than) {
        return than < 0 || slots[i].last_used < slots[static_cast<size_t>(than)].last_used;
    };
    for (size_t i = 0; i < slots.size(); i++) {
        const slot_view & slot = slots[i].view;
        if (slots[i].busy) {
            continue;
        }
        oldest = older(i, oldest) ? static_cast<int>(i) : oldest;
        if (slot.prompt.tokens.empty()) {
            empty = older(i, empty) ? static_cast<int>(i) : empty;
            continue;
        }
        if (board.scope(slot.id) != ticket.scope) {
            continue;
        }
        own = older(i, own) ? static_cast<int>(i) : own;
        const slot_offer offer    = offer_of(slot);
        const size_t     n_common = offer.common(ticket.tokens);
        if (n_common > most && static_cast<float>(n_common) > min_similarity * static_cast<float>(ticket.tokens.size())) {
            most    = n_common;
            similar = static_cast<int>(i);
            // While the reader has the ticket, what is found is not known.
            const uint64_t other     = board.conversation(slot.id);
            const bool     is_others = other != 0 && ticket.conversation.hash != 0 && other != ticket.conversation.hash;
            sparing = !ticket.reading && (is_others || 2 * n_common < offer.tokens.size()) &&
                      ticket.target.match.n_tokens >= offer.reusable(ticket.tokens);
        }
    }
    if (similar >= 0 && !(sparing && empty >= 0)) {
        return similar;
    }
    return empty >= 0 ? empty : own >= 0 ? own : oldest;
}

bool cache_core::prepare(const slot_view & slot, server_task & task) {
    const waited::timer timed(times, wait_cause::lookup);
    if (!task.cache || !task.cache->core) { // It came without HTTP, or while the cache was off.
        task.cache = task.cache ? make_ticket(task, task.cache->scope.user, task.cache->asked) : make_ticket(task, "", {});
    }
    const cache_ticket & ticket = *task.cache;
    reader->note_reads(); // This comes before `reading` is looked at: see prompt_reader::deferred.
    if (ticket.reading) {
        return false;
    }
    if (!ticket.is_looked_up() || ticket.removed || task.n_tokens() >= slot.n_ctx) {
        return true;
    }
    const bool   is_own    = board.scope(slot.id) == ticket.scope && !board.is_removed(slot.id);
    const size_t n_in_slot = is_own ? offer_of(slot).reusable(ticket.tokens) : 0;
    if (waits_for_prefix(slot, task.cache, n_in_slot)) {
        return false;
    }
    return ticket.shared.n_tokens > 0 || reader->prepare(task.cache, n_in_slot);
}

// Whether another slot will have more of the prompt sooner than the request itself could. What one has already is noted in the ticket,
// if it is no less than is stored: sharing it costs nothing.
bool cache_core::waits_for_prefix(const slot_view & slot, const std::shared_ptr<cache_ticket> & ticket, size_t n_in_slot) {
    ticket->shared = {};
    if (ticket->tokens.size() < 2) {
        return false;
    }
    const auto usable = [&](int id) { return turns[static_cast<size_t>(id)].exact && !board.is_removed(id); };
    shared_prefix there = cells_shareable ? prefixes->there(*ticket, slot.id, usable) : shared_prefix();
    size_t n_have = std::max({ n_in_slot, there.n_tokens, ticket->target.match.n_tokens });
    shared_prefix coming = prefixes->coming(*ticket, n_have, slot.id, usable);
    if (coming.n_tokens > 0) {
        n_have = std::max(n_have, reader->n_stored(*ticket)); // By now more may be stored than when it arrived.
        coming = prefixes->coming(*ticket, n_have, slot.id, usable);
    }
    if (coming.n_tokens > 0) {
        prefixes->wait(ticket, coming);
        ticket->look_again = true;
        ticket->n_reads    = 0; // What it finds then it may read as if it had just arrived.
        if (!ticket->waiting_for_shared) {
            ticket->waiting_for_shared.emplace();
        }
        return true;
    }
    if (there.n_tokens > n_in_slot && there.n_tokens >= ticket->target.match.n_tokens) {
        ticket->shared = std::move(there);
    }
    return false;
}

//
// restore
//

// Others hardly notice a step of a restore that takes no longer.
static constexpr double short_step_ms = 1;

slot_offer cache_core::offer_of(const slot_view & slot) const {
    slot_offer offer;
    offer.tokens  = tokens_of(slot.prompt.tokens, slot.prompt.tokens.size());
    offer.pos_min = llama_memory_seq_pos_min(llama_get_memory(target_ctx), slot.id);
    offer.n_swa   = n_swa;
    if (checkpoints_exact) {
        for (const common_prompt_checkpoint & c : slot.prompt.checkpoints) {
            offer.checkpoints.push_back({ c.n_tokens, c.pos_min, c.pos_max });
        }
    }
    offer.anchors = board.anchors.lengths(slot.id);
    return offer;
}

// Gives how many tokens the slot holds now.
size_t cache_core::put(const slot_view & slot, cache_ticket & ticket, const std::function<bool()> & make_room) {
    const stopwatch   watch;
    kvtier::loading & reading = *ticket.target.reading;
    if (draft_ctx != nullptr) {
        // This comes first, because some draft contexts share the target's cells.
        llama_memory_seq_rm(llama_get_memory(draft_ctx), slot.id, -1, -1);
    }
    size_t n_tokens = 0;
    status s        = stores.target->put(slot.id, reading, n_tokens);
    while (!s.is_ok() && reading.wait().is_ok() && make_room()) { // Files that cannot be read need no room.
        s = stores.target->put(slot.id, reading, n_tokens);
    }
    return note_put(slot, ticket, s, n_tokens, watch.ms());
}

// What came of putting n_tokens into the slot, which it gives back.
size_t cache_core::note_put(const slot_view & slot, cache_ticket & ticket, const status & s, size_t n_tokens, double ms) {
    const kvtier::match & m       = ticket.target.match;
    kvtier::loading &     reading = *ticket.target.reading;
    const status          read    = reading.wait();
    if (!read.is_ok()) {
        ticket.miss = miss_of(read);
        LOG_WRN("cache: %s\n", read.message().c_str());
    } else if (!s.is_ok()) {
        ticket.miss = cache_miss::no_room;
        LOG_WRN("cache: slot %d: %s\n", slot.id, s.message().c_str());
    } else {
        if (m.bytes_ram + m.bytes_disk >= least_told_by) {
            measured.copy.add(static_cast<double>(m.bytes_ram + m.bytes_disk), ms / 1000 - reading.seconds_waited());
        }
        // Reads at once share a disk, and none of them says how fast it is.
        if (m.bytes_disk >= least_told_by && ticket.held.is_alone()) {
            measured.disk.add(static_cast<double>(m.bytes_disk), reading.seconds_read());
        }
    }
    if (n_tokens > 0) {
        stores.target->used(m);
        log_restored(slot.id, m);
        put_draft(slot, ticket, n_tokens);
    }
    return n_tokens;
}

// It is asked before each batch.
bool cache_core::is_arriving(const slot_view & slot, server_prompt & prompt, cache_report & report, size_t n_beside) {
    const bool arriving = advance_arrival(slot, prompt, report, n_beside > 0);
    turn_of(slot).by_token = !arriving && goes_by_token(slot, n_beside);
    return arriving;
}

bool cache_core::goes_by_token(const slot_view & slot, size_t n_beside) const {
    const turn & t = turns[static_cast<size_t>(slot.id)];
    // Where the cache takes no anchors, upstream leaves a checkpoint before each of the last tokens.
    if (n_beside == 0 || !rests_by_token || !t.in_prompt || !t.store || !t.exact) {
        return false;
    }
    const bool all_answer = std::none_of(turns.begin(), turns.end(), [&](const turn & other) {
        return &other != &t && other.in_prompt && !other.arriving;
    });
    const size_t n_there = slot.prompt.tokens.get_common_prefix(slot.task->tokens);
    return goes_token_by_token(static_cast<uint32_t>(slot.task->n_tokens() - n_there), n_beside, all_answer);
}

// What has arrived whole is the slot's from then on.
bool cache_core::advance_arrival(const slot_view & slot, server_prompt & prompt, cache_report & report, bool others_go_on) {
    turn & t = turn_of(slot);
    if (!t.arriving || slot.task == nullptr) {
        return false;
    }
    const waited::timer timed(times, wait_cause::restore);
    const stopwatch     watch;
    if (!t.arriving->state->advance(!others_go_on)) {
        return true;
    }
    if (others_go_on && !t.arriving->whole && watch.ms() > short_step_ms) {
        t.arriving->whole = true;
        return true; // They have waited for the last step, and should not wait for the first tokens at once.
    }
    const std::unique_ptr<arrival> arrived = std::move(t.arriving);
    cache_ticket &                 ticket  = *arrived->ticket;
    const status                   s       = arrived->state->result();
    if (s.is_ok() || !ticket.target.reading->wait().is_ok()) {
        arrived->place.n_restored = note_put(slot, ticket, s, arrived->state->n_tokens(), arrived->since.ms());
    } else {
        arrived->state.reset(); // It clears the slot.
        arrived->place.n_restored = put(slot, ticket, arrived->make_room); // There was no room.
    }
    arrived->place.put_ms = arrived->since.ms();
    report = finish_restore(slot, prompt, *slot.task, arrived->place);
    return false;
}

// Of a request that left before it began. What had come by then goes: nobody else knows of it.
void cache_core::give_up_arrival(const slot_view & slot) {
    turn & t = turn_of(slot);
    if (t.arriving) {
        t.arriving.reset();
        llama_memory_seq_rm(llama_get_memory(target_ctx), slot.id, -1, -1);
    }
}

// Both contexts go on at one position, or the draft's starts empty.
void cache_core::put_draft(const slot_view & slot, cache_ticket & ticket, size_t n_tokens) {
    if (ticket.draft.n_tokens() != n_tokens) {
        return;
    }
    size_t n_draft = 0;
    (void) stores.draft->put(slot.id, *ticket.draft.reading, n_draft);
    if (n_draft == n_tokens) {
        stores.draft->used(ticket.draft.match);
    } else {
        llama_memory_seq_rm(llama_get_memory(draft_ctx), slot.id, -1, -1);
    }
}

// Gives how many tokens the slot holds now: it keeps its rows so far, and its folded state is put back.
size_t cache_core::go_back(const slot_view & slot, server_prompt & prompt, size_t n_tokens) {
    const anchor_copy anchor = board.anchors.at(slot.id, static_cast<uint32_t>(n_tokens));
    if (const status s = stores.target->go_back(slot.id, n_tokens, anchor); !s.is_ok()) {
        LOG_WRN("cache: slot %d: %s\n", slot.id, s.message().c_str());
        prompt.clear();
        board.anchors.clear(slot.id);
        return 0;
    }
    prompt.tokens.keep_first(n_tokens);
    return n_tokens;
}

// Gives how many tokens the slot holds now.
size_t cache_core::share(const slot_view & slot, const cache_ticket & ticket) {
    const shared_prefix & from = ticket.shared;
    if (const status s = stores.target->share(from.slot, slot.id, from.n_tokens, from.anchor); !s.is_ok()) {
        LOG_WRN("cache: slot %d: %s\n", slot.id, s.message().c_str());
        return 0;
    }
    turn & other = turns[static_cast<size_t>(from.slot)];
    other.shares_cells         = true;
    turn_of(slot).shares_cells = true;
    turn_of(slot).n_same       = std::min(other.n_same, from.n_tokens);
    return from.n_tokens;
}

void cache_core::replaced(const slot_view & slot) {
    prefixes->forget(slot.id);
    board.anchors.clear(slot.id);
    turn_of(slot).exact = false;
    board.offer_unnamed(slot.id, offer_of(slot));
}

// What idle slots hold slows everybody down where slots share their cells: attention looks at the cells of all. It goes where the request
// has no use for it and it comes back from RAM in less time than it costs: that of a prompt of several batches, or of many turns. Of
// sliding windows it stays: upstream finds no cell for several answers to a prompt that alone has filled the windows of all slots.
bool cache_core::is_in_the_way(const slot_view & idle, const slot_view & slot, const server_task & task) const {
    const turn & t = turns[static_cast<size_t>(idle.id)];
    if (!cells_unified || n_swa > 0 || draft_ctx != nullptr || idle.prompt.tokens.empty() || !t.exact) {
        return false;
    }
    if (!task.cache || !task.cache->is_looked_up()) {
        return false;
    }
    const waited::timer  timed(times, wait_cause::lookup);
    const cache_ticket & ticket   = *task.cache;
    const slot_offer     offer    = offer_of(idle);
    const size_t         n_useful = stores.target->store().options().page_size;
    if (t.tokens != offer.tokens || board.is_removed(idle.id) || offer.common(ticket.tokens) >= n_useful) {
        return false;
    }
    const size_t n_have = std::max({ ticket.target.n_tokens(), ticket.shared.n_tokens, offer_of(slot).reusable(ticket.tokens) });
    if (ticket.tokens.size() <= n_have + llama_n_batch(target_ctx) && t.idle_since.ms() < long_idle_ms) {
        return false;
    }
    // The next prompt may part from it at its last message.
    size_t n_before = 0;
    for (const uint32_t n : offer.anchors) {
        n_before = n < t.tokens.size() ? std::max<size_t>(n_before, n) : n_before;
    }
    const auto is_in_ram = [&](size_t n_tokens) {
        return stores.target->is_in_ram(board.scope(idle.id), t.tokens, n_tokens, t.conversation.hash);
    };
    return is_in_ram(t.tokens.size()) && (n_before == 0 || is_in_ram(n_before));
}

// For a request, which may have been about to share what the slot held.
void cache_core::cleared(const slot_view & slot, const server_task & task) {
    prefixes->forget(slot.id);
    board.anchors.clear(slot.id);
    turn_of(slot).tokens.clear();
    board.offer(slot.id, offer_of(slot));
    if (task.cache->shared.slot == slot.id) {
        task.cache->shared = {};
    }
}

// The request has no prompt to keep, or nobody knows its user: what a user left in the slot is not for it.
cache_report cache_core::restore_unnamed(const slot_view & slot, server_prompt & prompt, const server_task & task) {
    if (board.scope(slot.id).user != nobody) {
        prompt.clear();
    }
    prompt.checkpoints.clear(); // They are of what the slot holds, which is about to change.
    board.anchors.clear(slot.id);
    prefixes->forget(slot.id);
    turn_of(slot).exact = false;
    board.disown(slot.id);
    if (task.cache) {
        task.cache->clear();
    }
    return {};
}

cache_report cache_core::restore(const slot_view & slot, server_prompt & prompt, const server_task & task,
                                 const std::function<bool()> & make_room) {
    const waited::timer timed(times, wait_cause::restore);
    turn & t = turn_of(slot);
    const bool known = t.exact && t.tokens == tokens_of(slot.prompt.tokens);
    give_up_arrival(slot);
    t.anchors.clear();
    t.cuts.clear();
    t.shared_cut   = 0;
    t.in_prompt    = !task.is_child(); // It gets its prompt from another slot.
    t.prompt_saved = false;
    t.store        = false;
    t.report       = {};
    if (!is_cached_kind(task.type) || task.is_child() || !task.cache) {
        return restore_unnamed(slot, prompt, task);
    }
    cache_ticket & ticket = *task.cache;
    if (task.params.lora.empty()) {
        scopes.set_defaults(slot.lora);
    }
    sequence_scope       scope;
    const bool           scope_known = scopes.of(ticket.scope.user, slot.lora, scope);
    const sequence_scope before      = board.scope(slot.id);
    // From here on a removal finds the request in its slot, until here as one that waits.
    const bool was_removed = board.take(slot.id, scope, ticket.conversation.hash, naming_tokens(ticket.tokens), ticket.removed);
    if (ticket.removed) {
        ticket.target.clear();
        ticket.draft.clear();
        ticket.shared = {};
    }
    const bool moves_cells = t.shares_cells && task.params.n_cache_reuse > 0; // also those of others
    if (was_removed || before != scope || moves_cells) {
        prompt.clear(); // It was removed on request, is another user's, or was evaluated with other adapters.
    }
    const size_t n_known = ticket.miss == cache_miss::off ? 0 : prompt.tokens.get_common_prefix(task.tokens);
    board.anchors.keep_first(slot.id, known ? n_known : 0);
    t.shares_cells = t.shares_cells && !prompt.tokens.empty();

    if (!checkpoints_exact) {
        prompt.checkpoints.clear(); // Upstream's are not; anchors are.
    }
    // What upstream finds there now belongs to this prompt, or is not there.
    prompt.checkpoints.remove_if([&](const common_prompt_checkpoint & c) { return !slot_offer::fits(c, n_known); });

    placing place;
    place.scope       = scope;
    place.scope_known = scope_known;
    place.known       = known;
    place.offer       = offer_of(slot);
    const slot_reuse in_slot   = ticket.is_looked_up() ? place.offer.reuse(ticket.tokens) : slot_reuse();
    const size_t     n_in_slot = in_slot.n_tokens;
    const size_t     n_stored  = ticket.target.n_tokens();
    const size_t     n_shared  = task.params.n_cache_reuse > 0 ? 0 : ticket.shared.n_tokens;
    const bool       wanted    = scope_known && scope == ticket.scope && std::max(n_stored, n_shared) > n_in_slot &&
                                 task.n_tokens() < slot.n_ctx;
    place.n_kept = wanted ? 0 : n_in_slot;
    t.n_same     = known ? std::min(t.n_same, n_known) : 0;
    if (wanted) {
        const stopwatch watch;
        prompt.clear();
        prefixes->forget(slot.id);
        place.n_restored = n_shared >= n_stored ? share(slot, ticket) : 0;
        place.shared     = place.n_restored > 0;
        if (!place.shared && n_stored > 0 && draft_ctx == nullptr) { // Both contexts of a pair are filled at once.
            t.arriving = std::make_unique<arrival>();
            t.arriving->ticket    = task.cache;
            t.arriving->place     = std::move(place);
            t.arriving->make_room = make_room;
            t.arriving->state     = stores.target->begin_put(slot.id, *ticket.target.reading, ticket.target.match, t.n_same);
            return {};
        }
        if (!place.shared && n_stored > 0) {
            place.n_restored = put(slot, ticket, make_room);
        }
        place.put_ms = watch.ms();
    } else if (in_slot.back_to_anchor && scope_known) {
        place.n_kept    = go_back(slot, prompt, n_in_slot);
        place.went_back = place.n_kept > 0;
    }
    return finish_restore(slot, prompt, task, place);
}

// What the slot holds is known by now.
cache_report cache_core::finish_restore(const slot_view & slot, server_prompt & prompt, const server_task & task, placing & place) {
    turn &         t          = turn_of(slot);
    cache_ticket & ticket     = *task.cache;
    const size_t   n_restored = place.n_restored;
    const size_t   n_common   = place.offer.common(ticket.tokens);
    prompt.tokens.insert({ ticket.tokens.begin(), ticket.tokens.begin() + static_cast<std::ptrdiff_t>(n_restored) });

    t.report            = place.shared ? shared_report(ticket) : report_of(ticket, place.offer, place.n_kept, n_restored, stores);
    t.report.restore_ms = n_restored > 0 ? static_cast<float>((place.shared ? 0 : ticket.read_ms) + place.put_ms) : 0;
    t.report.waited_ms  = ticket.waiting_for_shared ? static_cast<float>(ticket.waiting_for_shared->ms()) : 0;
    t.report.stable     = ticket.stable;
    if (n_restored > 0 || place.went_back) {
        t.report.window_from = llama_memory_seq_pos_min(llama_get_memory(target_ctx), slot.id);
    }
    note_messages(task, t);
    t.conversation      = ticket.conversation;
    t.parted = parting_of(target_ctx, ticket, t.report, t.n_static);
    log_request(slot.id, ticket.tokens.size(), std::max(n_restored, place.n_kept), t.report, t.parted);
    if (t.report.miss == cache_miss::recompute_faster) {
        measured.disk.doubt();
    }

    if (n_restored == 0 && !place.known && n_common == 0) {
        prompt.clear(); // Nothing of it is used, and whether it is exact nobody knows.
    }
    t.tokens     = tokens_of(prompt.tokens);
    t.exact      = n_restored > 0 || place.known || prompt.tokens.empty();
    t.store      = place.scope_known && ticket.is_looked_up();
    t.n_reusable = std::max(n_restored, n_common);
    t.n_restored = n_restored;
    t.n_saved    = n_restored;
    t.n_same     = place.shared ? t.n_same : n_restored > 0 ? n_restored : std::min(t.n_same, place.n_kept);
    t.n_refused  = 0;
    t.warms      = ticket.warms;
    t.n_anchored = 0;
    if (t.store && t.exact && stores.target->folded() && t.warms != warming::part) {
        const uint32_t n_begin = static_cast<uint32_t>(std::max(n_restored, place.n_kept));
        t.cuts       = prompt_cuts(n_begin, static_cast<uint32_t>(task.n_tokens()), t.n_static, t.last_user);
        if (t.report.miss == cache_miss::no_anchor) {
            t.shared_cut = cut_before_parting(t.cuts, n_begin, t.report.at, stores.target->store().options().page_size);
        }
    }
    if (t.store && t.exact) {
        prefixes->begin(slot.id, place.scope, ticket.tokens, std::max(n_restored, place.n_kept), t.shared_cut); // A removal may read them.
    } else {
        prefixes->forget(slot.id);
    }
    ticket.clear();
    return t.report;
}

// Notes where the prompt's messages begin.
void cache_core::note_messages(const server_task & task, turn & t) {
    t.n_static  = 0;
    t.last_user = 0;
    t.roles.clear();
    for (const common_chat_msg_span & span : task.params.message_spans.spans) {
        t.roles.push_back({ static_cast<uint32_t>(span.pos), static_cast<uint32_t>(span.role) });
        if (span.role == COMMON_CHAT_ROLE_USER) {
            t.n_static  = t.n_static == 0 ? static_cast<uint32_t>(span.pos) : t.n_static;
            t.last_user = static_cast<uint32_t>(span.pos);
        }
    }
}

} // namespace llama_run

#include "server/cache_core.h"

#include "kvtier/file_names.h"

#include "log.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace llama_run {

using kvtier::status;

// Chosen so that a measurement's noise cannot turn a short restore into a short evaluation and back.
static constexpr double recompute_margin_ms = 50;

// For the writer.
static constexpr double max_wait_ms     = 2000;
static constexpr double unknown_eval_ms = 200; // before any prompt has shown how fast they are evaluated

// Of a restore, when its request goes to the inference thread.
static constexpr double max_left_ms        = 200; // to be read, by estimate
static constexpr double unknown_copy_speed = 8e9; // bytes per second, before the first one

static constexpr uint64_t least_told_by = uint64_t(4) << 20; // how long a smaller copy takes says nothing about larger ones

static double ms_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void speed::add(double amount, double seconds) {
    if (amount <= 0 || seconds <= 0) {
        return;
    }
    const double now = amount / seconds;
    const double old = value.load();
    value.store(old == 0 ? now : 0.7 * old + 0.3 * now);
}

void speed::doubt() {
    value.store(1.15 * value.load());
}

void cache_ticket::clear() {
    if (core) {
        core->in_flight -= in_flight;
    }
    in_flight = 0;
    target.clear();
    draft.clear();
    core.reset();
}

static bool same_scope(const sequence_scope & a, const sequence_scope & b) {
    return a.name_space == b.name_space && a.adapters.size() == b.adapters.size() &&
           std::equal(a.adapters.begin(), a.adapters.end(), b.adapters.begin(),
                      [](const kvtier::adapter & x, const kvtier::adapter & y) {
                          return x.content == y.content && x.scale == y.scale;
                      });
}

//
// what slots and requests are
//

// False when an adapter is active whose state cannot be told apart: one that came after the start, or that sets in
// somewhere within the prompt.
bool cache_core::scope_of(const std::string & user, const std::vector<common_adapter_lora_info> & lora,
                          sequence_scope & out) const {
    out = {};
    out.name_space = user;
    for (const common_adapter_lora_info & adapter : lora) {
        if (adapter.scale == 0) {
            continue;
        }
        const auto known = adapter_keys.find(adapter.path);
        if (known == adapter_keys.end() ||
            (adapter.ptr != nullptr && llama_adapter_get_alora_n_invocation_tokens(adapter.ptr) > 0)) {
            return false;
        }
        out.adapters.push_back({ known->second, adapter.scale });
    }
    return true;
}

sequence_scope cache_core::scope_of_request(const std::string & user, const task_params & params) const {
    std::lock_guard<std::mutex> guard(notice_mu);
    std::vector<common_adapter_lora_info> lora = defaults;
    if (!params.lora.empty()) {
        for (size_t i = 0; i < lora.size(); i++) {
            const auto named = params.lora.find(static_cast<int>(i));
            lora[i].scale = named == params.lora.end() ? 0.0f : named->second;
        }
    }
    sequence_scope scope;
    (void) scope_of(user, lora, scope);
    return scope;
}

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
    return offer;
}

void cache_core::publish(const slot_view & slot, const slot_record & rec, bool idle) {
    slot_notice notice;
    notice.idle  = idle;
    notice.scope  = rec.scope;
    notice.prompt = rec.prompt;
    if (idle) {
        notice.offer = offer_of(slot);
    }
    std::lock_guard<std::mutex> guard(notice_mu);
    slot_notice & old = notices[static_cast<size_t>(slot.id)];
    notice.forget = old.forget;
    old = std::move(notice);
    notice_changed.notify_all();
}

size_t cache_core::best_idle_offer(const cache_ticket & ticket) const {
    std::lock_guard<std::mutex> guard(notice_mu);
    size_t best = 0;
    for (const slot_notice & notice : notices) {
        if (notice.idle && !notice.forget && same_scope(notice.scope, ticket.scope)) {
            best = std::max(best, notice.offer.reusable(ticket.tokens));
        }
    }
    return best;
}

//
// lookup
//

std::shared_ptr<cache_ticket> cache_core::make_ticket(const server_task & task, const std::string & user) {
    auto ticket = std::make_shared<cache_ticket>(user);
    ticket->core  = shared_from_this();
    ticket->scope = scope_of_request(user, task.params);
    if (!is_cached_kind(task.type) || !task.params.cache_prompt || task.is_child()) {
        ticket->failure = cache_miss::off;
        return ticket;
    }
    ticket->tokens = tokens_of(task.tokens, task.tokens.size());
    if (has_media(ticket->tokens)) {
        ticket->failure = cache_miss::media;
    }
    std::lock_guard<std::mutex> guard(notice_mu);
    waiting.erase(std::remove_if(waiting.begin(), waiting.end(), [](const auto & t) { return t.expired(); }), waiting.end());
    waiting.push_back(ticket);
    return ticket;
}

void cache_core::look(cache_ticket & ticket) const {
    ticket.target.clear();
    ticket.draft.clear();
    if (ticket.tokens.size() < 2) {
        return;
    }
    ticket.target.match = target->find(ticket.scope, ticket.tokens, ticket.tokens.size() - 1);
    const size_t n = ticket.target.match.n_tokens;
    if (draft != nullptr && n > 0) {
        // Both contexts go on at one position, or the draft's starts empty.
        kvtier::match found = draft->find(ticket.scope, ticket.tokens, n);
        if (found.n_tokens == n) {
            ticket.draft.match = std::move(found);
        }
    }
}

// What the writer still has for this prompt, beyond what was found and what the slot holds. A prompt waits once.
kvtier::writer::promise cache_core::promised(const cache_ticket & ticket, size_t n_in_slot) const {
    if (ticket.waited || ticket.tokens.size() < 2) {
        return {};
    }
    const kvtier::writer::promise save = target->coming(ticket.scope, ticket.tokens, ticket.tokens.size() - 1);
    return save.n_tokens > std::max(ticket.target.match.n_tokens, n_in_slot) ? save : kvtier::writer::promise();
}

// A request may follow so soon on another that the state it needs is not on disk yet. Waiting for it takes no longer than
// evaluating would. Never on the inference thread.
void cache_core::wait_for_writer(cache_ticket & ticket, size_t n_in_slot) const {
    const kvtier::writer::promise save = promised(ticket, n_in_slot);
    if (save.n_tokens == 0) {
        return;
    }
    const double n_gained  = static_cast<double>(save.n_tokens - std::max(ticket.target.match.n_tokens, n_in_slot));
    const double eval_ms   = eval_speed.get() > 0 ? 1000 * n_gained / eval_speed.get() : unknown_eval_ms;
    ticket.waited = true;
    (void) target->queue().wait_for(save, std::chrono::milliseconds(static_cast<int64_t>(std::min(eval_ms, max_wait_ms))));
    look(ticket);
}

bool cache_core::worth_reading(cache_ticket & ticket, size_t n_in_slot) const {
    const kvtier::match & m = ticket.target.match;
    if (m.n_tokens <= n_in_slot) {
        return false;
    }
    kvtier::restore_facts facts;
    facts.bytes_ram        = m.bytes_ram + ticket.draft.match.bytes_ram;
    facts.bytes_disk       = m.bytes_disk + ticket.draft.match.bytes_disk;
    facts.n_tokens         = m.n_tokens - n_in_slot;
    facts.ram_bytes_per_s  = copy_speed.get();
    facts.disk_bytes_per_s = disk_speed.get();
    facts.tokens_per_s     = eval_speed.get();
    const kvtier::restore_decision decision = kvtier::restore_or_recompute(facts);
    if (!decision.restore && decision.restore_ms > decision.eval_ms + recompute_margin_ms) {
        ticket.failure = cache_miss::recompute_faster;
        return false;
    }
    return true;
}

void cache_core::arrive(server_task & task, const admission & from) {
    const auto ticket = make_ticket(task, from.user);
    ticket->stable = from.stable;
    task.cache = ticket;
    if (ticket->failure != cache_miss::none) {
        return;
    }
    look(*ticket);
    const size_t n_in_slot = best_idle_offer(*ticket);
    wait_for_writer(*ticket, n_in_slot);
    if (!worth_reading(*ticket, n_in_slot)) {
        ticket->failure = cache_miss::none; // the slot it gets decides
        return;
    }
    if (!reserve(*ticket, false)) {
        target->store().prefetch(ticket->target.match);
        return;
    }
    read(*ticket);
}

// Requests that wait for a slot must not pile up state in RAM: beyond the budget they read when their turn comes, `always`.
bool cache_core::reserve(cache_ticket & ticket, bool always) {
    const uint64_t n_bytes = ticket.target.match.bytes_disk + ticket.draft.match.bytes_disk;
    in_flight -= ticket.in_flight;
    ticket.in_flight = 0;
    const uint64_t others = in_flight.fetch_add(n_bytes);
    if (!always && others > 0 && others + n_bytes > target->store().options().ram_bytes) {
        in_flight -= n_bytes;
        return false;
    }
    ticket.in_flight = n_bytes;
    return true;
}

// The user's own slot that holds most of the prompt; else an empty one; else the user's least recently used; else the least
// recently used of all. A slot of which the prompt would throw away more than half is spared while another is empty and the
// store has as much.
int cache_core::choose(const std::vector<slot_candidate> & slots, const server_task & task) const {
    if (task.id_slot != -1 || !is_cached_kind(task.type) || !task.cache) {
        return -1;
    }
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
        if (!same_scope(records[static_cast<size_t>(slot.id)].scope, ticket.scope)) {
            continue;
        }
        own = older(i, own) ? static_cast<int>(i) : own;
        const slot_offer offer    = offer_of(slot);
        const size_t     n_common = offer.common(ticket.tokens);
        if (n_common > most && static_cast<float>(n_common) > min_similarity * static_cast<float>(ticket.tokens.size())) {
            most    = n_common;
            similar = static_cast<int>(i);
            sparing = 2 * n_common < offer.tokens.size() && ticket.target.match.n_tokens >= offer.reusable(ticket.tokens);
        }
    }
    if (similar >= 0 && !(sparing && empty >= 0)) {
        return similar;
    }
    return empty >= 0 ? empty : own >= 0 ? own : oldest;
}

bool cache_core::ready(const slot_view & slot, server_task & task) {
    if (!task.cache || !task.cache->core) { // of a request without HTTP, or one that came while the cache was off
        task.cache = make_ticket(task, task.cache ? task.cache->scope.name_space : "");
    }
    cache_ticket & ticket = *task.cache;
    n_reads_seen = n_reads_done; // before `reading` is looked at: see deferred
    if (ticket.reading) {
        return false;
    }
    if (ticket.failure == cache_miss::off || ticket.failure == cache_miss::media || ticket.removed ||
        task.n_tokens() >= slot.n_ctx) {
        return true;
    }
    size_t n_in_slot = 0;
    {
        std::lock_guard<std::mutex> guard(notice_mu);
        const slot_record & rec = records[static_cast<size_t>(slot.id)];
        if (same_scope(rec.scope, ticket.scope) && !notices[static_cast<size_t>(slot.id)].forget) {
            n_in_slot = offer_of(slot).reusable(ticket.tokens);
        }
    }
    if (ticket.target.n_tokens() > n_in_slot) {
        return true;
    }
    look(ticket);
    if (promised(ticket, n_in_slot).n_tokens == 0) {
        if (!worth_reading(ticket, n_in_slot)) {
            return true;
        }
        if (ticket.target.match.bytes_disk + ticket.draft.match.bytes_disk == 0) {
            read(ticket); // from RAM: no file is touched
            return true;
        }
        if (ticket.n_reads >= 2) {
            return true; // files that change or break faster than they are read
        }
    }
    std::lock_guard<std::mutex> guard(reader_mu);
    if (stopping) {
        return true;
    }
    ticket.reading   = true;
    ticket.n_in_slot = n_in_slot;
    reads.push_back({ task.cache, queue.awake.hold() });
    reader_changed.notify_all();
    return false;
}

//
// restore
//

static cache_miss failure_of(const status & s) {
    return s.is_damaged() ? cache_miss::corrupt : s.is_io_error() ? cache_miss::io_error : cache_miss::no_room;
}

// Until the rest will have come by the time that what is there has been copied into the context. The inference thread does
// that: it must not wait for a disk.
bool cache_core::read_part(sequence_store & from, stored_part & part, cache_ticket & ticket) {
    status s = from.begin_read(part.match, ticket.tokens, part.coming);
    if (s.is_ok()) {
        const double n_bytes = static_cast<double>(part.match.bytes_disk + part.match.bytes_ram);
        const double speed   = copy_speed.get() > 0 ? copy_speed.get() : unknown_copy_speed;
        s = part.coming->wait_until_left(std::min(n_bytes / speed, max_left_ms / 1000));
    }
    if (!s.is_ok()) {
        part.coming.reset();
        ticket.failure = failure_of(s);
        LOG_WRN("cache: %s\n", s.message().c_str());
        return false;
    }
    return true;
}

void cache_core::read(cache_ticket & ticket) {
    const auto start = std::chrono::steady_clock::now();
    ticket.n_reads++;
    ticket.failure = cache_miss::none;
    if (read_part(*target, ticket.target, ticket) && draft != nullptr && ticket.draft.match.n_tokens > 0) {
        const cache_miss none = ticket.failure;
        (void) read_part(*draft, ticket.draft, ticket); // without it the draft context starts empty
        ticket.failure = none;
    }
    ticket.read_ms += ms_since(start);
}

void cache_core::run_reader() {
    std::unique_lock<std::mutex> guard(reader_mu);
    for (;;) {
        reader_changed.wait(guard, [&] { return stopping || !reads.empty(); });
        if (stopping) {
            return;
        }
        const pending_read read_for = std::move(reads.front());
        const auto &       ticket   = read_for.ticket;
        reads.pop_front();
        guard.unlock();
        wait_for_writer(*ticket, ticket->n_in_slot);
        if (worth_reading(*ticket, ticket->n_in_slot)) {
            (void) reserve(*ticket, true);
            read(*ticket);
        }
        ticket->reading = false;
        n_reads_done++;
        guard.lock();
        if (stopping) {
            return; // whoever waits for this thread may hold the queue
        }
        guard.unlock();
        queue.offer_deferred(); // all: which of them has been read for, the queue does not tell
        guard.lock();
    }
}

// A read that ended between ready and now found no request to offer again.
void cache_core::deferred() {
    if (n_reads_done != n_reads_seen) {
        n_reads_seen = n_reads_done;
        queue.offer_deferred();
    }
}

// Every object that was restored, and whose it is: with this in the log, that nothing crosses users can be checked from outside.
static void log_keys(int id_slot, const kvtier::match & m) {
    std::string keys;
    for (const kvtier::matched_run & run : m.runs) {
        keys += " " + kvtier::hex(run.k);
    }
    LOG_TRC("cache: slot %d: restored %zu tokens of name space %s:%s\n", id_slot, m.n_tokens, kvtier::hex(m.name_space).c_str(),
            keys.c_str());
}

// Gives how many tokens the slot holds now.
size_t cache_core::put(const slot_view & slot, cache_ticket & ticket, const std::function<bool()> & make_room) {
    const auto            start  = std::chrono::steady_clock::now();
    const kvtier::match & m      = ticket.target.match;
    kvtier::loading &     coming = *ticket.target.coming;
    if (draft_ctx != nullptr) {
        // First, because some draft contexts share the target's cells.
        llama_memory_seq_rm(llama_get_memory(draft_ctx), slot.id, -1, -1);
    }
    size_t n_tokens = 0;
    status s        = target->put(slot.id, coming, n_tokens);
    while (!s.is_ok() && coming.wait().is_ok() && make_room()) { // files that cannot be read need no room
        s = target->put(slot.id, coming, n_tokens);
    }
    const status read = coming.wait();
    if (!read.is_ok()) {
        ticket.failure = failure_of(read);
        LOG_WRN("cache: %s\n", read.message().c_str());
    } else if (!s.is_ok()) {
        ticket.failure = cache_miss::no_room;
        LOG_WRN("cache: slot %d: %s\n", slot.id, s.message().c_str());
    } else {
        if (m.bytes_ram + m.bytes_disk >= least_told_by) {
            copy_speed.add(static_cast<double>(m.bytes_ram + m.bytes_disk), ms_since(start) / 1000 - coming.seconds_waited());
        }
        // Reads at once share a disk, and none of them says how fast it is.
        if (m.bytes_disk >= least_told_by && in_flight == ticket.in_flight) {
            disk_speed.add(static_cast<double>(m.bytes_disk), coming.seconds_read());
        }
    }
    if (n_tokens == 0) {
        return 0;
    }
    target->used(m);
    log_keys(slot.id, m);
    size_t n_draft = 0;
    if (ticket.draft.n_tokens() == n_tokens) {
        (void) draft->put(slot.id, *ticket.draft.coming, n_draft);
        if (n_draft == n_tokens) {
            draft->used(ticket.draft.match);
        } else {
            llama_memory_seq_rm(llama_get_memory(draft_ctx), slot.id, -1, -1); // both go on at one position, or it starts empty
        }
    }
    return n_tokens;
}

cache_report cache_core::report_of(const cache_ticket & ticket, const slot_offer & offer, size_t n_in_slot,
                                   size_t n_restored) const {
    const kvtier::match & m = ticket.target.match;
    cache_report report;
    report.shown = true;
    if (n_restored > 0) {
        report.source = m.source == kvtier::match_source::hot  ? cache_source::hot
                      : m.source == kvtier::match_source::warm ? cache_source::warm : cache_source::cold;
        report.match  = m.kind == kvtier::match_kind::conversation ? cache_match::conversation : cache_match::prefix;
    } else if (n_in_slot > 0) {
        report.source = cache_source::slot;
        report.match  = cache_match::slot;
    }

    const size_t n_slot   = offer.common(ticket.tokens);
    const size_t n_common = std::max(n_slot, m.n_common);
    const size_t n_all    = ticket.tokens.empty() ? 0 : ticket.tokens.size() - 1;
    const size_t n_reused = std::max(n_restored, n_in_slot);
    report.at = static_cast<uint32_t>(n_common);
    if (ticket.failure != cache_miss::none) {
        report.miss = ticket.failure;
    } else if (n_reused >= n_all) {
        report.miss = cache_miss::none;
    } else if (n_reused < std::min(n_common, n_all)) {
        report.miss = cache_miss::no_anchor;
    } else if (n_common == 0) {
        const uint64_t hash = kvtier::conversation_hash(ticket.tokens.data(), ticket.tokens.size());
        // Whose they are elsewhere is not known, but for those of nobody: no user learns of another's.
        const bool known = ticket.scope.name_space.empty() && elsewhere.count(hash) != 0;
        report.miss = known ? cache_miss::other_fingerprint : cache_miss::nothing_stored;
    } else if (n_slot >= m.n_common) {
        report.miss = n_slot < offer.tokens.size() ? cache_miss::parted : cache_miss::new_tokens;
    } else {
        report.miss = m.reason == kvtier::miss_reason::diverged ? cache_miss::parted : cache_miss::new_tokens;
    }
    return report;
}

// State from upstream's files, which name no user.
void cache_core::replaced(const slot_view & slot) {
    slot_record & rec = records[static_cast<size_t>(slot.id)];
    rec.exact = false;
    rec.scope = {};
    rec.prompt.clear();
    publish(slot, rec, true);
}

static constexpr size_t n_told = 64; // bytes of text on each side of where prompts part

// The text of tokens [begin, end), without control characters.
static std::string text_of(const llama_context * ctx, const std::vector<kvtier::token> & tokens, size_t begin, size_t end) {
    std::string out;
    for (size_t i = begin; i < end; i++) {
        // A picture's tokens have no number, and the vocabulary throws when asked for one it has not.
        out += tokens[i] == LLAMA_TOKEN_NULL ? "*" : common_token_to_piece(ctx, tokens[i]);
    }
    for (char & c : out) {
        c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return out;
}

parting cache_core::parting_of(const cache_ticket & ticket, const cache_report & report, uint32_t n_static) const {
    parting out;
    if (report.miss == cache_miss::off || report.miss == cache_miss::none || report.miss == cache_miss::new_tokens) {
        return out;
    }
    // Nearly every token has at least a byte of text.
    const size_t      at     = std::min<size_t>(report.at, ticket.tokens.size());
    const std::string before = text_of(target_ctx, ticket.tokens, at < n_told ? 0 : at - n_told, at);
    const std::string after  = text_of(target_ctx, ticket.tokens, at, std::min(ticket.tokens.size(), at + n_told));
    const std::string tail   = before.size() > n_told ? before.substr(before.size() - n_told) : before;
    out.words  = tail + " | " + after.substr(0, n_told);
    out.early  = report.miss == cache_miss::parted && report.at < n_static;
    out.advice = advice_for(tail + after.substr(0, n_told), out.early);
    return out;
}

void cache_core::log(const slot_view & slot, const cache_ticket & ticket, const slot_record & rec, size_t n_reused) const {
    const cache_report & report = rec.report;
    if (report.miss == cache_miss::off) {
        return;
    }
    LOG_INF("cache: slot %d: %zu of %zu tokens from %s (%s), restored in %.1f ms\n", slot.id, n_reused, ticket.tokens.size(),
            cache_source_name(report.source), cache_match_name(report.match), report.restore_ms);
    if (!rec.parted.words.empty()) {
        LOG_INF("cache: slot %d: %s at token %u: %s\n", slot.id, cache_miss_name(report.miss), report.at, rec.parted.words.c_str());
    }
    if (!rec.parted.advice.empty()) {
        LOG_INF("cache: slot %d: %s\n", slot.id, rec.parted.advice.c_str());
    }
}

cache_report cache_core::restore(const slot_view & slot, server_prompt & prompt, const server_task & task,
                                 const std::function<bool()> & make_room) {
    slot_record & rec = records[static_cast<size_t>(slot.id)];
    const bool known = rec.exact && rec.tokens == tokens_of(slot.prompt.tokens, slot.prompt.tokens.size());
    rec.anchors.clear();
    rec.prompt_saved = false;
    rec.store        = false;
    rec.report       = {};
    if (!is_cached_kind(task.type) || task.is_child() || !task.cache) {
        if (rec.scope.name_space != nobody) {
            prompt.clear(); // of a user, and whose request this is nobody says
        }
        prompt.checkpoints.clear(); // they are of what the slot holds, which is about to change
        rec.scope            = {};
        rec.scope.name_space = nobody;
        rec.prompt.clear();
        rec.exact = false;
        publish(slot, rec, false);
        if (task.cache) {
            task.cache->clear();
        }
        return {};
    }
    cache_ticket & ticket = *task.cache;

    sequence_scope scope;
    const bool     scope_known = scope_of(ticket.scope.name_space, slot.lora, scope);
    bool           forget      = false;
    rec.prompt.assign(ticket.tokens.begin(), ticket.tokens.begin() + static_cast<std::ptrdiff_t>(
                          std::min(ticket.tokens.size(), kvtier::n_conversation_tokens)));
    {
        // From here on a removal finds the request in its slot, until here as one that waits.
        std::lock_guard<std::mutex> guard(notice_mu);
        slot_notice & notice = notices[static_cast<size_t>(slot.id)];
        defaults      = task.params.lora.empty() ? slot.lora : defaults;
        forget        = notice.forget;
        notice        = {};
        notice.idle   = false;
        notice.forget = ticket.removed;
        notice.scope  = scope;
        notice.prompt = rec.prompt;
    }
    if (ticket.removed) {
        ticket.target.clear();
        ticket.draft.clear();
    }
    if (forget || !same_scope(scope, rec.scope)) {
        prompt.clear(); // removed on request, another user's, or evaluated with other adapters
    }

    if (!checkpoints_exact) {
        prompt.checkpoints.clear(); // anchors are
    }

    // What upstream finds there now belongs to this prompt, or is not there.
    const size_t n_known = ticket.failure == cache_miss::off ? 0 : prompt.tokens.get_common_prefix(task.tokens);
    prompt.checkpoints.remove_if([&](const common_prompt_checkpoint & c) { return !slot_offer::fits(c, n_known); });

    const slot_offer offer     = offer_of(slot);
    const size_t     n_in_slot = ticket.failure == cache_miss::off || ticket.failure == cache_miss::media
                                     ? 0 : offer.reusable(ticket.tokens);
    const bool wanted = scope_known && same_scope(scope, ticket.scope) && ticket.target.n_tokens() > n_in_slot &&
                        task.n_tokens() < slot.n_ctx;
    size_t n_restored = 0;
    double put_ms     = 0;
    if (wanted) {
        const auto start = std::chrono::steady_clock::now();
        prompt.clear();
        n_restored = put(slot, ticket, make_room);
        prompt.tokens.insert({ ticket.tokens.begin(), ticket.tokens.begin() + static_cast<std::ptrdiff_t>(n_restored) });
        put_ms = ms_since(start);
    }

    rec.report            = report_of(ticket, offer, wanted ? 0 : n_in_slot, n_restored);
    rec.report.restore_ms = n_restored > 0 ? static_cast<float>(ticket.read_ms + put_ms) : 0;
    rec.report.stable     = ticket.stable;
    rec.n_static   = 0;
    rec.last_user  = 0;
    rec.roles.clear();
    for (const common_chat_msg_span & span : task.params.message_spans.spans) {
        rec.roles.push_back({ static_cast<uint32_t>(span.pos), static_cast<uint32_t>(span.role) });
        if (span.role == COMMON_CHAT_ROLE_USER) {
            rec.n_static  = rec.n_static == 0 ? static_cast<uint32_t>(span.pos) : rec.n_static;
            rec.last_user = static_cast<uint32_t>(span.pos);
        }
    }
    rec.parted = parting_of(ticket, rec.report, rec.n_static);
    log(slot, ticket, rec, std::max(n_restored, wanted ? 0 : n_in_slot));

    if (rec.report.miss == cache_miss::recompute_faster) {
        disk_speed.doubt();
    }

    if (n_restored == 0 && !known && offer.common(ticket.tokens) == 0) {
        prompt.clear(); // nothing of it is used, and whether it is exact nobody knows
    }
    rec.tokens     = tokens_of(prompt.tokens, prompt.tokens.size());
    rec.scope      = scope;
    rec.exact      = n_restored > 0 || known || prompt.tokens.empty();
    rec.store      = scope_known && ticket.failure != cache_miss::off && ticket.failure != cache_miss::media;
    rec.n_reusable = std::max(n_restored, offer.common(ticket.tokens));
    rec.n_restored = n_restored;
    rec.n_saved    = n_restored;
    rec.n_refused  = 0;
    ticket.clear();
    publish(slot, rec, false);
    return rec.report;
}

} // namespace llama_run

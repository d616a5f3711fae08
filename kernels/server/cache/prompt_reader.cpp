#include "server/cache/prompt_reader.h"

#include "server/cache/stopwatch.h"

#include "log.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

namespace llama_run {

using kvtier::status;

// A measurement's noise must not turn a short restore into a short evaluation and back.
static constexpr double recompute_margin_ms = 50;

// So much of a restore may be left to read, by estimate, when its request goes to the inference thread.
static constexpr double max_left_ms        = 200;
static constexpr double unknown_copy_speed = 8e9; // bytes per second, before the first one

// So long may it take to fetch few bytes of the shared folder.
static constexpr auto least_fetch = std::chrono::milliseconds(200);
static constexpr kvtier::shared_tier::clock::duration unknown_fetch = std::chrono::seconds(10); // before any prompt has been evaluated

// A request reads at most that often: files that change or break faster than they are read are not worth a third attempt.
static constexpr uint32_t max_reads = 2;

prompt_reader::prompt_reader(cache_stores & stores, speeds & measured, server_queue & queue) :
    stores(stores), measured(measured), queue(queue), thread([this] { run(); }) {}

void prompt_reader::stop() {
    {
        kvtier::mutex_lock guard(mu);
        stopping = true;
        changed.notify_all();
    }
    if (thread.joinable()) {
        thread.join();
    }
    kvtier::mutex_lock guard(mu);
    reads.clear(); // The tickets of cancelled requests would keep the cache, and its lock, open.
}

void prompt_reader::expect(const std::shared_ptr<cache_ticket> & ticket) {
    kvtier::mutex_lock guard(waiting_mu);
    waiting.erase(std::remove_if(waiting.begin(), waiting.end(), [](const auto & t) { return t.expired(); }), waiting.end());
    waiting.push_back(ticket);
}

void prompt_reader::remove(const removal & what) {
    kvtier::mutex_lock guard(waiting_mu);
    for (const std::weak_ptr<cache_ticket> & t : waiting) {
        const auto ticket = t.lock();
        if (ticket && what.concerns(ticket->scope, ticket->conversation.hash, ticket->tokens)) {
            ticket->removed = true;
        }
    }
}

//
// lookup
//

void prompt_reader::look(cache_ticket & ticket) const {
    ticket.target.clear();
    ticket.draft.clear();
    if (ticket.tokens.size() < 2) {
        return;
    }
    ticket.target.match = stores.target->find(ticket.scope, ticket.tokens, ticket.tokens.size() - 1, ticket.conversation.hash);
    const size_t n = ticket.target.match.n_tokens;
    if (stores.draft != nullptr && n > 0) {
        // Both contexts go on at one position, or the draft's starts empty.
        kvtier::match found = stores.draft->find(ticket.scope, ticket.tokens, n, ticket.conversation.hash);
        if (found.n_tokens == n) {
            ticket.draft.match = std::move(found);
        }
    }
}

size_t prompt_reader::n_stored(const cache_ticket & ticket) const {
    return stores.target->find(ticket.scope, ticket.tokens, ticket.tokens.size() - 1).n_tokens;
}

prompt_reader::verdict prompt_reader::judge(const cache_ticket & ticket, size_t n_in_slot) const {
    const kvtier::match & m = ticket.target.match;
    if (m.n_tokens <= n_in_slot) {
        return verdict::nothing_more;
    }
    kvtier::restore_facts facts;
    facts.bytes_ram        = m.bytes_ram + ticket.draft.match.bytes_ram;
    facts.bytes_disk       = m.bytes_disk + ticket.draft.match.bytes_disk;
    facts.n_tokens         = m.n_tokens - n_in_slot;
    facts.disk_bytes_per_s = measured.disk.get();
    return is_slower(facts) ? verdict::recompute : verdict::read;
}

// Whether restoring takes longer than evaluating.
bool prompt_reader::is_slower(kvtier::restore_facts facts) const {
    facts.ram_bytes_per_s = measured.copy.get();
    facts.tokens_per_s    = measured.eval.get();
    const kvtier::restore_decision decision = kvtier::restore_or_recompute(facts);
    return !decision.restore && decision.restore_ms > decision.eval_ms + recompute_margin_ms;
}

static std::set<kvtier::key> keys_of(const kvtier::shared_match & match) {
    std::set<kvtier::key> out;
    for (const kvtier::shared_run & r : match.runs) {
        out.insert(r.k);
    }
    if (match.anchor) {
        out.insert(match.anchor->k);
    }
    return out;
}

// What other servers have evaluated comes out of the folder that they share into the store, where it is looked up then. That takes no
// longer than evaluating would.
void prompt_reader::fetch(cache_ticket & ticket, size_t n_in_slot) {
    if (stores.shared == nullptr || ticket.tokens.size() < 2) {
        return;
    }
    const kvtier::lookup_request asked = stores.target->question(ticket.scope, ticket.tokens, ticket.tokens.size() - 1, ticket.conversation.hash);
    const kvtier::shared_match wanted = stores.shared->find(asked, ticket.target.match);
    if (wanted.n_tokens <= n_in_slot) {
        return;
    }
    const fetch_line::turn turn(fetching, keys_of(wanted));
    look(ticket);
    const kvtier::shared_match found  = stores.shared->find(asked, ticket.target.match);
    const size_t               n_have = std::max(ticket.target.match.n_tokens, n_in_slot);
    if (found.n_tokens <= n_have) {
        return;
    }
    kvtier::restore_facts facts;
    facts.bytes_disk       = found.bytes();
    facts.n_tokens         = found.n_tokens - n_have;
    facts.disk_bytes_per_s = measured.shared.get();
    if (is_slower(facts)) {
        measured.shared.doubt();
        ticket.miss = cache_miss::recompute_faster;
        return;
    }
    using clock = kvtier::shared_tier::clock;
    const double eval_s  = measured.eval.get() > 0 ? static_cast<double>(facts.n_tokens) / measured.eval.get() : 0;
    const auto   at_most = eval_s > 0 ? std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(eval_s) + least_fetch)
                                      : unknown_fetch;
    const stopwatch watch;
    uint64_t        n_bytes = 0;
    const status    s = stores.shared->fetch(asked.root, found, at_most, n_bytes);
    if (!s.is_ok()) {
        LOG_WRN("cache: from the shared folder: %s\n", s.message().c_str());
    }
    if (facts.bytes_disk >= least_told_by) { // One that was given up was half as fast as it should have been, at most.
        measured.shared.add(static_cast<double>(s.is_ok() ? n_bytes : std::max(n_bytes, facts.bytes_disk / 2)), watch.ms() / 1000);
    }
    ticket.read_ms    += watch.ms();
    ticket.n_unfetched = n_have;
    look(ticket);
}

void prompt_reader::arrive(cache_ticket & ticket, size_t n_in_slot) {
    look(ticket);
    fetch(ticket, n_in_slot);
    if (judge(ticket, n_in_slot) != verdict::read) {
        return; // The slot that it gets decides.
    }
    if (!reserve(ticket, false)) {
        stores.target->store().prefetch(ticket.target.match);
        return;
    }
    read(ticket);
}

//
// restore
//

// Requests that wait for a slot must not pile up state in RAM: beyond the budget they read when their turn comes, `always`.
bool prompt_reader::reserve(cache_ticket & ticket, bool always) {
    const uint64_t n_bytes = ticket.target.match.bytes_disk + ticket.draft.match.bytes_disk;
    ticket.held = {};
    const uint64_t others = in_flight->fetch_add(n_bytes);
    held_bytes     mine(in_flight, n_bytes);
    if (!always && others > 0 && others + n_bytes > stores.target->store().options().ram_bytes) {
        return false;
    }
    ticket.held = std::move(mine);
    return true;
}

// Returns when the rest will have come by the time that what is there has been copied into the context. The inference thread
// does that: it must not wait for a disk.
bool prompt_reader::read_part(sequence_store & from, stored_part & part, cache_ticket & ticket) {
    status s = from.begin_read(part.match, ticket.tokens, part.reading);
    if (s.is_ok()) {
        const double n_bytes = static_cast<double>(part.match.bytes_disk + part.match.bytes_ram);
        const double speed   = measured.copy.get() > 0 ? measured.copy.get() : unknown_copy_speed;
        s = part.reading->wait_until_left(std::min(n_bytes / speed, max_left_ms / 1000));
    }
    if (!s.is_ok()) {
        part.reading.reset();
        ticket.miss = miss_of(s);
        LOG_WRN("cache: %s\n", s.message().c_str());
        return false;
    }
    return true;
}

void prompt_reader::read(cache_ticket & ticket) {
    const stopwatch watch;
    ticket.n_reads++;
    ticket.miss = cache_miss::none;
    if (read_part(*stores.target, ticket.target, ticket) && stores.draft != nullptr && ticket.draft.match.n_tokens > 0) {
        (void) read_part(*stores.draft, ticket.draft, ticket);
        ticket.miss = cache_miss::none; // Without it the draft context starts empty, and no answer is different.
    }
    ticket.read_ms += watch.ms();
}

bool prompt_reader::prepare(const std::shared_ptr<cache_ticket> & ticket, size_t n_in_slot) {
    const bool again = std::exchange(ticket->look_again, false);
    const size_t n_read = ticket->target.n_tokens();
    if (n_read > n_in_slot && !(again && n_stored(*ticket) > n_read)) {
        return true;
    }
    look(*ticket);
    const verdict found = judge(*ticket, n_in_slot);
    if (found == verdict::recompute) {
        ticket->miss = cache_miss::recompute_faster;
    }
    if (found != verdict::read) {
        return true;
    }
    const bool is_there = ticket->target.match.arriving.empty() && ticket->draft.match.arriving.empty();
    if (is_there && ticket->target.match.bytes_disk + ticket->draft.match.bytes_disk == 0) {
        read(*ticket); // It comes from RAM: no file is touched.
        return true;
    }
    if (ticket->n_reads >= max_reads) {
        return true;
    }
    kvtier::mutex_lock guard(mu);
    if (stopping) {
        return true;
    }
    ticket->reading   = true;
    ticket->n_in_slot = n_in_slot;
    reads.push_back({ ticket, queue.awake.hold() });
    changed.notify_all();
    return false;
}

void prompt_reader::run() {
    kvtier::mutex_lock guard(mu);
    for (;;) {
        while (!stopping && reads.empty()) {
            changed.wait(guard);
        }
        if (stopping) {
            return;
        }
        const pending_read pending = std::move(reads.front());
        cache_ticket &     ticket  = *pending.ticket;
        reads.pop_front();
        guard.unlock();
        look(ticket);
        const verdict found = judge(ticket, ticket.n_in_slot);
        if (found == verdict::recompute) {
            ticket.miss = cache_miss::recompute_faster;
        } else if (found == verdict::read) {
            (void) reserve(ticket, true);
            read(ticket);
        }
        ticket.reading = false;
        n_done++;
        guard.lock();
        if (stopping) {
            return; // Whoever waits for this thread may hold the queue.
        }
        guard.unlock();
        queue.offer_deferred(); // It offers all: which of them has been read for, the queue does not tell.
        guard.lock();
    }
}

// A read that ended between note_reads and now found no request to offer again.
void prompt_reader::deferred() {
    if (n_done != n_seen) {
        n_seen = n_done;
        queue.offer_deferred();
    }
}

} // namespace llama_run

// What would become of a request, as far as the cache knows.
#include "server/cache/cache_core.h"

#include "kvtier/file_names.h"

#include <algorithm>

namespace llama_run {

static cache_source source_of(const kvtier::match & m) {
    switch (m.source) {
        case kvtier::match_source::hot:  return cache_source::hot;
        case kvtier::match_source::warm: return cache_source::warm;
        case kvtier::match_source::cold: return cache_source::cold;
        case kvtier::match_source::none: break;
    }
    return cache_source::none;
}

foreseen cache_core::foresee(const cache_ticket & ticket) const {
    foreseen out;
    out.prompt.n_tokens = ticket.tokens.size();
    if (!ticket.is_looked_up()) {
        return out;
    }
    const kvtier::match & m         = ticket.target.match;
    const size_t          n_in_slot = board.best_offer(ticket.scope, ticket.tokens);
    if (m.n_tokens > n_in_slot) {
        out.source            = source_of(m);
        out.prompt.n_reused   = m.n_tokens;
        out.prompt.bytes_ram  = m.bytes_ram + ticket.draft.match.bytes_ram;
        out.prompt.bytes_disk = m.bytes_disk + ticket.draft.match.bytes_disk;
    } else if (n_in_slot > 0) {
        out.source          = cache_source::slot;
        out.prompt.n_reused = n_in_slot;
    }
    return out;
}

std::string cache_core::speeds_file() const {
    return kvtier::names::join(stores.root_dir, ".speeds-" + kvtier::hex(stores.target->store().options().fingerprint));
}

foreseen cache_core::look_ahead(const server_task & task, const admission & from, bool all) {
    const auto   ticket = make_ticket(task, from.user, from.conversation);
    const size_t limit  = ticket->tokens.size() - (all ? 0 : std::min<size_t>(ticket->tokens.size(), 1));
    if (ticket->is_looked_up() && limit > 0) {
        ticket->target.match = stores.target->find(ticket->scope, ticket->tokens, limit);
    }
    return foresee(*ticket);
}

} // namespace llama_run

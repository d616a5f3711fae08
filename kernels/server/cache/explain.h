// What the cache did for a request and why not more: as a report, in words, in the log. Pure but for the log.
#pragma once

#include "server/cache/cache_stores.h"
#include "server/cache/cache_ticket.h"
#include "server/cache/request_log.h"
#include "server/cache/slot_offer.h"

#include <cstddef>
#include <cstdint>

namespace llama_run {

// n_in_slot, n_restored: tokens that the slot gave, or the store; one of them is 0.
cache_report report_of(const cache_ticket & ticket, const slot_offer & offer, size_t n_in_slot, size_t n_restored,
                       const cache_stores & stores);

// The same for one that goes on from what another slot has.
cache_report shared_report(const cache_ticket & ticket);

// Where the prompt left what is known, and what would help. n_static: tokens before the user's first message.
parting parting_of(const llama_context * ctx, const cache_ticket & ticket, const cache_report & report, uint32_t n_static);

void log_request(int id_slot, size_t n_tokens, size_t n_reused, const cache_report & report, const parting & parted);

// Every object that was restored, and whose it is: with this in the log, that nothing crosses users can be checked from outside.
void log_restored(int id_slot, const kvtier::match & m);

} // namespace llama_run

#include "server/cache/explain.h"

#include "kvtier/file_names.h"

#include "common.h"
#include "log.h"

#include <algorithm>
#include <string>
#include <vector>

namespace llama_run {

cache_report report_of(const cache_ticket & ticket, const slot_offer & offer, size_t n_in_slot, size_t n_restored,
                       const cache_stores & stores) {
    const kvtier::match & m = ticket.target.match;
    cache_report report;
    report.shown = true;
    if (n_restored > 0) {
        report.source = m.source == kvtier::match_source::hot  ? cache_source::hot
                      : m.source == kvtier::match_source::warm ? cache_source::warm : cache_source::cold;
        if (ticket.n_unfetched && n_restored > *ticket.n_unfetched) {
            report.source = cache_source::shared_folder; // It has been stored here on the way.
        }
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
    if (ticket.miss != cache_miss::none) {
        report.miss = ticket.miss;
    } else if (n_reused >= n_all) {
        report.miss = cache_miss::none;
    } else if (n_reused < std::min(n_common, n_all)) {
        report.miss = cache_miss::no_anchor;
    } else if (n_common == 0) {
        const uint64_t by_tokens = kvtier::conversation_hash(ticket.tokens.data(), ticket.tokens.size());
        // Whose they are elsewhere is not known, but for those of nobody: no user learns of another's.
        const bool known = ticket.scope.user.empty() &&
                           (stores.elsewhere.count(ticket.conversation.hash) != 0 || stores.elsewhere.count(by_tokens) != 0);
        report.miss = known ? cache_miss::other_fingerprint : cache_miss::nothing_stored;
    } else if (n_slot >= m.n_common) {
        report.miss = n_slot < offer.tokens.size() ? cache_miss::parted : cache_miss::new_tokens;
    } else {
        report.miss = m.reason == kvtier::miss_reason::diverged ? cache_miss::parted : cache_miss::new_tokens;
    }
    return report;
}

cache_report shared_report(const cache_ticket & ticket) {
    cache_report report;
    report.shown  = true;
    report.source = cache_source::slot;
    report.match  = cache_match::shared;
    report.at     = static_cast<uint32_t>(ticket.shared.n_tokens);
    report.miss   = ticket.shared.n_tokens + 1 < ticket.tokens.size() ? cache_miss::new_tokens : cache_miss::none;
    return report;
}

// So many bytes of text are told on each side of where prompts part.
static constexpr size_t n_told = 64;

// Gives the text of tokens [begin, end), without control characters.
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

parting parting_of(const llama_context * ctx, const cache_ticket & ticket, const cache_report & report, uint32_t n_static) {
    parting out;
    if (report.miss == cache_miss::off || report.miss == cache_miss::none || report.miss == cache_miss::new_tokens) {
        return out;
    }
    // Nearly every token has at least a byte of text.
    const size_t      at     = std::min<size_t>(report.at, ticket.tokens.size());
    const std::string before = text_of(ctx, ticket.tokens, at < n_told ? 0 : at - n_told, at);
    const std::string after  = text_of(ctx, ticket.tokens, at, std::min(ticket.tokens.size(), at + n_told));
    const std::string tail   = before.size() > n_told ? before.substr(before.size() - n_told) : before;
    out.words  = tail + " | " + after.substr(0, n_told);
    out.early  = report.miss == cache_miss::parted && report.at < n_static;
    out.advice = advice_for(tail + after.substr(0, n_told), out.early);
    return out;
}

void log_request(int id_slot, size_t n_tokens, size_t n_reused, const cache_report & report, const parting & parted) {
    if (report.miss == cache_miss::off) {
        return;
    }
    LOG_INF("cache: slot %d: %zu of %zu tokens from %s (%s), restored in %.1f ms\n", id_slot, n_reused, n_tokens,
            cache_source_name(report.source), cache_match_name(report.match), report.restore_ms);
    if (!parted.words.empty()) {
        LOG_INF("cache: slot %d: %s at token %u: %s\n", id_slot, cache_miss_name(report.miss), report.at, parted.words.c_str());
    }
    if (!parted.advice.empty()) {
        LOG_INF("cache: slot %d: %s\n", id_slot, parted.advice.c_str());
    }
}

void log_restored(int id_slot, const kvtier::match & m) {
    std::string keys;
    for (const kvtier::matched_run & run : m.runs) {
        keys += " " + kvtier::hex(run.k);
    }
    LOG_TRC("cache: slot %d: restored %zu tokens of name space %s:%s\n", id_slot, m.n_tokens, kvtier::hex(m.name_space).c_str(),
            keys.c_str());
}

} // namespace llama_run

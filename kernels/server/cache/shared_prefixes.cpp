#include "server/cache/shared_prefixes.h"

#include "server/cache/prompt_cuts.h"

#include <algorithm>
#include <utility>

namespace llama_run {

// Each cut costs a batch of its own, so one serves all who part so soon behind it.
static constexpr size_t cut_distance = 64;

// What is left of a prompt is short if it is no more than this part of what there is.
static constexpr size_t short_rest = 8;

void shared_prefixes::begin(int slot, const sequence_scope & scope, std::vector<kvtier::token> prompt, size_t n_there,
                            size_t cut) {
    entry now;
    now.scope      = scope;
    now.tokens     = std::move(prompt);
    now.cut        = cut;
    now.n_there    = n_there;
    now.n_handed   = n_there; // It came from the store, or from a slot that others share as well.
    now.evaluating = true;
    at(slot) = std::move(now);
}

bool shared_prefixes::rest(int slot, std::vector<kvtier::token> tokens) {
    entry & e = at(slot);
    const bool waited_for = !e.line.empty() || e.n_owed > 0;
    e.n_owed     = 0;
    e.n_there    = tokens.size();
    e.tokens     = std::move(tokens);
    e.evaluating = false;
    e.anchors.clear();
    e.line.clear();
    return waited_for;
}

bool shared_prefixes::forget(int slot) {
    const bool waited_for = !at(slot).line.empty() || at(slot).n_owed > 0;
    at(slot) = {};
    return waited_for;
}

size_t shared_prefixes::n_common(const entry & e, const std::vector<kvtier::token> & prompt) const {
    const size_t n_max = std::min(prompt.size() - 1, e.tokens.size()); // The prompt's last token is evaluated for its logits.
    const auto   end   = prompt.begin() + static_cast<std::ptrdiff_t>(n_max);
    return static_cast<size_t>(std::mismatch(prompt.begin(), end, e.tokens.begin()).first - prompt.begin());
}

shared_prefix shared_prefixes::held(int slot, const std::vector<kvtier::token> & prompt) const {
    const entry & e = at(slot);
    const size_t  n = std::min(n_common(e, prompt), e.n_there);
    shared_prefix found;
    found.slot = slot;
    if (!folded) {
        found.n_tokens = n;
    }
    for (const anchor_copy & anchor : e.anchors) {
        if (anchor.n_tokens <= n) {
            found.n_tokens = anchor.n_tokens;
            found.anchor   = anchor;
        }
    }
    return found;
}

shared_prefix shared_prefixes::awaited(int slot, const std::vector<kvtier::token> & prompt, size_t n_have) const {
    const entry & e = at(slot);
    if (!e.evaluating) {
        return {};
    }
    size_t n = n_common(e, prompt);
    if (folded) {
        n = std::min(n, e.tokens.size() - std::min<size_t>(tokens_after_last_cut, e.tokens.size())); // There is a cut anyway.
        size_t before = e.cut <= n ? e.cut : 0;
        for (const waiting & w : e.line) {
            before = w.n_tokens <= n ? std::max(before, w.n_tokens) : before;
        }
        n = n - before < cut_distance ? before : n;
    }
    // What is there is handed over behind the next batch, if somebody waits for it. Folded state is there only where a prompt was cut:
    // at the cut for others, and its last cut is as good as any once it is whole.
    const bool is_there = n <= e.n_there;
    const bool is_next  = is_there && n > e.n_handed && (!folded || e.whole || n == e.cut);
    // Waiting must not take longer than evaluating what is missing.
    const bool is_sooner = !is_there && e.n_there + least >= n_have;
    shared_prefix found;
    found.slot     = slot;
    found.n_tokens = (is_next || is_sooner) && n >= n_have + least ? n : 0;
    return found;
}

void shared_prefixes::wait(const std::shared_ptr<cache_ticket> & ticket, const shared_prefix & until) {
    std::vector<waiting> & line = at(until.slot).line;
    line.erase(std::remove_if(line.begin(), line.end(), [&](const waiting & w) { return w.ticket.lock() == ticket; }), line.end());
    line.push_back({ ticket, until.n_tokens });
}

bool shared_prefixes::is_cut(int slot, size_t n_tokens) const {
    if (!folded) {
        return false;
    }
    const std::vector<waiting> & line = at(slot).line;
    return std::any_of(line.begin(), line.end(), [&](const waiting & w) { return w.n_tokens == n_tokens && !w.ticket.expired(); });
}

bool shared_prefixes::is_reached(int slot) {
    entry & e = at(slot);
    const auto there = std::remove_if(e.line.begin(), e.line.end(), [&](const waiting & w) { return w.n_tokens <= e.n_there; });
    const bool any   = there != e.line.end();
    e.line.erase(there, e.line.end());
    e.n_owed = any ? e.n_there : e.n_owed;
    return any;
}

// They would be evaluated in one batch with the rest of this prompt. Whoever has evaluated their part for them should not be later for
// that, so they wait for a short rest, too.
bool shared_prefixes::lets_go(int slot) {
    entry & e = at(slot);
    const size_t n_left = e.tokens.size() - std::min(e.n_there, e.tokens.size());
    if (e.n_owed == 0 || (!e.whole && n_left <= e.n_owed / short_rest)) {
        return false;
    }
    e.n_owed = 0;
    return true;
}

} // namespace llama_run

#include "kvtier/settling.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvtier {

// A conversation whose turns follow each other without a rest is written after so many rests.
static constexpr int longest_wait = 10;

static size_t n_common(const save_request & a, const save_request & b) {
    const size_t n = std::min(a.tokens.size(), b.tokens.size());
    return static_cast<size_t>(std::mismatch(a.tokens.begin(), a.tokens.begin() + static_cast<std::ptrdiff_t>(n), b.tokens.begin()).first -
                               a.tokens.begin());
}

// Whether the request belongs to the same turn, of which the earlier one saved the prompt.
static bool completes(const save_request & request, const save_request & earlier) {
    return !earlier.checkpoint && n_common(request, earlier) == earlier.tokens.size();
}

// A prompt ends with a few tokens that announce the answer, and which the next turn may have otherwise.
static constexpr size_t n_announcing = 4;

// Whether it is a later turn: its prompt goes on where the earlier one's ends. One that asks the same again is not, nor is what has
// another name: nobody would find what is stored of the earlier one then, to remove it.
static bool supersedes(const save_request & request, const save_request & earlier) {
    return earlier.checkpoint && request.n_prompt > earlier.n_prompt && earlier.n_prompt > 0 &&
           n_common(request, earlier) + n_announcing >= earlier.n_prompt &&
           request.conversation_name() == earlier.conversation_name();
}

save_request settling::split(save_request & request) {
    save_request later;
    later.root         = request.root;
    later.conversation = request.conversation;
    later.tokens       = request.tokens;
    later.checkpoint   = request.checkpoint;
    later.folded       = request.folded;
    later.n_static     = request.n_static;
    later.n_prompt     = request.n_prompt;
    later.roles        = request.roles;
    later.backend      = request.backend;
    const auto first = std::stable_partition(request.anchors.begin(), request.anchors.end(), [&](const save_anchor & a) {
        return a.n_tokens <= request.n_static && !a.is_shared;
    });
    later.anchors.assign(std::make_move_iterator(first), std::make_move_iterator(request.anchors.end()));
    request.anchors.erase(first, request.anchors.end());
    request.checkpoint = false;
    return later;
}

// Takes out of theirs what is among mine.
static void leave_out_own(std::vector<save_anchor> & mine, std::vector<save_anchor> & theirs) {
    for (save_anchor & own : mine) {
        const auto same = std::find_if(theirs.begin(), theirs.end(), [&](const save_anchor & a) { return a.k == own.k; });
        if (same != theirs.end()) {
            own.is_shared = own.is_shared || same->is_shared;
            theirs.erase(same);
        }
    }
}

// Which a conversation keeps for others while its turns take each other's place; each is written once it rests.
static constexpr size_t most_shared = 2;

// Takes what others go on from out of what is needless, and gives it to the turn that goes on. Says whether there is any.
static bool keep_shared(const save_request & from, std::vector<save_anchor> & needless, save_request & to) {
    const size_t n_both    = n_common(from, to);
    const auto   is_shared = [](const save_anchor & a) { return a.is_shared; };
    const auto   n_own     = static_cast<size_t>(std::count_if(to.anchors.begin(), to.anchors.end(), is_shared));
    size_t       n_kept    = n_own;
    for (auto it = needless.end(); it != needless.begin() && n_kept < most_shared;) {
        --it;
        if (it->is_shared && it->n_tokens <= n_both) {
            to.anchors.insert(to.anchors.begin(), std::move(*it));
            it = needless.erase(it);
            n_kept++;
        }
    }
    return n_kept > n_own;
}

static bool is_together(const save_request & a, const save_request & b) {
    return a.conversation.hash == b.conversation.hash && root_key(a.root) == root_key(b.root);
}

// The turns that it goes on from. Where several answers to one prompt rest, that is the one which the request has more of than of
// any other: those beside it may be gone on from as well.
std::set<const settling::resting *> settling::superseded_by(const save_request & request) const {
    std::set<const resting *> out;
    const resting *           longest = nullptr;
    size_t                    n_most  = 0;
    bool                      is_tie  = false;
    for (const resting & r : all) {
        if (!is_together(request, r.turn) || !supersedes(request, r.turn)) {
            continue;
        }
        const size_t n = n_common(request, r.turn);
        if (n == r.turn.tokens.size()) {
            out.insert(&r);
        }
        is_tie  = longest != nullptr && (n == n_most || (n < n_most && is_tie));
        longest = longest == nullptr || n > n_most ? &r : longest;
        n_most  = std::max(n_most, n);
    }
    if (longest != nullptr && !is_tie) {
        out.insert(longest);
    }
    return out;
}

std::vector<save_request> settling::add(save_request request, uint64_t number, clock::time_point now) {
    resting                   added = { std::move(request), number, now, now };
    std::vector<save_request> needless;
    const auto                superseded = superseded_by(added.turn);
    for (auto it = all.begin(); it != all.end();) {
        const bool completed = is_together(added.turn, it->turn) && completes(added.turn, it->turn);
        if (!completed && superseded.count(&*it) == 0) {
            ++it;
            continue;
        }
        added.unwritten_since = std::min(added.unwritten_since, it->unwritten_since);
        std::vector<save_anchor> & theirs = it->turn.anchors;
        std::vector<save_anchor> & mine   = added.turn.anchors;
        leave_out_own(mine, theirs);
        if (completed) { // Of one turn all stay, however many wait for them: the next one keeps the newest.
            mine.insert(mine.begin(), std::make_move_iterator(theirs.begin()), std::make_move_iterator(theirs.end()));
            theirs.clear();
        } else if (keep_shared(it->turn, theirs, added.turn)) {
            added.number = std::min(added.number, it->number); // A flush waits for the first of them.
        }
        if (!theirs.empty()) {
            needless.emplace_back();
            needless.back().root    = it->turn.root;
            needless.back().anchors = std::exchange(theirs, {});
        }
        if (!completed && !added.turn.checkpoint) {
            it->since = now; // It stays: whether the turn that has begun will be named, too, nobody knows yet.
            ++it;
            continue;
        }
        lifetime_change &       said    = added.turn.conversation.change;
        const lifetime_change & earlier = it->turn.conversation.change;
        said.ttl_ms    = said.ttl_ms ? said.ttl_ms : earlier.ttl_ms;
        said.expire_ms = said.expire_ms ? said.expire_ms : earlier.expire_ms;
        added.number   = std::min(added.number, it->number); // A flush waits for the first of them.
        it             = all.erase(it);
    }
    all.push_back(std::move(added));
    for (save_request & turn : needless) {
        turn.anchors.erase(std::remove_if(turn.anchors.begin(), turn.anchors.end(), [&](const save_anchor & a) { return waits(a.k); }),
                           turn.anchors.end());
    }
    return needless;
}

bool settling::waits(const key & k) const {
    return std::any_of(all.begin(), all.end(), [&](const resting & r) {
        const std::vector<save_anchor> & own = r.turn.anchors;
        return std::any_of(own.begin(), own.end(), [&](const save_anchor & a) { return a.k == k; });
    });
}

settling::clock::time_point settling::due(const resting & r) const {
    return std::min(r.since + rest, r.unwritten_since + longest_wait * rest);
}

std::optional<save_request> settling::take_due(clock::time_point now, uint64_t until) {
    const bool too_many = is_over_limit();
    const auto it = std::find_if(all.begin(), all.end(), [&](const resting & r) { return too_many || is_due(r, now, until); });
    if (it == all.end()) {
        return std::nullopt;
    }
    save_request out = std::move(it->turn);
    all.erase(it);
    return out;
}

bool settling::is_due(const resting & r, clock::time_point now, uint64_t until) const {
    return r.number <= until || due(r) <= now;
}

bool settling::is_due(clock::time_point now, uint64_t until) const {
    return is_over_limit() || std::any_of(all.begin(), all.end(), [&](const resting & r) { return is_due(r, now, until); });
}

std::optional<settling::clock::time_point> settling::next_due() const {
    std::optional<clock::time_point> next;
    for (const resting & r : all) {
        next = next ? std::min(*next, due(r)) : due(r);
    }
    return next;
}

bool settling::has_any_until(uint64_t number) const {
    return std::any_of(all.begin(), all.end(), [&](const resting & r) { return r.number <= number; });
}

uint64_t settling::bytes() const {
    uint64_t n = 0;
    for (const resting & r : all) {
        n += r.turn.bytes();
    }
    return n;
}

size_t settling::size() const {
    size_t n = 0;
    for (const resting & r : all) {
        n += r.turn.anchors.size();
    }
    return n;
}

} // namespace kvtier

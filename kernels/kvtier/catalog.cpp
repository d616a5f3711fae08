#include "kvtier/catalog.h"

#include <algorithm>
#include <unordered_map>

namespace kvtier {

catalog::catalog(const store_options & options, const file_layout & layout, ram_tier & ram, counters & count)
    : options(options), ram(ram), count(count), graph(layout, ram) {}

void catalog::begin(object_graph && found) {
    exclusive_lock guard(mu);
    graph = std::move(found);
}

uint64_t catalog::turn_of(const key & name_space) const {
    shared_lock guard(mu);
    return graph.turn_of(name_space);
}

match catalog::lookup(const lookup_request & request) const {
    match out;
    out.folded       = request.folded;
    out.name_space   = user_key(request.root.user);
    out.conversation = request.conversation != 0 ? request.conversation : conversation_hash(request.tokens, request.n_tokens);
    const key    root  = root_key(request.root);
    const size_t limit = std::min(request.limit, request.n_tokens);
    const uint64_t number = request.counted ? ++n_lookups : 0;
    count.lookups += request.counted;

    shared_lock       guard(mu);
    const walk_result path = graph.index.walk(out.name_space, root, request.tokens, request.n_tokens, limit);
    out.n_common = path.n_common;
    const run * last = request.folded ? path.anchored : path.last;
    out.n_tokens = last == nullptr ? 0 : request.folded ? last->p1 : std::min<size_t>(path.n_common, limit);

    if (out.n_tokens == limit && limit > 0) {
        out.reason = miss_reason::none;
    } else if (request.folded && out.n_tokens < std::min<size_t>(path.n_common, limit)) {
        out.reason = miss_reason::no_anchor;
    } else if (path.last == nullptr) {
        out.reason = graph.index.size() == 0 ? miss_reason::empty : miss_reason::diverged;
    } else {
        const bool departs = path.last->p1 > path.n_common || !path.last->children.empty();
        out.reason = departs ? miss_reason::diverged : miss_reason::not_stored;
    }
    if (out.n_tokens == 0) {
        return out;
    }
    count.hits         += request.counted;
    count.tokens_found += request.counted ? out.n_tokens : 0;

    gather(out, last);
    const conversation * known = graph.find({ out.name_space, out.conversation });
    out.kind = match_kind::prefix;
    segment * previous = nullptr;
    for (const matched_run & r : out.runs) {
        if (r.node->owner != previous) {
            previous = r.node->owner;
            if (request.counted) {
                previous->looked_up = number;
            }
            if (known != nullptr && previous->users.count(known) != 0) {
                out.kind = match_kind::conversation;
            }
        }
    }
    return out;
}

match catalog::chain(const key & name_space, const key & end) const {
    match out;
    out.name_space = name_space;
    shared_lock guard(mu);
    if (const run * last = graph.index.find(end)) {
        out.n_tokens = last->p1;
        gather(out, last);
    }
    return out;
}

// Fills in what the state of n_tokens consists of, the last of which is in `last`, and where it is.
void catalog::gather(match & out, const run * last) const {
    const uint64_t turn    = graph.turn_of(out.name_space);
    tier           coldest = tier::hot;
    const auto     weigh   = [&](object_kind kind, const key & k, uint64_t size) {
        tier where = tier::cold;
        if (size > 0 && ram.peek(kind, k, turn, where)) {
            out.bytes_ram += size;
        } else if (size > 0) {
            out.bytes_disk += size;
            coldest = tier::cold;
        } else {
            return;
        }
        coldest = std::max(coldest, where);
    };
    const segment * previous = nullptr;
    for (const run * r = last; r != nullptr; r = r->parent) {
        if (r->p0 >= out.n_tokens) {
            continue; // beyond the limit
        }
        out.runs.push_back({ r->k, r->p0, r->p1, r->size, r, nullptr });
        weigh(object_kind::page, r->k, r->size);
        if (r->owner != previous) {
            previous = r->owner;
            out.held.add(graph.segments.at(previous->id));
        }
    }
    std::reverse(out.runs.begin(), out.runs.end());
    if (out.folded) {
        out.at = last->anchored;
        out.held.add(out.at);
        if (out.at->is_written()) {
            weigh(object_kind::anchor, out.at->k, out.at->payload_size);
        } else {
            out.bytes_ram += out.at->payload_size;
        }
    }
    out.source = coldest == tier::hot  ? match_source::hot
               : coldest == tier::warm ? match_source::warm : match_source::cold;
}

std::vector<conversation_id> catalog::by_last_use() const {
    std::vector<std::pair<int64_t, conversation_id>> found;
    {
        shared_lock guard(mu);
        for (const auto & [id, c] : graph.conversations) {
            found.emplace_back(c->last_used_ms, id);
        }
    }
    std::sort(found.begin(), found.end(), [](const auto & a, const auto & b) { return a.first > b.first; });
    std::vector<conversation_id> out;
    for (const auto & [when, id] : found) {
        out.push_back(id);
    }
    return out;
}

match catalog::next_restore(const conversation_id & id, size_t below) const {
    match out;
    out.name_space   = id.first;
    out.conversation = id.second;
    shared_lock          guard(mu);
    const conversation * known = graph.find(id);
    if (known == nullptr || known->checkpoints.empty()) {
        return out;
    }
    const checkpoint & newest    = *known->checkpoints.rbegin()->second;
    const run *        last      = nullptr;
    size_t             n_anchors = 0;
    for (const run * r = newest.end; r != nullptr && last == nullptr; r = r->parent) {
        const bool wanted = r->anchored != nullptr && (n_anchors++ < anchors_of_turn || r->p1 == newest.n_static);
        last = wanted && r->p1 < below ? r : nullptr;
    }
    out.folded = n_anchors > 0;
    if (!out.folded && newest.end->p1 < below) {
        last = newest.end;
    }
    if (last != nullptr) {
        out.n_tokens = last->p1;
        gather(out, last);
    }
    return out;
}

void catalog::touch(const match & m, int64_t now_ms) {
    exclusive_lock    guard(mu);
    const clock_watch by   = clock;
    const uint64_t    turn = graph.turn_of(m.name_space);
    const auto        use  = [&](auto & object) {
        object.last_turn    = turn;
        object.last_used_ms = by.use_at(now_ms, object.last_used_ms);
        object.hits++;
    };
    conversation * known = graph.find({ m.name_space, m.conversation });
    checkpoint *   best  = nullptr;
    segment *      previous = nullptr;
    for (const matched_run & r : m.runs) {
        if (r.node == nullptr) {
            break; // From here on it is not in the catalog yet.
        }
        segment * owner = r.node->owner;
        // Whoever was here before and got no further was used as a whole, such as a prefix that was stored to be shared.
        for (checkpoint * c : owner->ends) {
            if (c->end == r.node && r.p1 <= m.n_tokens) {
                c->owner->last_used_ms = by.use_at(now_ms, c->owner->last_used_ms);
                c->owner->index_stale  = true;
            }
        }
        if (owner == previous) {
            continue;
        }
        previous = owner;
        use(*owner);
        for (checkpoint * c : owner->ends) {
            const bool ours = known != nullptr && c->owner == known && c->n_tokens <= m.n_tokens;
            if (ours && (best == nullptr || c->n_tokens > best->n_tokens)) {
                best = c;
            }
        }
    }
    if (m.at != nullptr) {
        use(*m.at);
    }
    if (known != nullptr && m.kind == match_kind::conversation) {
        use(*known);
        known->index_stale = true;
    }
    if (best != nullptr) {
        use(*best);
    }
}

static save_request plan_over(const prefix_index & index, const plan_request & request, const std::vector<save_run> & queued) {
    const uint32_t page = request.root.page_size;
    const uint32_t n    = static_cast<uint32_t>(request.n_tokens);
    save_request   out;
    out.root     = request.root;
    out.n_static = std::min(request.n_static, n);
    out.tokens.assign(request.tokens, request.tokens + n);
    const key              root  = root_key(request.root);
    const std::vector<key> pages = page_keys(request.root, request.tokens, n);
    const auto key_at = [&](uint32_t p) {
        const key base = p < page ? root : pages[p / page - 1];
        return p % page == 0 ? base : next_key(base, request.tokens + p - p % page, p % page);
    };

    std::unordered_map<key, uint32_t, key_hash> on_the_way;
    for (const save_run & r : queued) {
        on_the_way[r.k] = r.p1;
    }
    const walk_result path = index.walk(user_key(request.root.user), root, request.tokens, n, n);
    const auto stored = [&](const key & k) { return index.find(k) != nullptr || on_the_way.count(k) != 0; };

    // Where rows could be cut: at anchors, because state at that length needs rows up to there; at the end of the
    // static prefix, because the next conversation shares up to there; where something stored ends, to go on from it.
    std::vector<std::pair<uint32_t, bool>> cuts; // position, whether it must be there
    for (uint32_t a : request.anchors) {
        if (a > 0 && a <= n) {
            cuts.emplace_back(a, true);
            out.anchors.push_back({ a, key_at(a), nullptr });
        }
    }
    if (out.n_static > 0) {
        cuts.emplace_back(out.n_static, false);
    }
    for (const run * r : path.whole) {
        cuts.emplace_back(r->p1, false);
    }
    for (const auto & [k, p1] : on_the_way) {
        if (p1 <= n && key_at(p1) == k) {
            cuts.emplace_back(p1, false);
        }
    }
    std::sort(cuts.begin(), cuts.end());

    size_t i_cut = 0;
    for (uint32_t start = 0; start < n; start += page) {
        const uint32_t end      = std::min(n, start + page);
        const key      end_key  = key_at(end);
        const bool     have_end = stored(end_key);
        uint32_t       from     = start;
        key            from_key = key_at(start);
        const auto     advance  = [&](uint32_t to, const key & to_key) {
            if (!stored(to_key)) {
                save_run r;
                r.p0     = from;
                r.p1     = to;
                r.k      = to_key;
                r.parent = from_key;
                out.runs.push_back(std::move(r));
            }
            from     = to;
            from_key = to_key;
        };
        for (; i_cut < cuts.size() && cuts[i_cut].first <= end; i_cut++) {
            const uint32_t at   = cuts[i_cut].first;
            bool           must = cuts[i_cut].second;
            for (; i_cut + 1 < cuts.size() && cuts[i_cut + 1].first == at; i_cut++) {
                must = must || cuts[i_cut + 1].second;
            }
            if (at <= from || at == end) {
                continue;
            }
            const key at_key = key_at(at);
            // Within a page that is stored whole, only an anchor is worth another cut.
            if (!have_end || must || stored(at_key)) {
                advance(at, at_key);
            }
        }
        if (!have_end) {
            advance(end, end_key);
        }
    }
    return out;
}

save_request catalog::plan(const plan_request & request, const std::vector<save_run> & queued) const {
    shared_lock guard(mu);
    return plan_over(graph.index, request, queued);
}

} // namespace kvtier

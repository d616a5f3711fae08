// What the catalog forgets: what a user removes, what exceeds a limit, what makes room, and what is damaged.
#include "kvtier/catalog.h"
#include "kvtier/protection.h"

#include <algorithm>
#include <set>

namespace kvtier {

bool catalog::forget_conversation(const conversation_id & id, doomed_files & out, std::vector<uint64_t> & left) {
    exclusive_lock guard(mu);
    bool           found = false;
    left  = graph.forget_awaited(id, out, found);
    found = graph.forget_unread(id, out) || found;
    if (conversation * c = graph.find(id)) {
        const std::vector<uint64_t> shared = graph.forget_conversation(*c, out);
        left.insert(left.end(), shared.begin(), shared.end());
        found = true;
    }
    return found;
}

cut_result catalog::cut_unneeded(uint64_t id, doomed_files & out) {
    exclusive_lock guard(mu);
    cut_result     cut;
    const auto     it = graph.segments.find(id);
    if (it == graph.segments.end()) {
        return cut;
    }
    segment & s = *it->second;
    cut.n_kept  = graph.n_needed(s);
    const bool has_more = std::any_of(s.runs.begin() + static_cast<std::ptrdiff_t>(cut.n_kept), s.runs.end(),
                                      [](const run & r) { return r.k != key{}; });
    cut.is_being_read = has_more && s.pins != 0;
    if (!has_more) {
        return cut;
    }
    if (cut.n_kept == 0 && !cut.is_being_read) { // Whoever needed its beginning has gone while the cut waited.
        graph.forget_segment(s, out);
    } else {
        graph.forget_runs(s, cut.n_kept, out); // Nobody finds them any more, whether the file can be cut now or later.
        cut.of = cut.is_being_read ? nullptr : it->second;
    }
    return cut;
}

void catalog::is_cut(uint64_t id, size_t n_kept) {
    exclusive_lock guard(mu);
    const auto     it = graph.segments.find(id);
    if (it == graph.segments.end()) {
        return;
    }
    segment & s = *it->second;
    for (size_t i = n_kept; i < s.runs.size(); i++) {
        run & r = s.runs[i];
        std::fill_n(s.tokens.begin() + (r.tokens - s.tokens.data()), r.p1 - r.p0, token(0));
        s.file_size -= r.size;
        r.k = r.parent_key = key{};
        r.size = 0;
    }
}

void catalog::forget_name_space(const key & name_space, doomed_files & out) {
    {
        exclusive_lock guard(mu);
        std::vector<std::shared_ptr<segment>> mine;
        for (const auto & [id, s] : graph.segments) {
            if (s->name_space == name_space) {
                mine.push_back(s);
            }
        }
        for (const auto & s : mine) {
            graph.forget_segment(*s, out);
        }
        std::vector<std::shared_ptr<anchor>> left;
        for (const auto & [id, a] : graph.anchors) {
            if (a->name_space == name_space) {
                left.push_back(a);
            }
        }
        for (const auto & a : left) {
            graph.forget_anchor(a, out);
        }
        std::vector<conversation_id> unread;
        for (const auto & [id, c] : graph.unread) {
            if (id.first == name_space) {
                unread.push_back(id);
            }
        }
        for (const conversation_id & id : unread) {
            graph.forget_unread(id, out);
        }
        graph.turns.erase(name_space);
    }
    ram.erase_name_space(name_space);
}

void catalog::forget_unusable(const key * all_of, doomed_files & out, std::vector<uint64_t> & left) {
    exclusive_lock guard(mu);
    std::set<key>  unread; // name spaces
    for (const auto & [id, c] : graph.unread) {
        unread.insert(id.first);
    }
    const auto is_meant = [&](const key & name_space) {
        return all_of != nullptr ? name_space == *all_of : unread.count(name_space) == 0;
    };
    std::vector<std::shared_ptr<segment>> loose;
    for (const auto & [id, s] : graph.segments) {
        if (s->n_attached != 0 || !is_meant(s->name_space)) {
            continue;
        }
        if (s->pins == 0) {
            loose.push_back(s);
        } else {
            left.push_back(id);
        }
    }
    for (const auto & s : loose) {
        graph.forget_segment(*s, out);
    }
    std::vector<std::shared_ptr<anchor>> stray;
    for (const auto & [id, a] : graph.anchors) {
        if (a->at == nullptr && a->pins == 0 && is_meant(a->name_space)) {
            stray.push_back(a);
        }
    }
    for (const auto & a : stray) {
        graph.forget_anchor(a, out);
    }
}

namespace {

// Applies the limits of one name space.
class limiter {
public:
    limiter(object_graph & graph, const key & name_space, const store_options & options, int64_t now_ms, counters & count,
            doomed_files & out, std::vector<uint64_t> & left)
        : graph(graph), name_space(name_space), turn(graph.turn_of(name_space)), options(options), now_ms(now_ms), count(count),
          out(out), left(left) {}

    // The longest unused conversations go, those to be kept last; what is left is returned.
    std::vector<conversation *> limit_conversations() {
        std::vector<conversation *> mine;
        for (auto it = graph.conversations.lower_bound({ name_space, 0 });
             it != graph.conversations.end() && it->first.first == name_space; ++it) {
            mine.push_back(it->second.get());
        }
        if (mine.size() <= options.max_conversations) {
            return mine;
        }
        std::sort(mine.begin(), mine.end(), [this](const conversation * a, const conversation * b) {
            const standing of_a = standing_of(a->life, now_ms - a->last_used_ms);
            const standing of_b = standing_of(b->life, now_ms - b->last_used_ms);
            return of_a != of_b ? of_a < of_b
                 : a->last_turn != b->last_turn ? a->last_turn < b->last_turn : a->last_used_ms < b->last_used_ms;
        });
        size_t n_surplus = mine.size() - options.max_conversations;
        std::vector<conversation *> kept;
        for (conversation * c : mine) {
            if (n_surplus == 0 || is_being_read(*c)) { // a restore is not disturbed: the next one in line goes
                kept.push_back(c);
                continue;
            }
            n_surplus--;
            count.retired_conversations++;
            const std::vector<uint64_t> shared = graph.forget_conversation(*c, out);
            left.insert(left.end(), shared.begin(), shared.end());
        }
        return kept;
    }

    // The oldest checkpoints go, the newest stays.
    void limit_checkpoints(conversation & c) {
        const auto is_cold = [&](const checkpoint & point) {
            return turn - std::min(turn, point.last_turn) >= options.windows.warm;
        };
        if (c.checkpoints.size() <= 1) {
            return;
        }
        size_t n_cold = 0;
        for (const auto & [number, point] : c.checkpoints) {
            n_cold += is_cold(*point);
        }
        const auto newest = std::prev(c.checkpoints.end());
        for (auto it = c.checkpoints.begin(); it != newest;) {
            checkpoint & point   = *it->second;
            const bool   cold    = is_cold(point);
            const bool   surplus = c.checkpoints.size() > options.max_checkpoints || (cold && n_cold > options.max_cold);
            ++it;
            if (surplus && graph.retire(point, out, left)) {
                n_cold -= cold;
                count.retired_checkpoints++;
            }
        }
    }

    // Anchors are thinned out along the newest checkpoint, where only this conversation uses them.
    void limit_anchors(const conversation & c) {
        std::vector<std::shared_ptr<anchor>> along;
        for (const run * r = c.checkpoints.rbegin()->second->end; r != nullptr; r = r->parent) {
            if (r->anchored != nullptr && r->anchored->is_written() && r->owner->users.size() <= 1) {
                along.push_back(r->anchored);
            }
        }
        std::reverse(along.begin(), along.end());
        std::vector<anchor_facts> facts;
        for (const auto & a : along) {
            facts.push_back({ a->n_tokens, (a->flags & format::flag_static_prefix) != 0 });
        }
        for (size_t i : thin_anchors(facts, options.max_anchors)) {
            if (along[i]->pins == 0) {
                count.thinned_anchors++;
                graph.forget_checkpoints_at(along[i]->at, out);
                graph.forget_anchor(along[i], out);
            }
        }
    }

private:
    object_graph &        graph;
    const key             name_space;
    const uint64_t        turn;
    const store_options & options;
    const int64_t         now_ms;
    counters &              count;
    doomed_files &          out;
    std::vector<uint64_t> & left;
};

} // namespace

void catalog::forget_surplus(const key & name_space, const conversation_id * changed, int64_t now_ms, doomed_files & out,
                             std::vector<uint64_t> & left) {
    exclusive_lock       guard(mu);
    const conversation * grown = changed == nullptr ? nullptr : graph.find(*changed);
    limiter              limits(graph, name_space, options, now_ms, count, out, left);
    for (conversation * c : limits.limit_conversations()) { // there may be thousands, at every save
        limits.limit_checkpoints(*c);
        if (changed == nullptr || c == grown) {
            limits.limit_anchors(*c);
        }
    }
}

static bool has_expired(const conversation & c, const store_options & options, int64_t now_ms) {
    return is_expired(c.life, options.expire_ms, now_ms - c.last_used_ms) && !is_being_read(c);
}

std::vector<conversation_id> catalog::expired(int64_t now_ms) {
    std::vector<conversation_id> out;
    if (!is_clock_set(now_ms)) {
        return out;
    }
    exclusive_lock guard(mu);
    clock.look(now_ms);
    if (clock.is_believed()) { // Else, once it is right again, all would be as old as it was wrong.
        for (const auto & [id, s] : graph.segments) {
            s->last_used_ms = std::min(s->last_used_ms, now_ms);
        }
        for (const auto & [id, c] : graph.conversations) {
            c->index_stale  = c->index_stale || c->last_used_ms > now_ms;
            c->last_used_ms = std::min(c->last_used_ms, now_ms);
        }
    }
    for (const auto & [id, c] : graph.conversations) {
        if (has_expired(*c, options, now_ms)) {
            out.push_back(id);
        }
    }
    return out;
}

void catalog::forget_expired(const std::vector<conversation_id> & ids, int64_t now_ms, doomed_files & out,
                             std::vector<uint64_t> & left) {
    exclusive_lock guard(mu);
    for (const conversation_id & id : ids) {
        conversation * c = graph.find(id);
        if (c != nullptr && has_expired(*c, options, now_ms)) {
            const std::vector<uint64_t> shared = graph.forget_conversation(*c, out);
            left.insert(left.end(), shared.begin(), shared.end());
            count.expired_conversations++;
        }
    }
    if (options.expire_ms == 0 || !is_clock_set(now_ms)) {
        return;
    }
    std::vector<uint64_t> unlisted; // its checkpoints were retired, or never written
    for (const auto & [id, s] : graph.segments) {
        if (s->pins == 0 && now_ms - s->last_used_ms >= options.expire_ms) {
            unlisted.push_back(id);
        }
    }
    graph.forget_unneeded(std::move(unlisted), out);
}

// serving: the number of the search whose prompt is in hand.
static eviction least_worth(const object_graph & all, const protection & kept, int64_t now_ms, uint64_t serving) {
    eviction   next;
    const auto has_lapsed = [&](const segment * s) {
        return !s->users.empty() && std::all_of(s->users.begin(), s->users.end(), [&](const auto & user) {
            return standing_of(user.first->life, now_ms - user.first->last_used_ms) == standing::lapsed;
        });
    };
    const auto facts_of = [&](const auto & object, const segment * of) {
        const uint64_t turn = all.turn_of(object.name_space);
        object_facts   facts;
        facts.bytes           = object.file_size;
        facts.age_ms          = now_ms - object.last_used_ms;
        facts.idle_turns      = turn - std::min(turn, object.last_turn);
        facts.hits            = object.hits;
        facts.static_prefix   = (object.flags & format::flag_static_prefix) != 0;
        facts.n_conversations = static_cast<uint32_t>(of->users.size());
        facts.being_served    = serving != 0 && of->looked_up == serving;
        facts.lapsed          = has_lapsed(of);
        return facts;
    };
    for (const auto & [id, s] : all.segments) {
        if (s->pins != 0 || s->n_outer_children != 0 || kept.covers(s.get())) {
            continue;
        }
        if (const double worth = s->n_attached == 0 ? -1 : keep_score(facts_of(*s, s.get())); worth < next.worth) {
            next = { s, nullptr, worth };
        }
    }
    for (const auto & [id, a] : all.anchors) {
        const bool is_kept = a->at != nullptr && (a->at->owner->pins != 0 || kept.covers(a->at->owner));
        if (!a->is_written() || a->pins != 0 || is_kept) {
            continue;
        }
        if (const double worth = a->at == nullptr ? -1 : keep_score(facts_of(*a, a->at->owner)); worth < next.worth) {
            next = { nullptr, a, worth };
        }
    }
    return next;
}

eviction catalog::next_eviction(int64_t now_ms) const {
    shared_lock guard(mu);
    return least_worth(graph, protection(graph, options.protected_bytes, now_ms), now_ms, n_lookups.load());
}

static bool is_stored(const object_graph & all, const std::shared_ptr<segment> & s) {
    return s != nullptr && all.segments.count(s->id) != 0;
}

static bool is_stored(const object_graph & all, const std::shared_ptr<anchor> & a) {
    return a != nullptr && all.anchors.count({ a->name_space, a->k }) != 0;
}

doomed_files catalog::evict(const eviction & next, std::vector<uint64_t> & left) {
    doomed_files   out;
    exclusive_lock guard(mu);
    const auto & [of_segment, of_anchor, worth] = next;
    const size_t n_segments = graph.segments.size();
    const size_t n_anchors  = graph.anchors.size();
    if (is_stored(graph, of_segment) && of_segment->pins == 0) {
        graph.forget_ending(*of_segment, nullptr, out, left);
        if (is_stored(graph, of_segment)) {
            graph.forget_segment(*of_segment, out);
        }
    } else if (is_stored(graph, of_anchor) && of_anchor->pins == 0) {
        if (of_anchor->at != nullptr) {
            graph.forget_ending(*of_anchor->at->owner, of_anchor->at, out, left);
        }
        if (is_stored(graph, of_anchor)) {
            graph.forget_checkpoints_at(of_anchor->at, out);
            graph.forget_anchor(of_anchor, out);
        }
    }
    count.evicted_segments += n_segments - graph.segments.size();
    count.evicted_anchors += n_anchors - graph.anchors.size();
    return out;
}

// Whether an object must go: its file is damaged, or missing though the catalog names it, or the disk has refused to read it
// more than once. Lack of memory or handles says nothing about the file.
static bool is_lost(const status & why, std::atomic<uint32_t> & n_refused) {
    constexpr uint32_t max_refused = 2;
    return why.is_damaged() || why.is_miss() || (why.is_io_error() && ++n_refused >= max_refused);
}

bool catalog::forget_lost(const segment * lost, const status & why, const give_up_files & give_up) {
    exclusive_lock guard(mu);
    const auto     it = graph.segments.find(lost->id);
    if (it == graph.segments.end() || it->second.get() != lost || !is_lost(why, it->second->n_refused)) {
        return false;
    }
    doomed_files files;
    graph.shorten_those_through(*it->second);
    graph.forget_segment(*it->second, files);
    files.back().what = doomed_file::fate::set_aside;
    give_up(files);
    return true;
}

bool catalog::forget_lost(const std::shared_ptr<anchor> & lost, const status & why, const give_up_files & give_up) {
    exclusive_lock guard(mu);
    const auto     it = graph.anchors.find({ lost->name_space, lost->k });
    if (it == graph.anchors.end() || it->second != lost || !is_lost(why, lost->n_refused)) {
        return false;
    }
    doomed_files files;
    graph.forget_anchor(lost, files); // Its conversation goes on from one before.
    files.back().what = doomed_file::fate::set_aside;
    give_up(files);
    return true;
}

} // namespace kvtier

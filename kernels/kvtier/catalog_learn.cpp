// The catalog while a request is saved: what of it is missing, and what has been written of it.
#include "kvtier/catalog.h"

#include <algorithm>
#include <unordered_map>

namespace kvtier {

lease catalog::hold(const save_request & request) const {
    lease       held;
    shared_lock guard(mu);
    const walk_result path = graph.index.walk(user_key(request.root.user), root_key(request.root), request.tokens.data(),
                                              request.tokens.size(), request.tokens.size());
    std::vector<const segment *> seen;
    for (const run * r : path.whole) {
        if (std::find(seen.begin(), seen.end(), r->owner) == seen.end()) {
            seen.push_back(r->owner);
            held.add(graph.segments.at(r->owner->id));
        }
    }
    return held;
}

status catalog::missing_runs(const save_request & request, std::vector<const save_run *> & out) const {
    const key   root = root_key(request.root);
    shared_lock guard(mu);
    std::unordered_map<key, uint32_t, key_hash> fresh; // keys of this request, with the length they end at
    for (const save_run & r : request.runs) {
        if (graph.index.find(r.k) != nullptr || fresh.count(r.k) != 0) {
            count.runs_shared++;
            continue;
        }
        const run * parent = r.p0 == 0 ? nullptr : graph.index.find(r.parent);
        const bool  sound  = r.p0 == 0 ? r.parent == root
                           : parent != nullptr ? parent->p1 == r.p0
                           : fresh.count(r.parent) != 0 && fresh[r.parent] == r.p0;
        if (!sound || r.data == nullptr || r.p0 >= r.p1 || r.p1 > request.tokens.size() ||
            r.p0 / request.root.page_size != (r.p1 - 1) / request.root.page_size) {
            count.skipped_parent++;
            return status::miss("tokens before " + std::to_string(r.p0) + " are not stored any more");
        }
        fresh[r.k] = r.p1;
        out.push_back(&r);
    }
    return status::ok();
}

uint64_t catalog::new_segment() {
    exclusive_lock guard(mu);
    return graph.next_segment++;
}

void catalog::learn(const std::vector<std::shared_ptr<segment>> & written, const std::vector<const save_run *> & runs,
                    lease & held) {
    if (written.empty()) {
        return;
    }
    exclusive_lock guard(mu);
    const key      name_space = written.front()->name_space;
    const uint64_t turn       = graph.turn_of(name_space);
    graph.add(written);
    for (const auto & s : written) {
        s->last_turn = turn;
        held.add(s);
    }
    for (const save_run * r : runs) {
        if (graph.index.find(r->k) != nullptr) {
            ram.put(object_kind::page, name_space, r->k, r->data, turn);
        }
    }
}

status catalog::misses_anchor(const save_request & request, const save_anchor & a, bool & out) {
    exclusive_lock guard(mu);
    const run *    at = graph.index.find(a.k);
    if (at == nullptr || at->p1 != a.n_tokens || a.data == nullptr || a.n_tokens > request.tokens.size()) {
        count.skipped_parent++;
        return status::miss("tokens before the anchor at " + std::to_string(a.n_tokens) + " are not stored");
    }
    // One whose run was damaged and has been stored again is as good as before.
    const auto known = graph.anchors.find({ user_key(request.root.user), a.k });
    out = (at->anchored == nullptr || !at->anchored->is_written()) &&
          (known == graph.anchors.end() || !known->second->is_written() || !graph.link(known->second));
    return status::ok();
}

std::shared_ptr<anchor> make_unwritten(const save_request & request, const save_anchor & from, int64_t now_ms) {
    auto a = std::make_shared<anchor>();
    a->k               = from.k;
    a->name_space      = user_key(request.root.user);
    a->root            = root_key(request.root);
    a->n_tokens        = from.n_tokens;
    a->payload_size    = from.data->size();
    a->tokens_checksum = tokens_checksum(request.tokens.data(), from.n_tokens);
    a->last_used_ms    = now_ms;
    a->unwritten       = from.data;
    return a;
}

void catalog::learn_unwritten(const save_request & request, int64_t now_ms) {
    exclusive_lock guard(mu);
    for (const save_anchor & from : request.anchors) {
        const run * at = graph.index.find(from.k);
        if (at != nullptr && at->p1 == from.n_tokens && at->anchored == nullptr && from.data != nullptr &&
            graph.anchors.count({ user_key(request.root.user), from.k }) == 0) {
            graph.add(make_unwritten(request, from, now_ms));
        }
    }
}

void catalog::forget_unwritten(const save_request & request) {
    exclusive_lock guard(mu);
    doomed_files   none;
    for (const save_anchor & from : request.anchors) {
        const auto known = graph.anchors.find({ user_key(request.root.user), from.k });
        if (known != graph.anchors.end() && !known->second->is_written()) {
            graph.forget_anchor(known->second, none);
        }
    }
}

void catalog::learn(const std::vector<std::shared_ptr<anchor>> & written, const save_request & request) {
    if (written.empty()) {
        return;
    }
    exclusive_lock guard(mu);
    const key      name_space = written.front()->name_space;
    const uint64_t turn       = graph.turn_of(name_space);
    for (const auto & a : written) {
        a->last_turn = turn;
        graph.add(a);
    }
    for (const save_anchor & from : request.anchors) {
        if (graph.anchors.count({ name_space, from.k }) != 0) {
            ram.put(object_kind::anchor, name_space, from.k, from.data, turn);
        }
    }
}

status catalog::begin_checkpoint(const key & end, checkpoint_record & out, bool & is_new) {
    exclusive_lock guard(mu);
    const run *    last = graph.index.find(end);
    if (last == nullptr || last->p1 != out.n_tokens) {
        count.skipped_parent++;
        return status::miss("the end of the conversation is not stored");
    }
    for (const run * r = last; r != nullptr; r = r->parent) {
        out.runs.push_back({ r->k, r->p1 });
        if (r->anchored != nullptr && r->anchored->is_written()) {
            out.anchors.push_back({ r->k, r->p1 });
        }
    }
    std::reverse(out.runs.begin(), out.runs.end());
    std::reverse(out.anchors.begin(), out.anchors.end());
    const conversation * known = graph.find({ out.header.name_space, out.conversation });
    is_new     = known == nullptr;
    out.number = is_new ? 1 : known->next_number;
    out.turn   = ++graph.turns[out.header.name_space];
    if (!is_new && !known->title.empty()) {
        out.title = known->title;
    }
    return status::ok();
}

status catalog::learn(const checkpoint_record & record, uint64_t file_size) {
    exclusive_lock guard(mu);
    run *          end = graph.index.find(record.runs.back().k);
    if (end == nullptr) {
        count.skipped_parent++;
        return status::miss("the end of the conversation is not stored any more");
    }
    count.checkpoints_written++;
    const clock_watch by  = clock;
    const auto        use = [&](auto & object) {
        object.last_turn    = record.turn;
        object.last_used_ms = by.use_at(record.header.created_ms, object.last_used_ms);
    };
    conversation & c = graph.add(conversation_id{ record.header.name_space, record.conversation });
    use(c);
    c.next_number = record.number + 1;
    c.title       = record.title;
    c.index_stale = true;
    graph.add(make_checkpoint(record, file_size), c, *end);
    // What it needs was used in this turn, whether it was written in it or not.
    for (const run * r = end; r != nullptr; r = r->parent) {
        use(*r->owner);
        ram.get(object_kind::page, r->k, record.turn);
        if (r->anchored != nullptr) {
            use(*r->anchored);
            ram.get(object_kind::anchor, r->k, record.turn);
        }
    }
    return status::ok();
}

bool catalog::uses_of(const conversation_id & id, index_record & out) const {
    shared_lock          guard(mu);
    const conversation * c = graph.find(id);
    if (c == nullptr) {
        return false;
    }
    out.conversation = c->hash;
    out.last_turn    = c->last_turn;
    out.last_used_ms = c->last_used_ms;
    out.hits         = c->hits;
    out.life         = c->life;
    for (const auto & [number, point] : c->checkpoints) {
        out.entries.push_back({ number, point->last_turn, point->last_used_ms, point->hits });
    }
    return true;
}

bool catalog::change_lifetime(const conversation_id & id, const lifetime_change & change) {
    exclusive_lock guard(mu);
    conversation * c = graph.find(id);
    if (c == nullptr || change.applied_to(c->life) == c->life) {
        return false;
    }
    c->life        = change.applied_to(c->life);
    c->index_stale = true;
    return true;
}

bool catalog::uses_are_written(const conversation_id & id, bool written, uint64_t file_size) {
    exclusive_lock guard(mu);
    conversation * c = graph.find(id);
    if (c == nullptr) {
        return false;
    }
    c->index_stale = !written;
    if (written) {
        c->index_size = file_size;
    }
    return true;
}

} // namespace kvtier

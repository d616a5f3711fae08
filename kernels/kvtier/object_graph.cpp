#include "kvtier/object_graph.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

namespace kvtier {

std::shared_ptr<anchor> make_anchor(const anchor_head & head) {
    auto a = std::make_shared<anchor>();
    a->k               = head.k;
    a->name_space      = head.header.name_space;
    a->root            = head.header.root;
    a->n_tokens        = head.n_tokens;
    a->flags           = head.header.flags;
    a->file_size       = head.payload_offset + head.payload_size;
    a->payload_offset  = head.payload_offset;
    a->payload_size    = head.payload_size;
    a->checksum        = head.checksum;
    a->tokens_checksum = head.tokens_checksum;
    a->last_used_ms    = head.header.created_ms;
    return a;
}

std::unique_ptr<checkpoint> make_checkpoint(const checkpoint_record & record, uint64_t file_size) {
    auto c = std::make_unique<checkpoint>();
    c->number       = record.number;
    c->turn         = record.turn;
    c->n_tokens     = record.n_tokens;
    c->n_static     = record.n_static;
    c->n_naming     = record.n_naming;
    c->file_size    = file_size;
    c->created_ms   = record.header.created_ms;
    c->last_turn    = record.turn;
    c->last_used_ms = record.header.created_ms;
    c->backend      = record.header.backend;
    return c;
}

uint64_t object_graph::turn_of(const key & name_space) const {
    const auto it = turns.find(name_space);
    return it == turns.end() ? 0 : it->second;
}

conversation * object_graph::find(const conversation_id & id) const {
    const auto it = conversations.find(id);
    return it == conversations.end() ? nullptr : it->second.get();
}

void object_graph::add(const std::vector<std::shared_ptr<segment>> & more) {
    index.attach(more);
    for (const auto & s : more) {
        segments[s->id] = s;
    }
}

void object_graph::add(const std::shared_ptr<anchor> & a) {
    anchors[{ a->name_space, a->k }] = a;
    link(a);
}

bool object_graph::link(const std::shared_ptr<anchor> & a) {
    run * at = index.find(a->k);
    if (at == nullptr || at->p1 != a->n_tokens || at->owner->name_space != a->name_space || at->owner->root != a->root) {
        return false;
    }
    a->at        = at;
    at->anchored = a;
    return true;
}

conversation & object_graph::add(const conversation_id & id) {
    auto & slot = conversations[id];
    if (slot == nullptr) {
        const auto it = unread.find(id);
        slot = it != unread.end() ? std::move(it->second) : std::make_unique<conversation>(id);
        unread.erase(id);
    }
    return *slot;
}

void object_graph::add(std::unique_ptr<checkpoint> c, conversation & owner, run & end) {
    c->owner = &owner;
    link(*c, end);
    owner.checkpoints[c->number] = std::move(c);
}

void object_graph::link(checkpoint & c, run & end) {
    c.end = &end;
    for (run * r = &end; r != nullptr; r = r->parent) {
        if (std::find(c.segments.begin(), c.segments.end(), r->owner) == c.segments.end()) {
            c.segments.push_back(r->owner);
            r->owner->users[c.owner]++;
            r->owner->awaited_by = r->owner->awaited_by == c.owner->hash ? 0 : r->owner->awaited_by;
        }
    }
    end.owner->ends.push_back(&c);
}

void object_graph::unlink(checkpoint & c) {
    for (segment * s : c.segments) {
        const auto it = s->users.find(c.owner);
        if (it != s->users.end() && --it->second == 0) {
            s->users.erase(it);
        }
    }
    c.segments.clear();
    std::vector<checkpoint *> & ends = c.end->owner->ends;
    ends.erase(std::remove(ends.begin(), ends.end(), &c), ends.end());
}

void object_graph::shorten_those_through(const segment & lost) {
    std::vector<std::pair<checkpoint *, run *>> shorter; // and where each ends then
    for (const auto & [user, n_through] : lost.users) {
        checkpoint & newest = *user->checkpoints.rbegin()->second;
        run *        end    = nullptr;
        for (run * r = newest.end; r != nullptr; r = r->parent) {
            end = r->owner == &lost ? r->parent : end;
        }
        if (n_through == user->checkpoints.size() && end != nullptr && end->p1 > newest.n_static) {
            shorter.emplace_back(&newest, end);
        }
    }
    for (const auto & [c, end] : shorter) {
        unlink(*c);
        link(*c, *end);
        c->n_tokens = end->p1;
        c->n_naming = std::min(c->n_naming, c->n_tokens);
    }
}

void object_graph::forget_anchor(const std::shared_ptr<anchor> & a, doomed_files & out) {
    const std::shared_ptr<anchor> keep = a; // the reference may be the one we are about to clear
    if (keep->at != nullptr) {
        keep->at->anchored = nullptr;
        keep->at = nullptr;
    }
    ram->erase(object_kind::anchor, keep->k);
    anchors.erase({ keep->name_space, keep->k });
    if (keep->is_written()) {
        out.push_back({ layout->anchors(keep->name_space), names::anchor(keep->k), doomed_file::fate::remove });
    }
}

void object_graph::forget_checkpoint(checkpoint & c, doomed_files & out) {
    conversation & owner = *c.owner;
    unlink(c);
    out.push_back({ layout->conversation(owner.name_space, owner.hash), names::checkpoint(c.number),
                    doomed_file::fate::remove_and_sync });
    owner.index_stale = true;
    owner.checkpoints.erase(c.number);
    if (owner.checkpoints.empty()) {
        doom_folder(owner, out);
        conversations.erase(owner.id());
    }
}

void object_graph::doom_folder(const conversation & c, doomed_files & out) const {
    const std::string folder = layout->conversation(c.name_space, c.hash);
    for (const std::string & name : c.unread) {
        out.push_back({ folder, name, doomed_file::fate::remove_and_sync });
    }
    if (c.index_size > 0) {
        out.push_back({ folder, names::index_file, doomed_file::fate::remove });
    }
    out.push_back({ layout->name_space(c.name_space), hex(c.hash), doomed_file::fate::remove_folder });
}

bool object_graph::forget_unread(const conversation_id & id, doomed_files & out) {
    const auto it = unread.find(id);
    if (it == unread.end()) {
        return false;
    }
    doom_folder(*it->second, out);
    unread.erase(it);
    return true;
}

void object_graph::forget_checkpoints_at(const run * at, doomed_files & out) {
    if (at == nullptr) {
        return;
    }
    const std::vector<checkpoint *> ends = at->owner->ends;
    for (checkpoint * c : ends) {
        if (c->end == at) {
            forget_checkpoint(*c, out);
        }
    }
}

void object_graph::forget_runs(segment & s, size_t first, doomed_files & out) {
    std::vector<run *> gone;
    index.detach(s, gone, first);
    for (run * r : gone) {
        ram->erase(object_kind::page, r->k);
        forget_checkpoints_at(r, out);
    }
    for (run * r : gone) {
        if (r->anchored != nullptr) {
            forget_anchor(r->anchored, out);
        }
    }
}

void object_graph::forget_segment(segment & s, doomed_files & out) {
    const std::shared_ptr<segment> keep = segments.at(s.id);
    forget_runs(s, 0, out);
    segments.erase(s.id);
    out.push_back({ layout->pages(s.name_space), names::segment(s.id), doomed_file::fate::remove });
}

static size_t n_naming_of(const checkpoint & c) {
    return c.n_naming != 0 ? c.n_naming : n_conversation_tokens;
}

// The run with the last of the tokens that name the checkpoint's conversation; null: it is shorter.
static run * naming_run(const checkpoint & c) {
    const size_t n_naming = n_naming_of(c);
    run *        r        = c.end;
    while (r != nullptr && r->p0 >= n_naming) {
        r = r->parent;
    }
    return r != nullptr && r->p1 >= n_naming ? r : nullptr;
}

// A page is one run, or a few: it is cut where a prompt ended, or an anchor was taken.
static constexpr size_t most_runs_of_page = 8;

// All runs that have the last of those tokens: what another prompt has of the same page may be cut elsewhere.
static void add_naming_runs(const checkpoint & c, std::set<run *> & out) {
    run * const named = naming_run(c);
    if (named == nullptr) {
        return;
    }
    out.insert(named);
    std::vector<const run *> path = { named };
    while (path.size() < most_runs_of_page && path.back()->parent != nullptr) {
        path.push_back(path.back()->parent);
    }
    const run * const base = path.back();
    path.pop_back();
    std::vector<token> tokens; // behind the base
    for (auto r = path.rbegin(); r != path.rend(); ++r) {
        tokens.insert(tokens.end(), (*r)->tokens, (*r)->tokens + ((*r)->p1 - (*r)->p0));
    }
    const size_t       n_naming = n_naming_of(c);
    std::vector<run *> next(base->children.begin(), base->children.end());
    while (!next.empty()) {
        run * const r = next.back();
        next.pop_back();
        const size_t n = std::min<size_t>(r->p1, n_naming) - std::min<size_t>(r->p0, n_naming);
        if (!std::equal(r->tokens, r->tokens + n, tokens.begin() + static_cast<std::ptrdiff_t>(r->p0 - base->p1))) {
            continue;
        }
        if (r->p1 >= n_naming) {
            out.insert(r);
        } else {
            next.insert(next.end(), r->children.begin(), r->children.end());
        }
    }
}

// What a conversation may be alone in using: also state whose checkpoint was retired long ago, or never written. That is
// all that hangs below the tokens that name it, but for what another one, which begins alike and has a key of its own, is about
// to finish.
static std::vector<segment *> segments_of(const conversation & c) {
    std::set<segment *> found;
    std::set<run *>     naming;
    for (const auto & [number, point] : c.checkpoints) {
        found.insert(point->segments.begin(), point->segments.end());
        add_naming_runs(*point, naming);
    }
    std::vector<run *> below(naming.begin(), naming.end());
    for (size_t i = 0; i < below.size(); i++) {
        found.insert(below[i]->owner);
        below.insert(below.end(), below[i]->children.begin(), below[i]->children.end());
    }
    std::vector<segment *> out;
    std::copy_if(found.begin(), found.end(), std::back_inserter(out), [&c](const segment * s) {
        return s->awaited_by == 0 || s->awaited_by == c.hash;
    });
    return out;
}

bool object_graph::retire(checkpoint & c, doomed_files & out, std::vector<uint64_t> & left) {
    const run * named = naming_run(c);
    const bool  found = named == nullptr || std::any_of(c.owner->checkpoints.begin(), c.owner->checkpoints.end(),
        [&](const auto & other) { return other.second.get() != &c && naming_run(*other.second) == named; });
    std::vector<uint64_t> mine;
    for (const segment * s : c.segments) {
        const bool alone = s->users.size() == 1 && s->users.at(c.owner) == 1;
        if (!found && alone && s->pins != 0) {
            return false;
        }
        if (s->awaited_by == 0 || s->awaited_by == c.owner->hash) {
            mine.push_back(s->id);
        }
    }
    forget_checkpoint(c, out);
    if (!found) {
        forget_unneeded(mine, out);
        std::copy_if(mine.begin(), mine.end(), std::back_inserter(left), [&](uint64_t id) { return segments.count(id) != 0; });
    }
    return true;
}

bool is_being_read(const conversation & c) {
    const std::vector<segment *> mine = segments_of(c);
    return std::any_of(mine.begin(), mine.end(), [&c](const segment * s) {
        return s->pins != 0 && s->users.size() == s->users.count(&c);
    });
}

std::set<key> own_runs(const std::set<const conversation *> & gone) {
    std::set<const segment *> theirs;
    std::set<const run *>     of_others;
    std::set<key>             out;
    for (const conversation * c : gone) {
        for (const segment * s : segments_of(*c)) {
            theirs.insert(s);
        }
    }
    for (const segment * s : theirs) {
        for (const auto & [user, n] : s->users) {
            for (auto it = user->checkpoints.begin(); gone.count(user) == 0 && it != user->checkpoints.end(); ++it) {
                for (const run * r = it->second->end; r != nullptr && of_others.insert(r).second; r = r->parent) {
                }
            }
        }
    }
    for (const segment * s : theirs) {
        for (const run & r : s->runs) {
            if (r.attached && of_others.count(&r) == 0) {
                out.insert(r.k);
            }
        }
    }
    return out;
}

size_t object_graph::n_needed(const segment & s) const {
    size_t     n    = 0;
    const auto need = [&](const run & r) { n = std::max(n, static_cast<size_t>(&r - s.runs.data()) + 1); };
    for (const checkpoint * c : s.ends) {
        need(*c->end);
    }
    for (const run & r : s.runs) { // A path that does not end here leaves the segment somewhere.
        if (std::any_of(r.children.begin(), r.children.end(), [&](const run * child) { return child->owner != &s; })) {
            need(r);
        }
    }
    return n;
}

std::vector<uint64_t> object_graph::forget_conversation(conversation & c, doomed_files & out, bool with_static) {
    std::vector<uint64_t> mine; // ids: a segment may go while another is looked at
    for (const segment * s : segments_of(c)) {
        if (with_static || (s->flags & format::flag_static_prefix) == 0) {
            mine.push_back(s->id);
        }
    }
    while (c.checkpoints.size() > 1) {
        forget_checkpoint(*c.checkpoints.rbegin()->second, out);
    }
    forget_checkpoint(*c.checkpoints.begin()->second, out); // c is gone
    forget_unneeded(mine, out);
    mine.erase(std::remove_if(mine.begin(), mine.end(), [&](uint64_t id) { return segments.count(id) == 0; }), mine.end());
    return mine;
}

void object_graph::forget_ending(const segment & s, const run * at, doomed_files & out, std::vector<uint64_t> & left) {
    std::map<conversation_id, size_t> n_ending;
    for (const checkpoint * c : s.ends) {
        n_ending[c->owner->id()] += at == nullptr || c->end == at;
    }
    for (const auto & [id, n] : n_ending) {
        conversation &               c    = *find(id);
        const std::vector<segment *> mine = segments_of(c);
        const bool goes_on = std::any_of(mine.begin(), mine.end(), [](const segment * one) { return one->awaited_by != 0; });
        if (n == c.checkpoints.size() && !goes_on && !is_being_read(c)) {
            const std::vector<uint64_t> shared = forget_conversation(c, out, false);
            left.insert(left.end(), shared.begin(), shared.end());
        }
    }
}

std::vector<uint64_t> object_graph::forget_awaited(const conversation_id & id, doomed_files & out, bool & found) {
    std::vector<uint64_t> mine;
    for (const auto & [number, s] : segments) {
        if (id.second != 0 && s->awaited_by == id.second && s->name_space == id.first) {
            s->awaited_by = 0; // Its checkpoint does not come any more: the next one that uses the segment removes it.
            mine.push_back(number);
        }
    }
    found = !mine.empty();
    const std::vector<uint64_t> awaited = mine;
    for (const uint64_t number : awaited) {
        for (const run * r = segments.at(number)->runs.front().parent; r != nullptr; r = r->parent) {
            if (r->owner->awaited_by == 0) {
                mine.push_back(r->owner->id); // What it went on from may have had no other use.
            }
        }
    }
    std::sort(mine.begin(), mine.end());
    mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
    forget_unneeded(mine, out);
    mine.erase(std::remove_if(mine.begin(), mine.end(), [&](uint64_t one) { return segments.count(one) == 0; }),
               mine.end());
    return mine;
}

void object_graph::forget_unneeded(std::vector<uint64_t> ids, doomed_files & out) {
    std::sort(ids.begin(), ids.end(), std::greater<uint64_t>()); // later ones tend to continue earlier ones
    for (bool changed = true; changed;) {
        changed = false;
        for (uint64_t id : ids) {
            const auto it = segments.find(id);
            if (it != segments.end() && it->second->users.empty() && it->second->n_outer_children == 0) {
                const std::shared_ptr<segment> gone = it->second;
                forget_segment(*gone, out);
                changed = true;
            }
        }
    }
}

} // namespace kvtier

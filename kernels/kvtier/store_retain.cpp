// Removing: what limits ask for, what a user asks for, and what is damaged. What makes room: see store_evict.cpp.
//
// The index forgets first, under its lock; files go afterwards, checkpoints before the state they name. A power cut
// in between leaves state without a checkpoint, never the other way round.
#include "kvtier/store_state.h"

#include <algorithm>
#include <functional>

namespace kvtier {

void store_state::charge(uint64_t bytes) {
    budget->add(bytes);
    own_bytes += bytes;
}

// Never more than it has: what others count is not its to give back.
void store_state::discharge(uint64_t bytes) {
    bytes = std::min(bytes, own_bytes);
    budget->release(bytes);
    own_bytes -= bytes;
}

// Counts a folder for what it takes now. One that cannot be looked at stays counted as it was.
void store_state::recount_folder(const std::string & path) {
    uint64_t     size   = 0;
    const status looked = e.folder_size(path, size);
    if (looked.is_miss()) {
        discharge_folder(path);
    }
    if (!looked.is_ok()) {
        return;
    }
    uint64_t counted;
    {
        std::unique_lock<std::shared_mutex> guard(mu);
        counted = std::exchange(folders[path], size);
    }
    if (size > counted) {
        charge(size - counted);
    } else {
        discharge(counted - size);
    }
}

// Gives what it was counted for.
uint64_t store_state::discharge_folder(const std::string & path) {
    uint64_t counted = 0;
    {
        std::unique_lock<std::shared_mutex> guard(mu);
        if (const auto node = folders.extract(path)) {
            counted = node.mapped();
        }
    }
    discharge(counted);
    return counted;
}

void store_state::leave(const std::string & path, uint64_t bytes) {
    leftovers[path] += bytes;
}

static bool is_in(const std::string & path, const std::string & tree) {
    return path.compare(0, tree.size(), tree) == 0 && (path.size() == tree.size() || path[tree.size()] == '/');
}

// After remove_tree. Only what was counted is given back: files may lie there that nobody has seen before.
void store_state::discharge_gone(const std::string & tree) {
    std::vector<std::string> known;
    doomed_files             waiting;
    {
        std::unique_lock<std::shared_mutex> guard(mu);
        for (auto it = folders.lower_bound(tree); it != folders.end() && it->first.compare(0, tree.size(), tree) == 0; ++it) {
            if (is_in(it->first, tree)) {
                known.push_back(it->first);
            }
        }
        waiting.swap(deferred);
    }
    for (const std::string & path : known) {
        uint64_t size = 0;
        if (e.folder_size(path, size).is_miss()) {
            discharge_folder(path);
        }
    }
    const auto is_gone = [&](const std::string & path) {
        std::unique_ptr<readable_file> file;
        return is_in(path, tree) && e.open_file(path, file).is_miss();
    };
    for (auto it = leftovers.lower_bound(tree); it != leftovers.end() && it->first.compare(0, tree.size(), tree) == 0;) {
        if (is_gone(it->first)) {
            discharge(it->second);
            it = leftovers.erase(it);
        } else {
            ++it;
        }
    }
    doomed_files left;
    for (doomed_file & file : waiting) {
        if (!file.is_folder && is_gone(names::join(file.folder, file.name))) {
            discharge(disk_size(file.size));
        } else {
            left.push_back(std::move(file));
        }
    }
    std::unique_lock<std::shared_mutex> guard(mu);
    deferred.insert(deferred.end(), left.begin(), left.end());
}

uint64_t store_state::turn_of(const key & name_space) const {
    const auto it = name_spaces.find(name_space);
    return it == name_spaces.end() ? 0 : it->second.turn;
}

void store_state::note(const std::string & path, const status & why) {
    constexpr size_t max_notes = 1000; // counters go on; a list of everything on a dying disk helps nobody
    if (notes.size() < max_notes) {
        notes.push_back({ path, why });
    }
}

void store_state::forget_anchor(const std::shared_ptr<anchor> & a, doomed_files & out) {
    const std::shared_ptr<anchor> keep = a; // the reference may be the one we are about to clear
    if (keep->at != nullptr) {
        keep->at->anchored = nullptr;
        keep->at = nullptr;
    }
    ram.erase(object_kind::anchor, keep->k);
    anchors.erase({ keep->name_space, keep->k });
    doomed_file file;
    file.folder = names::join(folder_of(keep->name_space), names::anchors);
    file.name   = names::anchor(keep->k);
    file.size   = keep->file_size;
    out.push_back(std::move(file));
}

void store_state::forget_checkpoint(checkpoint & c, doomed_files & out) {
    conversation & owner  = *c.owner;
    const std::string folder = names::join(folder_of(owner.name_space), hex(owner.hash));
    for (segment * s : c.segments) {
        const auto it = s->users.find(&owner);
        if (it != s->users.end() && --it->second == 0) {
            s->users.erase(it);
        }
    }
    std::vector<checkpoint *> & ends = c.end->owner->ends;
    ends.erase(std::remove(ends.begin(), ends.end(), &c), ends.end());
    doomed_file file;
    file.folder = folder;
    file.name   = names::checkpoint(c.number);
    file.size   = c.file_size;
    file.sync   = true;
    out.push_back(std::move(file));
    owner.index_stale = true;
    owner.checkpoints.erase(c.number);
    if (owner.checkpoints.empty()) {
        if (owner.index_size > 0) {
            doomed_file index_file;
            index_file.folder = folder;
            index_file.name   = names::index_file;
            index_file.size   = owner.index_size;
            out.push_back(std::move(index_file));
        }
        doomed_file empty;
        empty.folder    = folder_of(owner.name_space);
        empty.name      = hex(owner.hash);
        empty.is_folder = true;
        out.push_back(std::move(empty));
        conversations.erase({ owner.name_space, owner.hash });
    }
}

// Checkpoints that end at a run which is about to lose its state, or its anchor.
void store_state::forget_checkpoints_at(const run * at, doomed_files & out) {
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

void store_state::forget_segment(segment & s, doomed_files & out) {
    const std::shared_ptr<segment> keep = segments.at(s.id);
    std::vector<run *> gone;
    index.detach(s, gone);
    for (run * r : gone) {
        ram.erase(object_kind::page, r->k);
        forget_checkpoints_at(r, out);
    }
    for (run * r : gone) {
        if (r->anchored != nullptr) {
            forget_anchor(r->anchored, out);
        }
    }
    segments.erase(s.id);
    doomed_file file;
    file.folder = names::join(folder_of(s.name_space), names::pages);
    file.name   = names::segment(s.id);
    file.size   = s.file_size;
    out.push_back(std::move(file));
}

// What a conversation may be alone in using: also state whose checkpoint was retired long ago, or never written. That is
// all that hangs below its first tokens, because they are what makes it this conversation.
static std::vector<segment *> segments_of(const conversation & c) {
    std::set<segment *> found;
    std::vector<run *>  below;
    for (const auto & [number, point] : c.checkpoints) {
        for (run * r = point->end; r != nullptr; r = r->parent) {
            found.insert(r->owner);
            if (r->p0 < n_conversation_tokens && r->p1 >= n_conversation_tokens) {
                below.push_back(r);
            }
        }
    }
    for (size_t i = 0; i < below.size(); i++) {
        found.insert(below[i]->owner);
        below.insert(below.end(), below[i]->children.begin(), below[i]->children.end());
    }
    return { found.begin(), found.end() };
}

// Whether somebody reads what would go with it.
static bool is_being_read(const conversation & c) {
    const std::vector<segment *> mine = segments_of(c);
    return std::any_of(mine.begin(), mine.end(), [&c](const segment * s) {
        return s->pins != 0 && s->users.size() == s->users.count(&c);
    });
}

// A conversation with everything that only it uses.
void store_state::forget_conversation(conversation & c, doomed_files & out) {
    std::vector<uint64_t> mine; // ids: a segment may go while another is looked at
    for (const segment * s : segments_of(c)) {
        mine.push_back(s->id);
    }
    while (c.checkpoints.size() > 1) {
        forget_checkpoint(*c.checkpoints.rbegin()->second, out);
    }
    forget_checkpoint(*c.checkpoints.begin()->second, out); // c is gone

    std::sort(mine.begin(), mine.end(), std::greater<uint64_t>()); // later ones tend to continue earlier ones
    for (bool changed = true; changed;) {
        changed = false;
        for (uint64_t id : mine) {
            const auto it = segments.find(id);
            if (it != segments.end() && it->second->users.empty() && it->second->n_outer_children == 0) {
                const std::shared_ptr<segment> gone = it->second;
                forget_segment(*gone, out);
                changed = true;
            }
        }
    }
}

void store_state::remove_or_leave(const std::string & path, uint64_t bytes) {
    if (const status removed = e.remove_file(path); removed.is_ok() || removed.is_miss()) {
        discharge(bytes);
    } else {
        leave(path, bytes);
    }
}

// What the disk refuses to remove is tried again by the next writer. changed, if given, gets the folders that lost a name.
uint64_t store_state::remove_files(const doomed_files & files, std::set<std::string> * changed) {
    uint64_t              freed = 0;
    std::set<std::string> touched;
    std::set<std::string> kept; // folders in which something stays
    doomed_files          again;
    for (size_t i = 0; i < files.size(); i++) {
        const doomed_file & file = files[i];
        const std::string   path = names::join(file.folder, file.name);
        if (file.aside) {
            set_aside(file.folder, file.name, disk_size(file.size));
            continue;
        }
        const status s    = file.is_folder ? e.remove_dir(path) : e.remove_file(path);
        const bool   gone = s.is_ok() || s.is_miss();
        touched.insert(file.folder);
        if (gone && file.is_folder) {
            freed += discharge_folder(path);
            touched.erase(path);
        } else if (gone) {
            discharge(disk_size(file.size));
            freed += disk_size(file.size);
        } else if (!file.is_folder || kept.count(path) != 0) { // a folder with other things in it is none of ours to remove
            again.push_back(file);
            kept.insert(file.folder);
        }
        const bool last_of_folder = i + 1 == files.size() || files[i + 1].folder != file.folder || !files[i + 1].sync;
        if (file.sync && last_of_folder && s.is_ok()) {
            count.syncs++;
            (void) e.sync_dir(file.folder).is_ok(); // if this fails, a checkpoint may come back and be set aside
        }
    }
    for (const std::string & folder : touched) {
        recount_folder(folder);
    }
    if (changed != nullptr) {
        changed->insert(touched.begin(), touched.end());
    }
    if (!again.empty()) {
        std::unique_lock<std::shared_mutex> guard(mu);
        deferred.insert(deferred.end(), again.begin(), again.end());
    }
    return freed;
}

// The bytes stay counted: they only move.
void store_state::set_aside(const std::string & folder, const std::string & name, uint64_t size) {
    const std::string aside = names::join(model_dir, names::quarantine);
    const std::string path  = names::join(folder, name);
    if (!has_quarantine && !e.make_dir(aside).is_ok()) { // rather gone than in the way, and counted, for ever
        remove_or_leave(path, size);
        return;
    }
    has_quarantine = true;
    // A name may be as long as the system allows; what is added in front must still fit.
    const std::string target = names::join(aside, std::to_string(e.now_ms()) + "-" + std::to_string(next_quarantine++) +
                                                  "-" + name.substr(0, 100));
    const status moved = e.rename(path, target);
    if (moved.is_ok()) {
        quarantine_bytes += size;
    } else if (moved.is_miss()) {
        discharge(size);
    } else {
        leave(path, size);
    }
    recount_folder(aside);
}

// So that what was removed stays so after a power cut. A folder that has gone itself needs none of that.
status store_state::sync_removals(const std::set<std::string> & changed) {
    status result = status::ok();
    for (const std::string & folder : changed) {
        count.syncs++;
        const status s = e.sync_dir(folder);
        if (result.is_ok() && !s.is_miss()) {
            result = s;
        }
    }
    return result;
}

void store_state::finish_deferred() {
    if (options.inspect) {
        return;
    }
    doomed_files files;
    {
        std::unique_lock<std::shared_mutex> guard(mu);
        files.swap(deferred);
    }
    // Folders last: something may have been put there, and given up as well, since they were.
    std::stable_partition(files.begin(), files.end(), [](const doomed_file & file) { return !file.is_folder; });
    remove_files(files);
}

uint64_t store_state::empty_quarantine() {
    if (!has_quarantine) {
        return 0;
    }
    const std::string aside = names::join(model_dir, names::quarantine);
    uint64_t          freed = 0;
    (void) remove_tree(e, aside, &freed).is_ok(); // frees what it can
    uint64_t     folder = 0;
    uint64_t     left   = 0;
    status       looked = e.folder_size(aside, folder);
    has_quarantine = !looked.is_miss();
    if (looked.is_ok()) {
        looked = measure_tree(e, aside, left);
    }
    if (looked.is_ok() || looked.is_miss()) { // else what is left is not known, and stays counted
        left = std::min(left - std::min(left, folder), quarantine_bytes);
        discharge(quarantine_bytes - left);
        quarantine_bytes = left;
    }
    recount_folder(aside);
    return freed;
}

void store_state::apply_limits(const key & name_space, const conversation * changed) {
    doomed_files files;
    {
        std::unique_lock<std::shared_mutex> guard(mu);
        const uint64_t turn = turn_of(name_space);
        std::vector<conversation *> mine;
        for (auto it = conversations.lower_bound({ name_space, 0 });
             it != conversations.end() && it->first.first == name_space; ++it) {
            mine.push_back(it->second.get());
        }
        if (mine.size() > options.max_conversations) {
            std::sort(mine.begin(), mine.end(), [](const conversation * a, const conversation * b) {
                return a->last_turn != b->last_turn ? a->last_turn < b->last_turn : a->last_used_ms < b->last_used_ms;
            });
            size_t n_surplus = mine.size() - options.max_conversations;
            std::vector<conversation *> left;
            for (conversation * c : mine) {
                if (n_surplus == 0 || is_being_read(*c)) { // a restore is not disturbed: the next one in line goes
                    left.push_back(c);
                    continue;
                }
                n_surplus--;
                count.retired_conversations++;
                forget_conversation(*c, files);
            }
            mine.swap(left);
        }
        for (conversation * c : mine) {
            size_t n_cold = 0;
            for (const auto & [number, point] : c->checkpoints) {
                n_cold += turn - std::min(turn, point->last_turn) >= options.windows.warm;
            }
            for (auto it = c->checkpoints.begin(); it != c->checkpoints.end() && c->checkpoints.size() > 1;) {
                checkpoint & point   = *it->second;
                const bool   cold    = turn - std::min(turn, point.last_turn) >= options.windows.warm;
                const bool   surplus = c->checkpoints.size() > options.max_checkpoints || (cold && n_cold > options.max_cold);
                ++it;
                if (!surplus) {
                    continue;
                }
                n_cold -= cold;
                // Its state stays until room is needed: another prompt may well begin the same way.
                count.retired_checkpoints++;
                forget_checkpoint(point, files);
            }
            // Anchors along the newest checkpoint that only this conversation uses.
            if (changed != nullptr && changed != c) {
                continue;
            }
            std::vector<std::shared_ptr<anchor>> along;
            for (const run * r = c->checkpoints.rbegin()->second->end; r != nullptr; r = r->parent) {
                if (r->anchored != nullptr && r->owner->users.size() <= 1) {
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
                    forget_checkpoints_at(along[i]->at, files);
                    forget_anchor(along[i], files);
                }
            }
        }
    }
    remove_files(files);
}

} // namespace kvtier

// The models of one cache folder: which there are, what the others take, and how one of them goes.
#include "kvtier/store_rooms.h"

#include <algorithm>
#include <set>

namespace kvtier {

namespace {

struct other_model {
    key         k{};
    std::string name;
    uint64_t    bytes   = 0;
    int64_t     used_ms = 0;
};

// A model was last opened when its lock was last written.
int64_t last_opened(env & e, const std::string & folder, int64_t otherwise) {
    std::vector<dir_entry> inside;
    (void) e.list_dir(folder, inside).is_ok();
    for (const dir_entry & entry : inside) {
        if (entry.name == names::lock_file) {
            return entry.modified_ms;
        }
    }
    return otherwise;
}

} // namespace

status list_models(env & e, const std::string & root_dir, std::vector<key> & out) {
    std::vector<dir_entry> entries;
    out.clear();
    if (status s = e.list_dir(root_dir, entries); !s.is_ok()) {
        return s;
    }
    for (const dir_entry & entry : entries) {
        key k;
        if (entry.type == file_type::folder && parse_hex(entry.name, k)) {
            out.push_back(k);
        }
    }
    std::sort(out.begin(), out.end());
    return status::ok();
}

// The lock goes with the folder. Whoever comes while files are being removed must neither find the folder without it nor make
// a new one in there: so the folder gets another name first, which no store has.
status remove_model(env & e, const std::string & root_dir, const key & fingerprint, uint64_t & bytes_freed) {
    const std::string          path = names::join(root_dir, hex(fingerprint));
    const std::string          gone = names::join(root_dir, names::removed(fingerprint, e.now_ms()));
    std::unique_ptr<file_lock> held;
    if (status s = e.lock_file(names::join(path, names::lock_file), held); !s.is_ok()) {
        return s;
    }
    if (status s = e.rename(path, gone); !s.is_ok()) {
        return s;
    }
    const status synced  = e.sync_dir(root_dir);
    const status removed = remove_tree(e, gone, &bytes_freed);
    return removed.is_ok() ? synced : removed;
}

// What is left of a model that was being removed goes at once.
static void count_removed(store_rooms & rooms, const std::string & name) {
    const std::string path = names::join(rooms.layout.root(), name);
    uint64_t          left = 0;
    if (rooms.files.may_change().is_ok()) {
        (void) remove_tree(rooms.e, path, nullptr).is_ok();
    }
    (void) measure_tree(rooms.e, path, left).is_ok();
    rooms.bytes.budget().set_foreign(name, left);
}

// Other models' folders count against the budget too, and another process may be filling or emptying one. Where room is needed
// they get at most half of it: the oldest go first, unless a process holds them.
void count_other_models(store_rooms & rooms, uint64_t n_bytes) {
    env &                    e      = rooms.e;
    disk_budget &            budget = rooms.bytes.budget();
    const std::string &      root   = rooms.layout.root();
    std::vector<dir_entry>   entries;
    std::vector<other_model> others;
    std::set<std::string>    there;
    uint64_t                 total = 0;
    budget.begin_look(e.now_ms());
    const bool is_listed = e.list_dir(root, entries).is_ok();
    for (const dir_entry & entry : entries) {
        const std::string path = names::join(root, entry.name);
        other_model       o;
        there.insert(entry.name);
        if (entry.type != file_type::folder) {
            continue;
        }
        if (names::is_removed(entry.name)) {
            count_removed(rooms, entry.name);
        } else if (parse_hex(entry.name, o.k) && o.k != rooms.options.fingerprint && !budget.is_owned(entry.name)) {
            (void) measure_tree(e, path, o.bytes).is_ok(); // as far as it can be read
            o.name    = entry.name;
            o.used_ms = last_opened(e, path, entry.modified_ms);
            total    += o.bytes;
            budget.set_foreign(o.name, o.bytes);
            others.push_back(std::move(o));
        }
    }
    for (const std::string & name : budget.foreign_names()) {
        if (is_listed && there.count(name) == 0 && name != names::tag_file) { // The tag stands for the root.
            budget.set_foreign(name, 0);
        }
    }
    const auto has_room = [&] { return n_bytes <= budget.limit() && budget.used() <= budget.limit() - n_bytes; };
    std::sort(others.begin(), others.end(), [](const auto & a, const auto & b) { return a.used_ms < b.used_ms; });
    for (const other_model & o : others) {
        if (total <= budget.limit() / 2 || has_room() || !rooms.files.may_change().is_ok()) {
            return;
        }
        uint64_t freed = 0;
        (void) remove_model(e, root, o.k, freed).is_ok(); // what cannot be removed stays counted
        rooms.count.evicted_bytes += freed;
        total -= std::min(total, freed);
        budget.set_foreign(o.name, o.bytes - std::min(o.bytes, freed));
    }
}

} // namespace kvtier

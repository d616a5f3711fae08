#include "kvtier/shared/shared_index.h"

#include "kvtier/file_names.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace kvtier {

// Uses are written down so coarsely.
static constexpr int64_t same_use_ms = 60 * 1000;

uint64_t shared_match::bytes() const {
    uint64_t n = anchor ? anchor->size : 0;
    for (const shared_run & r : runs) {
        n += r.size;
    }
    return n;
}

void shared_match::skip_stored(const std::set<key> & stored) {
    const auto last = std::find_if(runs.rbegin(), runs.rend(), [&](const shared_run & r) { return stored.count(r.k) != 0; });
    runs.erase(runs.begin(), last.base());
}

bool shared_index::concerns(const shared_name & name) const {
    return name.place.fingerprint == of.fingerprint && (of.backend.empty() || name.place.backend == of.backend) &&
           (of.users || name.place.name_space == key{});
}

static bool is_alike(const shared_file & a, const shared_file & b) {
    return a.bytes == b.bytes && a.modified_ms == b.modified_ms;
}

std::vector<shared_file> shared_index::unknown(const shared_listing & listing) const {
    std::vector<shared_file> out;
    mutex_lock               guard(mu);
    for (const shared_file & file : listing.files) {
        if (concerns(file.name)) {
            const auto it = files.find(file.name.path());
            const bool is_new = it == files.end() || !it->second.is_seen;
            if (is_new || (!it->second.is_usable() && !is_alike(it->second.file, file))) {
                out.push_back(file);
            }
        }
    }
    return out;
}

void shared_index::see(entry & known, shared_file file, clock::time_point now) {
    const bool is_alike = known.changed != clock::time_point() && known.file.modified_ms == file.modified_ms;
    known.changed       = is_alike ? known.changed : now;
    known.file          = std::move(file);
}

void shared_index::learn(news found) {
    entry & known    = files[found.file.name.path()];
    known.is_seen    = true;
    known.of_segment = std::move(found.of_segment);
    known.of_anchor  = std::move(found.of_anchor);
}

// Makes the tree anew. What its runs knew of each other before does not count.
void shared_index::link_all() {
    std::vector<std::shared_ptr<segment>> all;
    runs = {};
    owners.clear();
    anchors.clear();
    for (const auto & [path, known] : files) {
        if (known.of_segment != nullptr) {
            for (run & r : known.of_segment->runs) {
                r.parent   = nullptr;
                r.attached = false;
                r.children.clear();
                r.anchored.reset();
            }
            owners[known.of_segment.get()] = &known;
            all.push_back(known.of_segment);
        }
    }
    runs.attach(all);
    for (const auto & [path, known] : files) {
        if (known.of_anchor == nullptr) {
            continue;
        }
        const anchor & a  = *known.of_anchor;
        run *          at = runs.find(a.k);
        anchors[{ a.name_space, a.k }] = &known;
        if (at != nullptr && at->p1 == a.n_tokens && at->owner->name_space == a.name_space && at->owner->root == a.root) {
            at->anchored = known.of_anchor;
        }
    }
}

void shared_index::update(const shared_listing & listing, std::vector<news> found, clock::time_point now) {
    mutex_lock                         guard(mu);
    std::map<std::string, shared_file> there;
    for (const shared_file & file : listing.files) {
        there.emplace(file.name.path(), file);
    }
    bool changed = !found.empty();
    for (auto it = files.begin(); it != files.end();) {
        const bool is_gone = there.count(it->first) == 0;
        changed = changed || (is_gone && it->second.is_seen);
        it = is_gone ? files.erase(it) : std::next(it);
    }
    for (auto & [path, file] : there) {
        see(files[path], std::move(file), now);
    }
    for (news & one : found) {
        if (files.count(one.file.name.path()) != 0) {
            learn(std::move(one));
        }
    }
    claimed = listing.bytes_claimed;
    if (changed) {
        link_all();
    }
}

void shared_index::add(std::vector<news> found, clock::time_point now) {
    mutex_lock guard(mu);
    for (news & one : found) {
        see(files[one.file.name.path()], one.file, now);
        learn(std::move(one));
    }
    link_all();
}

void shared_index::forget(const std::vector<shared_name> & gone) {
    mutex_lock guard(mu);
    size_t     n = 0;
    for (const shared_name & name : gone) {
        n += files.erase(name.path());
    }
    if (n > 0) {
        link_all();
    }
}

shared_match shared_index::find(const lookup_request & request) const {
    shared_match      out;
    const size_t      limit = std::min(request.limit, request.n_tokens);
    mutex_lock        guard(mu);
    const walk_result path  = runs.walk(user_key(request.root.user), root_key(request.root), request.tokens, request.n_tokens, limit);
    const run *       last  = request.folded ? path.anchored : path.last;
    if (last == nullptr) {
        return out;
    }
    out.n_tokens = request.folded ? last->p1 : std::min<size_t>(path.n_common, limit);
    for (const run * r = last; r != nullptr; r = r->parent) {
        if (r->p0 >= out.n_tokens) {
            continue; // beyond the limit
        }
        const entry & owner = *owners.at(r->owner);
        out.runs.push_back({ r->k, r->parent_key, r->p0, r->p1, r->offset, r->size, r->checksum,
                             (r->owner->flags & format::flag_static_prefix) != 0, owner.file.name, r->owner->file_size });
        out.tokens.insert(out.tokens.begin(), r->tokens, r->tokens + (r->p1 - r->p0));
    }
    std::reverse(out.runs.begin(), out.runs.end());
    if (request.folded) {
        const anchor & a = *last->anchored;
        out.anchor = { a.k, a.n_tokens, a.payload_offset, a.payload_size, a.checksum, anchors.at({ a.name_space, a.k })->file.name,
                       a.file_size };
    }
    return out;
}

bool shared_index::file_of(const key & k, shared_name & out) const {
    mutex_lock  guard(mu);
    const run * found = runs.find(k);
    if (found != nullptr) {
        out = owners.at(found->owner)->file.name;
    }
    return found != nullptr;
}

bool shared_index::anchor_file(const key & name_space, const key & k, shared_name & out) const {
    mutex_lock guard(mu);
    const auto found = anchors.find({ name_space, k });
    if (found != anchors.end()) {
        out = found->second->file.name;
    }
    return found != anchors.end();
}

bool shared_index::entry::is_static_segment() const {
    return of_segment != nullptr && (of_segment->flags & format::flag_static_prefix) != 0;
}

bool shared_index::entry::has_any(const std::set<key> & keys) const {
    return of_segment != nullptr &&
           std::any_of(of_segment->runs.begin(), of_segment->runs.end(), [&](const run & r) { return keys.count(r.k) != 0; });
}

// What files go on from that stay when these are gone.
std::set<key> shared_index::needed_without(const std::set<std::string> & gone) const {
    std::set<key> out;
    for (const auto & [path, known] : files) {
        if (known.of_segment != nullptr && gone.count(path) == 0) {
            const run * before = nullptr;
            for (const run & r : known.of_segment->runs) {
                if (before == nullptr || before->k != r.parent_key) {
                    out.insert(r.parent_key);
                }
                before = &r;
            }
        }
    }
    return out;
}

// Also what is not in the tree counts: a run whose beginning is gone still has words in it.
std::vector<shared_name> shared_index::files_of(const std::set<key> & keys) const {
    std::set<key>            gone = keys;
    std::set<std::string>    taken;
    std::vector<shared_name> out;
    mutex_lock               guard(mu);
    for (const auto & [path, known] : files) {
        for (size_t i = 0; known.is_static_segment() && i < known.of_segment->runs.size(); i++) {
            gone.erase(known.of_segment->runs[i].k);
        }
    }
    const auto take = [&](const std::string & path, const entry & known, const std::set<key> & named) {
        bool has_any = known.of_anchor != nullptr && named.count(known.of_anchor->k) != 0;
        if (known.of_segment != nullptr) {
            for (const run & r : known.of_segment->runs) {
                if (named.count(r.k) != 0 || gone.count(r.parent_key) != 0) {
                    has_any = true;
                    gone.insert(r.k);
                }
            }
        }
        if (has_any && taken.insert(path).second) {
            out.push_back(known.file.name);
        }
    };
    for (size_t n_before = SIZE_MAX; n_before != taken.size() + gone.size();) {
        n_before = taken.size() + gone.size();
        for (const auto & [path, known] : files) {
            if (!known.is_static_segment()) {
                take(path, known, gone);
            }
        }
        if (n_before == taken.size() + gone.size()) { // What is left goes on from something else.
            const std::set<key> needed = needed_without(taken);
            for (const auto & [path, known] : files) {
                if (known.is_static_segment() && !known.has_any(needed)) {
                    take(path, known, keys);
                }
            }
        }
    }
    return out;
}

std::vector<shared_name> shared_index::files_of_name_space(const key & name_space) const {
    std::vector<shared_name> out;
    mutex_lock               guard(mu);
    for (const auto & [path, known] : files) {
        if (known.file.name.place.fingerprint == of.fingerprint && known.file.name.place.name_space == name_space) {
            out.push_back(known.file.name);
        }
    }
    return out;
}

shared_index::totals shared_index::count() const {
    totals     out;
    mutex_lock guard(mu);
    out.bytes = claimed;
    for (const auto & [path, known] : files) {
        out.n_files++;
        out.bytes   += known.file.bytes;
        out.n_known += known.is_usable();
    }
    return out;
}

std::vector<shared_file> shared_index::victims() const {
    using order = std::tuple<int64_t, int64_t, int64_t>;
    std::vector<std::pair<order, shared_file>> all;
    {
        mutex_lock guard(mu);
        for (const auto & [path, known] : files) {
            const int64_t seen = std::chrono::duration_cast<std::chrono::minutes>(known.changed.time_since_epoch()).count();
            const int64_t used = known.file.modified_ms / same_use_ms;
            all.push_back({ { seen, used, -static_cast<int64_t>(known.file.name.at) }, known.file });
        }
    }
    std::sort(all.begin(), all.end(), [](const auto & a, const auto & b) { return a.first < b.first; });
    std::vector<shared_file> out;
    for (auto & [place, file] : all) {
        out.push_back(std::move(file));
    }
    return out;
}

} // namespace kvtier

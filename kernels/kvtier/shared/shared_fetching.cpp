// How state comes out of the shared folder into the local store, and how it is removed from both.
#include "kvtier/shared/shared_tier.h"

#include "kvtier/file_names.h"
#include "kvtier/read_task.h"
#include "kvtier/shared/folder_look.h"
#include "kvtier/store_rooms.h"

#include <algorithm>
#include <new>
#include <utility>

namespace kvtier {

// So much is read before it is saved, while the next is being read.
static constexpr uint64_t max_batch_bytes = uint64_t(64) << 20;

struct shared_tier::batch {
    size_t                               first = 0; // runs of the match
    size_t                               end   = 0;
    std::vector<std::shared_ptr<buffer>> data;
    std::shared_ptr<buffer>              anchor;    // instead of runs
    std::vector<job_pointer>             jobs;
    std::vector<shared_name>             files;     // of the jobs
    uint64_t                             bytes = 0;

    bool is_empty() const { return jobs.empty(); }
};

// Files are anybody's: what they say of themselves must follow from the tokens. `wrong`: the one that does not.
static status check_keys(const chain_root & root, const shared_match & what, shared_name & wrong) {
    const std::vector<key> pages  = page_keys(root, what.tokens.data(), what.tokens.size());
    const auto             key_at = [&](uint32_t p) {
        const uint32_t rest = p % root.page_size;
        const key      base = p < root.page_size ? root_key(root) : pages[p / root.page_size - 1];
        return rest == 0 ? base : next_key(base, what.tokens.data() + (p - rest), rest);
    };
    for (size_t i = 0; i < what.runs.size(); i++) {
        const shared_run & r       = what.runs[i];
        const bool         follows = i == 0 || what.runs[i - 1].p1 == r.p0;
        if (!follows || r.p1 > what.tokens.size() || r.k != key_at(r.p1) || r.parent != key_at(r.p0)) {
            wrong = r.file;
            return status::corrupt(damage::misplaced, wrong.path() + ": has another key than its tokens");
        }
    }
    if (what.anchor && (what.anchor->n_tokens > what.tokens.size() || what.anchor->k != key_at(what.anchor->n_tokens))) {
        wrong = what.anchor->file;
        return status::corrupt(damage::misplaced, wrong.path() + ": has another key than its tokens");
    }
    return status::ok();
}

// Begins to read the next runs, or the anchor behind the last. Files are read beside each other.
void shared_tier::start_batch(const shared_match & what, size_t & next, batch & out) {
    const auto read = [&](const shared_name & file, uint64_t file_size, std::vector<shared_read> parts) {
        out.files.push_back(file);
        out.jobs.push_back(start([file, file_size, parts = std::move(parts)](core & its, const std::atomic<bool> & abandoned) {
            return its.folder.read(file, file_size, parts, abandoned);
        }, true));
    };
    out       = {};
    out.first = next;
    if (next == what.runs.size() && what.anchor) {
        out.bytes  = what.anchor->size;
        out.anchor = std::make_shared<buffer>(static_cast<size_t>(what.anchor->size));
        read(what.anchor->file, what.anchor->file_size, { { what.anchor->offset, what.anchor->checksum, out.anchor } });
        next++;
    }
    std::vector<shared_read> parts;
    for (; next < what.runs.size() && (next == out.first || out.bytes + what.runs[next].size <= max_batch_bytes); next++) {
        const shared_run & r = what.runs[next];
        if (!parts.empty() && r.file.path() != what.runs[next - 1].file.path()) {
            read(what.runs[next - 1].file, what.runs[next - 1].file_size, std::move(parts));
            parts.clear();
        }
        out.data.push_back(std::make_shared<buffer>(static_cast<size_t>(r.size)));
        out.bytes += r.size;
        parts.push_back({ r.offset, r.checksum, out.data.back() });
    }
    if (!parts.empty()) {
        read(what.runs[next - 1].file, what.runs[next - 1].file_size, std::move(parts));
    }
    out.end = out.anchor != nullptr ? out.first : next;
}

// It goes through the door that everything goes through which is evaluated here.
status shared_tier::save_batch(const chain_root & root, const shared_match & what, const batch & got, uint64_t removals_before) {
    save_request request;
    request.root       = root;
    request.checkpoint = false;
    request.folded     = what.anchor.has_value();
    request.conversation.hash = what.conversation; // Whoever removes it finds what was fetched for it.
    size_t n_tokens    = 0;
    for (size_t i = got.first; i < got.end; i++) {
        const shared_run & r = what.runs[i];
        request.runs.push_back({ r.p0, r.p1, r.k, r.parent, got.data[i - got.first] });
        request.n_static = r.is_static ? r.p1 : request.n_static;
        request.backend  = r.file.place.backend;
        n_tokens         = r.p1;
    }
    if (got.anchor != nullptr) {
        request.anchors.push_back({ what.anchor->n_tokens, what.anchor->k, got.anchor });
        request.backend = what.anchor->file.place.backend;
        n_tokens        = what.anchor->n_tokens;
    }
    request.tokens.assign(what.tokens.begin(), what.tokens.begin() + static_cast<std::ptrdiff_t>(n_tokens));
    shared_lock guard(saving);
    if (removals_before != own->n_removals) {
        return status::miss("something was removed meanwhile");
    }
    size_t       n_saved = 0;
    const status saved   = target.save(request, n_saved);
    return saved.is_ok() && n_saved < n_tokens ? status::over_budget("the day's write budget is used up") : saved;
}

// What is gone or damaged there is not asked for again.
void shared_tier::note_lost(const status & why, const shared_name & file) {
    if (why.is_io_error()) {
        note_trouble(why);
    } else if (why.is_corrupt()) {
        own->index.forget({ file });
        (void) start([file](core & its, const std::atomic<bool> &) { return its.folder.remove(file); });
        mutex_lock guard(mu);
        counted.damaged++;
    } else if (why.is_miss() && !hangs()) {
        own->index.forget({ file });
    }
}

// It is in the folder, even if somebody removes it before the next look.
void shared_tier::note_fetched(const status & saved, const shared_match & what, const batch & got) {
    mutex_lock guard(mu);
    for (size_t i = got.first; saved.is_ok() && i < got.end; i++) {
        fetched.insert({ false, what.runs[i].k });
    }
    if (saved.is_ok() && got.anchor != nullptr) {
        fetched.insert({ true, what.anchor->k });
    }
}

// A local store that has no room now has none for the next prompt either, which would read all of it for nothing.
void shared_tier::note_refused(const status & by_store) {
    if (by_store.is_no_space() || by_store.is_io_error() || by_store.is_exhausted()) {
        mutex_lock guard(mu);
        fetch_after = clock::now() + options.off_for;
    }
}

status shared_tier::fetch(const chain_root & root, const shared_match & what, clock::duration at_most, uint64_t & n_bytes) {
    n_bytes = 0;
    if (stopping || !is_usable()) {
        return status::miss(options.dir + ": is off");
    }
    const auto     until           = at_most == clock::duration::max() ? clock::time_point::max() : clock::now() + at_most;
    const uint64_t removals_before = own->n_removals;
    shared_name    wrong;
    status         s               = check_keys(root, what, wrong);
    batch          now, ahead;
    if (is_being_removed(user_key(root.user), what)) {
        s = status::miss("it is being removed");
    } else if (!s.is_ok()) {
        note_lost(s, wrong);
    }
    try {
        size_t next = 0;
        if (s.is_ok()) {
            start_batch(what, next, now);
        }
        while (s.is_ok() && !now.is_empty()) {
            start_batch(what, next, ahead);
            for (size_t i = 0; i < now.jobs.size() && s.is_ok(); i++) {
                if (s = wait_for(now.jobs[i], until); !s.is_ok() && clock::now() < until && !stopping) {
                    note_lost(s, now.files[i]);
                }
            }
            if (s.is_ok()) {
                s = save_batch(root, what, now, removals_before);
                note_refused(s);
                note_fetched(s, what, now);
            }
            n_bytes += s.is_ok() ? now.bytes : 0;
            std::swap(now, ahead);
        }
    } catch (const std::bad_alloc &) {
        s = status::exhausted("no memory for what the shared folder has");
    }
    for (const batch & left : { now, ahead }) {
        for (const job_pointer & job : left.jobs) {
            job->abandoned = true;
        }
    }
    mutex_lock guard(mu);
    counted.bytes_fetched += n_bytes;
    counted.fetches        += s.is_ok();
    counted.tokens_fetched += s.is_ok() ? what.n_tokens - (what.runs.empty() ? what.n_tokens : what.runs.front().p0) : 0;
    counted.failed_fetches += !s.is_ok();
    return s;
}

//
// removing
//

std::set<key> shared_tier::stored_keys(const key & name_space) const {
    return rooms.known.read([&](const object_graph & all) {
        std::set<key> out;
        for (const auto & [id, s] : all.segments) {
            for (const run & r : s->runs) {
                if (s->name_space == name_space && r.attached) {
                    out.insert(r.k);
                }
            }
        }
        return out;
    });
}

// Also what goes on from such a run is of no use, or is the same conversation's at another server.
bool shared_tier::is_being_removed(const key & name_space, const shared_match & what) const {
    return std::any_of(what.runs.begin(), what.runs.end(), [&](const shared_run & r) {
        return notes.concerns(name_space, r.k) || notes.concerns(name_space, r.parent);
    }) || (what.anchor && notes.concerns(name_space, what.anchor->k));
}

// What is being fetched meanwhile is not saved any more.
shared_removal shared_tier::note_removal(shared_removal removal) {
    exclusive_lock guard(saving);
    notes.begin(removal);
    own->n_removals++;
    return removal;
}

shared_removal shared_tier::begin_removal(const key & name_space) {
    shared_removal out;
    out.name_space = name_space;
    out.everything = true;
    return note_removal(std::move(out));
}

// Named by what they alone use here: what is evicted meanwhile for want of room is none of the removal's
// business. With what has expired goes what no conversation has a name for. What was saved within a turn is its conversation's before
// that has a checkpoint, and so is what it went on from, if nobody else's.
shared_removal shared_tier::begin_removal(const key & name_space, const std::vector<uint64_t> & conversations) {
    const int64_t  expire_ms = rooms.options.expire_ms;
    const int64_t  now_ms    = rooms.e.now_ms();
    shared_removal out;
    out.name_space = name_space;
    out.runs       = rooms.known.read([&](const object_graph & all) {
        std::set<const conversation *> gone;
        for (const uint64_t hash : conversations) {
            if (const conversation * c = all.find({ name_space, hash })) {
                gone.insert(c);
            }
        }
        std::set<key> runs = own_runs(gone);
        const std::set<uint64_t> named(conversations.begin(), conversations.end());
        for (const auto & [id, s] : all.segments) {
            if (s->name_space == name_space && s->awaited_by != 0 && named.count(s->awaited_by) != 0) {
                for (const run * r = &s->runs.back(); r != nullptr && (r->owner == s.get() || r->owner->users.empty()); r = r->parent) {
                    runs.insert(r->k);
                }
            }
            if (s->name_space == name_space && s->users.empty() && expire_ms != 0 && now_ms - s->last_used_ms >= expire_ms) {
                for (const run & r : s->runs) {
                    runs.insert(r.k);
                }
            }
        }
        return runs;
    });
    return note_removal(std::move(out));
}

bool shared_tier::finish_removal(const shared_removal & removal, clock::duration at_most, uint64_t & n_files) {
    own->n_removals++;
    const bool done = is_usable() && remove_files({ removal }, clock::now() + at_most, n_files).is_ok();
    if (!done) {
        notes.is_due(removal.id);
        mutex_lock guard(mu);
        changed.notify_all();
    }
    return done;
}

// Whether a folder that cannot be read may have something of this user: the model's, a backend's, or the user's own.
static bool may_hide(const std::string & unreadable, const std::string & model, const key & name_space) {
    const size_t at = unreadable.find(model);
    if (at == std::string::npos) {
        return false;
    }
    const std::string below = unreadable.substr(at + model.size());
    return std::count(below.begin(), below.end(), '/') < 2 || below.find(hex(name_space)) != std::string::npos;
}

// The folder may have more of them than was known here. What could not be read there may be of them, too.
status shared_tier::remove_files(std::vector<shared_removal> removals, clock::time_point until, uint64_t & n_files) {
    bool is_any = false;
    for (shared_removal & removal : removals) {
        for (const key & k : removal.everything ? std::set<key>() : stored_keys(removal.name_space)) {
            removal.runs.erase(k); // Somebody needs it still.
        }
        is_any = is_any || removal.everything || !removal.runs.empty();
    }
    const auto what   = std::make_shared<const std::vector<shared_removal>>(std::move(removals));
    const auto n_gone = std::make_shared<std::atomic<uint64_t>>(0);
    const auto work   = [what, n_gone, model = hex(rooms.options.fingerprint), was_used = notes.has_used(options.dir)](
                          core & its, const std::atomic<bool> & abandoned) {
        folder_look now;
        if (status s = look_into(its.folder, its.index, was_used, abandoned, now); !s.is_ok()) {
            return s;
        }
        std::vector<shared_name> gone;
        status                   result = status::ok();
        for (const shared_removal & removal : *what) {
            for (const shared_name & name : removal.everything ? its.index.files_of_name_space(removal.name_space)
                                                               : its.index.files_of(removal.runs)) {
                if (const status s = abandoned ? given_up() : its.folder.remove(name); s.is_ok()) {
                    gone.push_back(name);
                    ++*n_gone;
                } else {
                    result = s; // The others go all the same.
                }
            }
            const bool is_hidden = (!removal.everything && now.n_unreadable_files > 0) ||
                std::any_of(now.unreadable_folders.begin(), now.unreadable_folders.end(),
                            [&](const std::string & path) { return may_hide(path, model, removal.name_space); });
            result = result.is_ok() && is_hidden ? status::io_error(now.problem) : result;
            its.index.forget(gone); // The next removal may find that nothing goes on from a static prefix any more.
            gone.clear();
        }
        return result;
    };
    const status s = is_any ? wait_for(start(work, true), until) : status::ok();
    n_files += *n_gone;
    for (size_t i = 0; i < what->size() && s.is_ok(); i++) {
        notes.is_done((*what)[i].id);
    }
    return s;
}

void shared_tier::remove_pending() {
    std::vector<shared_removal> left = notes.due();
    if (!left.empty()) {
        uint64_t n_files = 0;
        (void) remove_files(std::move(left), clock::time_point::max(), n_files).is_ok(); // Else the next look tries again.
    }
}

} // namespace kvtier

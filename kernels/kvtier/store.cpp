// The store's commands, each a short sequence over its rooms.
#include "kvtier/store.h"

#include "kvtier/recovery.h"
#include "kvtier/saver.h"
#include "kvtier/shared/shared_tier.h"
#include "kvtier/store_rooms.h"
#include "kvtier/trimming.h"

#include <algorithm>
#include <set>
#include <utility>

namespace kvtier {

uint64_t save_request::bytes() const {
    uint64_t n = tokens.size() * sizeof(token);
    for (const save_run & r : runs) {
        n += r.data != nullptr ? r.data->size() : 0;
    }
    for (const save_anchor & a : anchors) {
        n += a.data != nullptr ? a.data->size() : 0;
    }
    return n;
}

uint64_t save_request::conversation_name() const {
    return conversation.hash != 0 ? conversation.hash : conversation_hash(tokens.data(), tokens.size());
}

void save_request::cut_to(size_t n) {
    tokens.resize(std::min(n, tokens.size()));
    anchors.erase(std::remove_if(anchors.begin(), anchors.end(), [&](const save_anchor & a) { return a.n_tokens > n; }), anchors.end());
    roles.erase(std::remove_if(roles.begin(), roles.end(), [&](const role_mark & m) { return m.position >= n; }), roles.end());
}

void apply_limits(store_rooms & rooms, const key & name_space, const conversation_id * changed) {
    doomed_files          surplus;
    std::vector<uint64_t> left;
    rooms.known.forget_surplus(name_space, changed, rooms.e.now_ms(), surplus, left);
    rooms.files.remove(surplus);
    if (!left.empty() || !rooms.untrimmed.empty()) { // Whoever was retired cannot be removed by name any more, so nothing of it stays in files of others.
        uint64_t              freed = 0;
        std::set<std::string> folders;
        (void) trim(rooms, left, freed, folders).is_ok(); // What could not be cut is tried again.
        (void) rooms.files.sync_all(folders).is_ok();
    }
}

static void apply_all_limits(store_rooms & rooms) REQUIRES(rooms.files.writing) {
    const auto everyone = rooms.known.read([](const object_graph & all) { return all.turns; });
    for (const auto & [name_space, turn] : everyone) {
        apply_limits(rooms, name_space, nullptr);
    }
    (void) free_room(rooms, 0);
}

store::store(std::unique_ptr<store_rooms> rooms) : rooms(std::move(rooms)) {}

status store::open(env & e, const store_options & options, std::unique_ptr<store> & out) {
    if (options.page_size == 0 || options.page_size > format::max_page_size) {
        return status::incompatible("page size " + std::to_string(options.page_size) + " is not between 1 and " +
                                    std::to_string(format::max_page_size));
    }
    auto rooms = std::make_unique<store_rooms>(e, options);
    if (status s = rooms->files.take_folder(rooms->lock); !s.is_ok()) {
        return s;
    }
    uint64_t root_size = disk_block;
    (void) e.folder_size(options.root_dir, root_size).is_ok();
    rooms->bytes.budget().set_foreign(names::tag_file, root_size + disk_block); // the root itself and its tag
    rooms->bytes.begin();
    if (status s = recovery(*rooms).recover(); !s.is_ok()) {
        return s;
    }
    count_other_models(*rooms, rooms->bytes.budget().limit());
    if (rooms->files.may_change().is_ok()) {
        {
            mutex_lock writing(rooms->files.writing);
            apply_all_limits(*rooms);
        }
        rooms->bytes.budget().join(&rooms->room);
    }
    out.reset(new store(std::move(rooms)));
    return status::ok();
}

store::~store() {
    rooms->bytes.budget().leave(&rooms->room);
    if (rooms->files.may_change().is_ok()) {
        {
            mutex_lock            writing(rooms->files.writing);
            std::set<std::string> changed;
            uint64_t              freed = 0;
            rooms->files.finish_deferred();
            (void) trim(*rooms, {}, freed, changed).is_ok(); // What was being read when it was removed.
        }
        saver(*rooms).write_uses();
    }
}

match store::lookup(const lookup_request & request) const {
    return rooms->known.lookup(request);
}

match store::chain(const key & name_space, const key & end) const {
    return rooms->known.chain(name_space, end);
}

void store::touch(const match & m) {
    rooms->known.touch(m, rooms->e.now_ms());
}

save_request store::plan(const plan_request & request, const std::vector<save_run> & queued) const {
    return rooms->known.plan(request, queued);
}

status store::save(const save_request & request, size_t & n_tokens) {
    if (status s = rooms->files.may_change(); !s.is_ok()) {
        return s;
    }
    if (request.tokens.empty() || request.tokens.size() > format::max_tokens || request.root.page_size == 0 ||
        request.root.page_size > format::max_page_size || request.root.fingerprint != rooms->options.fingerprint) {
        return status::incompatible("a request of another model, or of no tokens");
    }
    const std::string & folder = rooms->layout.model();
    counters &          count  = rooms->count;
    status              result = saver(*rooms).save(request, n_tokens);
    uint64_t            size   = 0;
    if (result.is_miss() && rooms->e.folder_size(folder, size).is_miss()) {
        // Its lock is gone with it: made anew, it could be another process's as well.
        result = status::io_error(folder + ": somebody removed this folder while it was in use; a restart makes it anew");
    }
    if (result.is_ok()) {
        count.saves++;
    } else if (result.is_io_error() || result.is_corrupt()) {
        count.skipped_io_error++;
    } else if (result.is_exhausted()) {
        count.skipped_exhausted++;
    } else if (result.is_no_space() && !result.is_over_budget()) { // that is counted by the file
        count.skipped_no_space++;
    }
    return result;
}

void store::keep_unwritten(const save_request & request) {
    rooms->known.learn_unwritten(request, rooms->e.now_ms());
}

void store::give_up_unwritten(const save_request & request) {
    rooms->known.forget_unwritten(request);
}

// What was forgotten is not found again by this process, but by the next one, as long as its files are there.
static status not_removed(const status & why) {
    return why.is_ok() || why.is_miss() ? status::ok() : status::io_error(why.message() +
        "; what was to be removed is still on the disk, and a restart finds it again: mend that, and remove it again");
}

// Whose files lie there nobody knows, so none is named.
static status empty_quarantine(store_rooms & rooms, uint64_t & bytes_freed) REQUIRES(rooms.files.writing) {
    const status emptied = rooms.files.empty_quarantine(bytes_freed);
    return emptied.is_ok() || emptied.is_miss() ? status::ok()
                                                : not_removed(status::io_error(rooms.layout.quarantine() + ": not all of it can be removed"));
}

// Removes files of a name space or (null) of several. with_damaged: those do not tell whose they are.
static status remove_forgotten(store_rooms & rooms, const key * name_space, const doomed_files & files,
                               const std::vector<uint64_t> & left, uint64_t & bytes_freed,
                               bool with_damaged = true) REQUIRES(rooms.files.writing) {
    std::set<std::string> changed;
    bytes_freed = rooms.files.finish_deferred(&changed) + rooms.files.remove(files, &changed);
    const uint64_t of_known = bytes_freed;
    const status   emptied  = with_damaged ? empty_quarantine(rooms, bytes_freed) : status::ok();
    if (bytes_freed > of_known) {
        changed.insert(rooms.layout.model());
    }
    const status trimmed = trim(rooms, left, bytes_freed, changed);
    const status synced  = rooms.files.sync_own(changed, name_space);
    const status removed = not_removed(rooms.files.refused(name_space));
    return !removed.is_ok() ? removed : !emptied.is_ok() ? emptied : !trimmed.is_ok() ? trimmed : synced;
}

status store::remove_conversation(const key & name_space, uint64_t hash, uint64_t & bytes_freed) {
    if (status s = rooms->files.may_change(); !s.is_ok()) {
        return s;
    }
    mutex_lock            writing(rooms->files.writing);
    doomed_files          files;
    std::vector<uint64_t> left;
    // Asked again for what the disk refused to remove, it is not said to be unknown.
    const bool is_still_there = !rooms->files.refused(&name_space).is_ok();
    if (!rooms->known.forget_conversation({ name_space, hash }, files, left) && !is_still_there) {
        return status::miss("no conversation " + hex(hash));
    }
    rooms->known.forget_unusable(&name_space, files, left); // A later opening could attach it again.
    return remove_forgotten(*rooms, &name_space, files, left, bytes_freed);
}

status store::remove_name_space(const key & name_space, uint64_t & bytes_freed) {
    if (status s = rooms->files.may_change(); !s.is_ok()) {
        return s;
    }
    mutex_lock            writing(rooms->files.writing);
    doomed_files          files;
    std::set<std::string> changed = { rooms->layout.model() };
    // Once all is forgotten, readers give up no more of it: what they have given up is deferred by now.
    rooms->known.forget_name_space(name_space, files);
    bytes_freed = rooms->files.finish_deferred(&changed);
    bytes_freed += rooms->files.remove(files, &changed);
    const status emptied = empty_quarantine(*rooms, bytes_freed); // damaged files do not tell whose they are
    status       removed = rooms->files.refused(&name_space);
    if (name_space != key{}) {
        const std::string folder = rooms->layout.name_space(name_space);
        removed = rooms->files.remove_tree(folder, bytes_freed);
        changed.insert(names::parent(folder));
    }
    const status synced = rooms->files.sync_own(changed, &name_space);
    removed = not_removed(removed);
    return !removed.is_ok() ? removed : !emptied.is_ok() ? emptied : synced;
}

status store::set_lifetime(const key & name_space, uint64_t hash, const lifetime_change & change) {
    if (status s = rooms->files.may_change(); !s.is_ok()) {
        return s;
    }
    return saver(*rooms).set_lifetime({ name_space, hash }, change);
}

std::vector<conversation_id> store::expired() {
    return rooms->known.expired(rooms->e.now_ms());
}

status store::remove_expired(const std::vector<conversation_id> & ids, uint64_t & bytes_freed) {
    if (status s = rooms->files.may_change(); !s.is_ok()) {
        return s;
    }
    mutex_lock            writing(rooms->files.writing);
    doomed_files          files;
    std::vector<uint64_t> left;
    rooms->known.forget_expired(ids, rooms->e.now_ms(), files, left);
    if (!files.empty()) {
        rooms->known.forget_unusable(nullptr, files, left); // A later opening could attach it again.
    }
    return remove_forgotten(*rooms, nullptr, files, left, bytes_freed, !files.empty());
}

status store::gc(uint64_t & bytes_freed, bool with_expired) {
    if (status s = rooms->files.may_change(); !s.is_ok()) {
        return s;
    }
    status result = status::ok();
    {
        mutex_lock     writing(rooms->files.writing);
        const uint64_t before = rooms->bytes.bytes();
        doomed_files   files;
        std::vector<uint64_t> left;
        std::set<std::string> changed;
        uint64_t              freed = 0; // is in what the ledger tells
        rooms->files.finish_deferred();
        const status emptied = rooms->files.empty_quarantine(freed);
        if (with_expired) {
            rooms->known.forget_expired(rooms->known.expired(rooms->e.now_ms()), rooms->e.now_ms(), files, left);
        }
        rooms->known.forget_unusable(nullptr, files, left);
        rooms->files.remove(files, &changed);
        const status trimmed = trim(*rooms, left, freed, changed);
        (void) rooms->files.sync_all(changed).is_ok();
        apply_all_limits(*rooms);
        const status refused = rooms->files.refused(nullptr);
        result = not_removed(!refused.is_ok() ? refused : !emptied.is_ok() ? emptied : trimmed);
        const uint64_t after = rooms->bytes.bytes();
        bytes_freed = before > after ? before - after : 0;
    }
    saver(*rooms).write_uses();
    return result;
}

std::unique_ptr<shared_tier> store::share(env & e, shared_options options) {
    return std::make_unique<shared_tier>(e, *this, *rooms, std::move(options));
}

counters & store::count() {
    return rooms->count;
}

const store_options & store::options() const {
    return rooms->options;
}

} // namespace kvtier

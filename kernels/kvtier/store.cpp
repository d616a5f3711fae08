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

status store::remove_conversation(const key & name_space, uint64_t hash, uint64_t & bytes_freed) {
    if (status s = rooms->files.may_change(); !s.is_ok()) {
        return s;
    }
    mutex_lock            writing(rooms->files.writing);
    doomed_files          files;
    std::vector<uint64_t> left;
    if (!rooms->known.forget_conversation({ name_space, hash }, files, left)) {
        return status::miss("no conversation " + hex(hash));
    }
    rooms->known.forget_unusable(&name_space, files, left); // A later opening could attach it again.
    std::set<std::string> changed;
    bytes_freed = rooms->files.finish_deferred(&changed) + rooms->files.remove(files, &changed);
    if (const uint64_t damaged = rooms->files.empty_quarantine(); damaged > 0) { // they do not tell whose they are
        bytes_freed += damaged;
        changed.insert(rooms->layout.model());
    }
    const status trimmed = trim(*rooms, left, bytes_freed, changed);
    const status synced  = rooms->files.sync_all(changed);
    return trimmed.is_ok() ? synced : trimmed;
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
    bytes_freed += rooms->files.empty_quarantine(); // damaged files do not tell whose they are
    status removed = status::ok();
    if (name_space != key{}) {
        const std::string folder = rooms->layout.name_space(name_space);
        removed = rooms->files.remove_tree(folder, bytes_freed);
        changed.insert(names::parent(folder));
    }
    const status synced = rooms->files.sync_all(changed);
    return removed.is_ok() || removed.is_miss() ? synced : removed;
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
    std::set<std::string> changed;
    rooms->known.forget_expired(ids, rooms->e.now_ms(), files, left);
    if (!files.empty()) {
        rooms->known.forget_unusable(nullptr, files, left); // A later opening could attach it again.
    }
    bytes_freed = rooms->files.finish_deferred(&changed) + rooms->files.remove(files, &changed);
    if (!files.empty()) {
        bytes_freed += rooms->files.empty_quarantine(); // damaged files do not tell whose they are
        changed.insert(rooms->layout.model());
    }
    const status trimmed = trim(*rooms, left, bytes_freed, changed);
    const status synced  = rooms->files.sync_all(changed);
    return trimmed.is_ok() ? synced : trimmed;
}

status store::gc(uint64_t & bytes_freed, bool with_expired) {
    if (status s = rooms->files.may_change(); !s.is_ok()) {
        return s;
    }
    {
        mutex_lock     writing(rooms->files.writing);
        const uint64_t before = rooms->bytes.bytes();
        doomed_files   files;
        rooms->files.finish_deferred();
        rooms->files.empty_quarantine();
        std::vector<uint64_t> left;
        std::set<std::string> changed;
        uint64_t              trimmed = 0; // is in what the ledger tells
        if (with_expired) {
            rooms->known.forget_expired(rooms->known.expired(rooms->e.now_ms()), rooms->e.now_ms(), files, left);
        }
        rooms->known.forget_unusable(nullptr, files, left);
        rooms->files.remove(files, &changed);
        (void) trim(*rooms, left, trimmed, changed).is_ok(); // What could not be cut is tried again.
        (void) rooms->files.sync_all(changed).is_ok();
        apply_all_limits(*rooms);
        const uint64_t after = rooms->bytes.bytes();
        bytes_freed = before > after ? before - after : 0;
    }
    saver(*rooms).write_uses();
    return status::ok();
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

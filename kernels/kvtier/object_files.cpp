#include "kvtier/object_files.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace kvtier {

object_files::object_files(env & e, const file_layout & layout, ledger & bytes, counters & count, bool inspect)
    : e(e), layout(layout), bytes(bytes), count(count), inspect(inspect) {}

status object_files::may_change() const {
    return inspect ? status::io_error(layout.model() + ": opened for inspection only") : status::ok();
}

status object_files::take_folder(std::unique_ptr<file_lock> & lock) {
    if (inspect) {
        return e.lock_file(layout.lock(), lock);
    }
    if (status s = e.make_dir(layout.root()); !s.is_ok()) {
        return s;
    }
    // The root may be new, so its name must last too. That its folder is somebody else's is no reason to fail.
    (void) e.sync_dir(names::parent(layout.root())).is_ok();
    // Somebody may be removing the model's folder: it is made again then. Its lock is held for a moment before the folder goes,
    // which is told from a store's only by waiting.
    constexpr int max_attempts = 10;
    status        s = status::ok();
    for (int i = 0; i < max_attempts && lock == nullptr; i++) {
        if (s.is_busy()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        if (s = e.make_dir(layout.model()); !s.is_ok()) {
            return s;
        }
        if (s = e.lock_file(layout.lock(), lock); !s.is_ok() && !s.is_miss() && !s.is_busy()) {
            return s;
        }
    }
    if (!s.is_ok()) {
        return s;
    }
    std::unique_ptr<writable_file> tag;
    if (e.create_file(layout.tag(), tag).is_ok()) {
        const const_span text = { names::tag_text, sizeof(names::tag_text) - 1 };
        if (s = tag->append(&text, 1); !s.is_ok()) {
            return s;
        }
    }
    return e.sync_dir(layout.root());
}

status object_files::make_folder(const std::string & parent, const std::string & name, reservation) {
    const std::string path = names::join(parent, name);
    status            s    = change([&] { return e.make_dir(path); });
    if (s.is_ok()) {
        s = sync(parent);
        if (!s.is_ok()) {
            (void) change([&] { return e.remove_dir(path); }).is_ok(); // the next save tries again, from the start
        }
        count_folder(path);
    }
    count_folder(parent);
    return s;
}

status object_files::write(const std::string & folder, const std::string & name, const std::vector<const_span> & parts,
                           bool durable, reservation room) {
    uint64_t size = 0;
    for (const const_span & part : parts) {
        size += part.size;
    }
    const std::string              path = names::join(folder, name);
    const std::string              temp = names::join(folder, names::temp(next_temp++));
    std::unique_ptr<writable_file> file;
    if (status s = change([&] { return e.create_file(temp, file); }); !s.is_ok()) {
        return s;
    }
    status s = file->append(parts.data(), parts.size());
    if (s.is_ok() && durable) {
        count.syncs++;
        s = file->sync();
    }
    if (const status closed = file->close(); s.is_ok()) {
        s = closed;
    }
    if (s.is_ok()) {
        s = e.rename(temp, path);
    }
    count_folder(folder);
    bytes.count(s.is_ok() ? path : temp, disk_size(size), room);
    if (!s.is_ok()) {
        remove_file(temp);
        return s;
    }
    forget_deferred(path);
    count.bytes_written += size;
    return s;
}

status object_files::sync(const std::string & folder) {
    count.syncs++;
    const status s = change([&] { return e.sync_dir(folder); });
    if (s.is_ok() || s.is_miss()) {
        unsynced.erase(folder);
    } else {
        unsynced.insert(folder);
    }
    return s;
}

status object_files::sync_all(const std::set<std::string> & folders) {
    status result = status::ok();
    for (const std::string & folder : folders) {
        const status s = sync(folder);
        if (result.is_ok() && !s.is_miss()) {
            result = s;
        }
    }
    return result;
}

void object_files::owe_sync(const std::string & folder) {
    unsynced.insert(folder);
}

// Null: of whatever name space.
static bool is_of(const file_layout & layout, const std::string & folder, const key * name_space) {
    return name_space == nullptr || (*name_space == key{} ? !names::is_in(folder, layout.users())
                                                          : names::is_in(folder, layout.name_space(*name_space)));
}

status object_files::sync_own(const std::set<std::string> & folders, const key * name_space) {
    std::set<std::string> own;
    std::set<std::string> others;
    for (const std::string & folder : folders) {
        const bool is_common = folder == layout.model() || folder == layout.users();
        (is_common || is_of(layout, folder, name_space) ? own : others).insert(folder);
    }
    (void) sync_all(others).is_ok();
    return sync_all(own);
}

status object_files::sync_owed(const std::vector<std::string> & folders) {
    std::set<std::string> owed;
    for (const std::string & folder : folders) {
        if (unsynced.count(folder) != 0) {
            owed.insert(folder);
        }
    }
    return sync_all(owed);
}

void object_files::remove_file(const std::string & path) {
    if (const status removed = change([&] { return e.remove_file(path); }); removed.is_ok() || removed.is_miss()) {
        bytes.remove(path);
    }
}

void object_files::remove_folder(const std::string & path) {
    if (change([&] { return e.remove_dir(path); }).is_ok()) {
        bytes.remove(path);
    }
}

uint64_t object_files::remove(const doomed_files & files, std::set<std::string> * changed) {
    uint64_t              freed = 0;
    std::set<std::string> touched;
    std::set<std::string> kept; // folders in which something stays
    doomed_files          again;
    for (size_t i = 0; i < files.size(); i++) {
        const doomed_file & file = files[i];
        const std::string   path = file.path();
        const status        s    = file.what == doomed_file::fate::set_aside ? set_aside(file.folder, file.name)
                                 : change([&] { return file.is_folder() ? e.remove_dir(path) : e.remove_file(path); });
        touched.insert(file.folder);
        if (s.is_ok() || s.is_miss()) {
            freed += bytes.remove(path);
            touched.erase(path);
        } else if (!file.is_folder() || kept.count(path) != 0) { // a folder with other things in it is none of ours to remove
            again.push_back(file);
            again.back().why = s;
            kept.insert(file.folder);
        }
        const auto is_synced      = [](const doomed_file & f) { return f.what == doomed_file::fate::remove_and_sync; };
        const bool last_of_folder = i + 1 == files.size() || files[i + 1].folder != file.folder || !is_synced(files[i + 1]);
        if (is_synced(file) && last_of_folder && s.is_ok()) {
            count.syncs++;
            (void) e.sync_dir(file.folder).is_ok(); // if this fails, a checkpoint may come back and be set aside
        }
    }
    for (const std::string & folder : touched) {
        count_folder(folder);
    }
    if (changed != nullptr) {
        changed->insert(touched.begin(), touched.end());
    }
    defer(again);
    return freed;
}

// Only what was counted is given back: files may lie there that nobody has seen before.
status object_files::remove_tree(const std::string & path, uint64_t & bytes_freed) {
    const status removed = change([&] { return kvtier::remove_tree(e, path, &bytes_freed); });
    for (const std::string & known : bytes.paths_in(path)) {
        if (removed.is_ok() || is_gone(known)) {
            bytes.remove(known);
            unread.erase(known);
        }
    }
    return removed;
}

status object_files::refused(const key * name_space) const {
    mutex_lock guard(mu);
    for (const doomed_file & file : deferred) {
        if (!file.is_folder() && !file.why.is_ok() && is_of(layout, file.folder, name_space)) {
            return file.why;
        }
    }
    return status::ok();
}

status object_files::set_aside(const std::string & folder, const std::string & name) {
    const std::string aside = layout.quarantine();
    const std::string path  = names::join(folder, name);
    const status      made  = bytes.has(aside) ? status::ok() : change([&] { return e.make_dir(aside); });
    if (!made.is_ok()) {
        remove_file(path); // rather gone than in the way, and counted, for ever
        return bytes.has(path) ? made : status::ok();
    }
    const std::string target = names::join(aside, names::aside(name, e.now_ms(), next_quarantine++));
    status            moved  = change([&] { return e.rename(path, target); });
    if (moved.is_miss() && !is_gone(path)) { // Somebody has removed the quarantine.
        if (status again = change([&] { return e.make_dir(aside); }); !again.is_ok()) {
            return again;
        }
        moved = change([&] { return e.rename(path, target); });
    }
    if (moved.is_ok()) {
        bytes.move(path, target);
    } else if (moved.is_miss()) {
        bytes.remove(path);
    }
    count_folder(aside);
    return moved;
}

// What lies in quarantine is counted by the entry: a file, or a whole tree that was in the way.
void object_files::count_quarantine() {
    const std::string      aside = layout.quarantine();
    std::vector<dir_entry> entries;
    (void) e.list_dir(aside, entries).is_ok(); // one that cannot be read is counted for itself
    for (const dir_entry & entry : entries) {
        const std::string path = names::join(aside, entry.name);
        uint64_t          size = disk_size(entry.size);
        if (entry.type == file_type::folder) {
            (void) measure_tree(e, path, size).is_ok(); // as far as it can be read
        }
        bytes.count(path, size);
    }
    next_quarantine += entries.size();
    count_folder(aside);
}

status object_files::empty_quarantine(uint64_t & bytes_freed) {
    const std::string aside = layout.quarantine();
    count_quarantine(); // Who owns the folder may have moved something there.
    const status removed = bytes.has(aside) ? remove_tree(aside, bytes_freed) : status::ok();
    if (!removed.is_ok()) {
        count_quarantine();
    }
    return removed;
}

void object_files::count_folder(const std::string & path) {
    uint64_t     size   = 0;
    const status looked = e.folder_size(path, size);
    if (looked.is_ok()) {
        bytes.count(path, size);
    } else if (looked.is_miss()) {
        bytes.remove(path);
    }
}

void object_files::leave_alone(const std::string & folder) {
    unread.insert(folder);
    count_folder(folder);
}

status object_files::may_add_to(const std::string & folder) const {
    return unread.count(folder) == 0 ? status::ok() : status::io_error(
        folder + ": could not be read when the store was opened, so nothing is added to it; restart when it can be read");
}

void object_files::note(const std::string & path, const status & why) {
    constexpr size_t max_notes = 1000; // counters go on; a list of everything on a dying disk helps nobody
    mutex_lock       guard(mu);
    if (damaged.size() < max_notes) {
        damaged.push_back({ path, why });
    }
}

std::vector<damage_note> object_files::notes() const {
    mutex_lock guard(mu);
    return damaged;
}

void object_files::defer(const doomed_files & files) {
    mutex_lock guard(mu);
    deferred.insert(deferred.end(), files.begin(), files.end());
}

uint64_t object_files::finish_deferred(std::set<std::string> * changed) {
    doomed_files files;
    if (may_change().is_ok()) {
        mutex_lock guard(mu);
        files.swap(deferred);
    }
    // Folders come last: something may have been put there, and given up as well, since they were deferred.
    std::stable_partition(files.begin(), files.end(), [](const doomed_file & file) { return !file.is_folder(); });
    return remove(files, changed);
}

// A file of no use has been replaced by one that is wanted: if it was to be removed, that is off.
void object_files::forget_deferred(const std::string & path) {
    mutex_lock guard(mu);
    deferred.erase(std::remove_if(deferred.begin(), deferred.end(),
                                  [&](const doomed_file & file) { return !file.is_folder() && file.path() == path; }),
                   deferred.end());
}

// A folder's size can be asked for whatever lies under the name.
bool object_files::is_gone(const std::string & path) const {
    uint64_t size = 0;
    return e.folder_size(path, size).is_miss();
}

} // namespace kvtier

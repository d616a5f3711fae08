#include "kvtier/recovery.h"

#include "kvtier/file_head.h"

#include <algorithm>
#include <utility>

namespace kvtier {

status recovery::recover() {
    mutex_lock writing(rooms.files.writing);
    if (status s = scan_name_space(key{}); !s.is_ok()) {
        return s;
    }
    const std::string      users_dir = rooms.layout.users();
    std::vector<dir_entry> users;
    (void) list_finished(users_dir, users).is_ok(); // anonymous state is of use without that of the users
    for (const dir_entry & entry : users) {
        key user;
        if (entry.type == file_type::folder && parse_hex(entry.name, user) && user != key{}) {
            (void) scan_name_space(user).is_ok(); // a folder that cannot be read is its user's loss alone
        } else {
            refuse(users_dir, entry, status::corrupt(damage::misplaced, "not the folder of a user"));
        }
    }

    // The oldest come first: where two segments hold the same run, the first one keeps it.
    std::sort(segments.begin(), segments.end(), [](const auto & a, const auto & b) { return a->id < b->id; });
    found.add(segments);
    for (const auto & s : segments) {
        rooms.count.loose_segments += s->n_attached == 0;
    }
    for (const auto & a : anchors) {
        found.add(a);
    }
    for (const conversation_id & id : conversations) {
        scan_conversation(id);
    }
    join_ages();
    rooms.known.begin(std::move(found));
    return status::ok();
}

status recovery::scan_name_space(const key & name_space) {
    const std::string      folder = rooms.layout.name_space(name_space);
    std::vector<dir_entry> entries;
    if (status s = list_finished(folder, entries); !s.is_ok()) {
        return s;
    }
    rooms.files.count_folder(folder);
    rooms.files.owe_sync(folder);
    found.turns[name_space] = 0;
    for (const dir_entry & entry : entries) {
        const bool is_lock = name_space == key{} && entry.type == file_type::file && entry.name == names::lock_file;
        if (entry.type == file_type::folder && scan_known_folder(name_space, entry)) {
            continue;
        }
        if (is_lock) {
            rooms.files.found(rooms.layout.lock(), disk_block);
        } else if (entry.name[0] == '.') {
            rooms.files.found(names::join(folder, entry.name), disk_size(entry.size)); // a desktop's, not ours
        } else {
            key        k;
            uint64_t   number;
            const bool known = entry.name == names::pages || entry.name == names::anchors ||
                               entry.name == names::quarantine || entry.name == names::users ||
                               parse_hex(entry.name, number) || parse_hex(entry.name, k);
            refuse(folder, entry, known ? status::corrupt(damage::wrong_type, "not a folder")
                                        : status::corrupt(damage::misplaced, "not a name of this store"));
        }
    }
    return status::ok();
}

// False: no folder of this name belongs here.
bool recovery::scan_known_folder(const key & name_space, const dir_entry & entry) {
    const bool        anonymous = name_space == key{};
    const std::string path      = names::join(rooms.layout.name_space(name_space), entry.name);
    uint64_t          hash      = 0;
    if (entry.name == names::pages || entry.name == names::anchors) {
        rooms.files.count_folder(path);
        rooms.files.owe_sync(path);
        scan_objects(name_space, path, entry.name == names::pages);
    } else if (parse_hex(entry.name, hash)) {
        conversations.emplace_back(name_space, hash);
    } else if (anonymous && entry.name == names::quarantine) {
        rooms.files.count_quarantine();
    } else if (anonymous && entry.name == names::users) {
        rooms.files.count_folder(path); // its folders are scanned apart
        rooms.files.owe_sync(path);
    } else {
        return false;
    }
    return true;
}

void recovery::scan_objects(const key & name_space, const std::string & folder, bool are_pages) {
    std::vector<dir_entry> inside;
    (void) list_finished(folder, inside).is_ok(); // a folder that cannot be read is one without files
    for (const dir_entry & file : inside) {
        if (are_pages) {
            scan_segment(name_space, folder, file);
        } else {
            scan_anchor(name_space, folder, file);
        }
    }
}

// What a folder holds, less unfinished files: those go. One that cannot be read is left alone.
status recovery::list_finished(const std::string & folder, std::vector<dir_entry> & out) {
    std::vector<dir_entry> entries;
    if (status s = rooms.e.list_dir(folder, entries); !s.is_ok()) {
        if (!s.is_miss()) {
            rooms.count.read_errors++;
            rooms.files.leave_alone(folder);
            unread.try_emplace(folder);
            // Segments may lie there, and no two have the same number: the clock is ahead of all that were ever given.
            found.next_segment = std::max(found.next_segment, static_cast<uint64_t>(std::max<int64_t>(rooms.e.now_ms(), 1)));
        }
        return s;
    }
    for (dir_entry & entry : entries) {
        if (names::is_temp(entry.name)) {
            remove_unfinished(folder, entry);
        } else {
            out.push_back(std::move(entry));
        }
    }
    return status::ok();
}

void recovery::remove_unfinished(const std::string & folder, const dir_entry & entry) {
    rooms.count.temporary_removed++;
    const std::string path = names::join(folder, entry.name);
    rooms.files.found(path, disk_size(entry.size));
    if (entry.type == file_type::folder) {
        uint64_t freed = 0;
        (void) rooms.files.remove_tree(path, freed).is_ok(); // what stays is counted
    } else {
        rooms.files.remove_file(path);
    }
}

// Deals with a file that cannot be used. Only damage moves it: a disk that fails to read today may read tomorrow, and a file
// of another format version belongs to another version of the program, which will want it.
void recovery::refuse(const std::string & folder, const dir_entry & entry, const status & why) {
    if (why.is_miss()) {
        return;
    }
    const std::string path = names::join(folder, entry.name);
    uint64_t          size = disk_size(entry.size);
    if (entry.type == file_type::folder && !measure_tree(rooms.e, path, size).is_ok()) {
        size = disk_block;
    }
    rooms.files.found(path, size);
    if (why.is_damaged()) {
        rooms.count.count_damage(why.reason());
        rooms.files.note(path, why);
    } else {
        rooms.count.read_errors++;
        unread[folder].push_back(entry.name);
    }
    if (why.is_corrupt()) {
        if (const status s = rooms.files.set_aside(folder, entry.name); !s.is_ok() && !s.is_miss()) {
            rooms.files.defer({ { folder, entry.name, doomed_file::fate::set_aside, s } });
        }
    }
}

bool recovery::is_own(const file_header & header, const key & name_space) const {
    return header.name_space == name_space && header.fingerprint == rooms.options.fingerprint;
}

// Reads the head of one file for `learn`, which decodes it and makes it known, or says why it cannot be used.
bool recovery::scan_file(const std::string & folder, const dir_entry & entry, uint16_t kind, const learn_head & learn) {
    const std::string    path = names::join(folder, entry.name);
    std::vector<uint8_t> bytes;
    uint64_t             file_size = 0;
    status               s = status::corrupt(damage::wrong_type, "not a plain file");
    if (entry.type == file_type::file) {
        s = read_head(rooms.e, path, kind, file_size, bytes);
    }
    if (s.is_ok()) {
        s = check_space(entry.size, file_size).in(path);
    }
    if (s.is_ok()) {
        s = learn(bytes, file_size);
    }
    if (!s.is_ok()) {
        refuse(folder, entry, s);
        return false;
    }
    rooms.files.found(path, disk_size(file_size));
    return true;
}

void recovery::scan_segment(const key & name_space, const std::string & folder, const dir_entry & entry) {
    uint64_t id = 0;
    if (!names::parse_segment(entry.name, id)) {
        refuse(folder, entry, status::corrupt(damage::misplaced, "not the name of a segment"));
        return;
    }
    if (id < names::max_segment / 2) { // a name near the end of the range must not leave none for what is saved next
        found.next_segment = std::max(found.next_segment, id + 1);
    }
    scan_file(folder, entry, format::kind_segment, [&](const std::vector<uint8_t> & bytes, uint64_t file_size) {
        segment_head head;
        if (status s = decode_segment(bytes.data(), bytes.size(), file_size, head); !s.is_ok()) {
            return s.in(names::join(folder, entry.name));
        }
        if (head.id != id || !is_own(head.header, name_space) || !ids.insert(id).second) {
            return status::corrupt(damage::misplaced, "segment of another name, user or model");
        }
        segments.push_back(make_segment(std::move(head)));
        return status::ok();
    });
}

void recovery::scan_anchor(const key & name_space, const std::string & folder, const dir_entry & entry) {
    key k;
    if (!names::parse_anchor(entry.name, k)) {
        refuse(folder, entry, status::corrupt(damage::misplaced, "not the name of an anchor"));
        return;
    }
    scan_file(folder, entry, format::kind_anchor, [&](const std::vector<uint8_t> & bytes, uint64_t file_size) {
        anchor_head head;
        if (status s = decode_anchor(bytes.data(), bytes.size(), file_size, head); !s.is_ok()) {
            return s.in(names::join(folder, entry.name));
        }
        if (head.k != k || !is_own(head.header, name_space)) {
            return status::corrupt(damage::misplaced, "anchor of another name, user or model");
        }
        anchors.push_back(make_anchor(head));
        return status::ok();
    });
}

void recovery::scan_conversation(const conversation_id & id) {
    const std::string      folder = rooms.layout.conversation(id.first, id.second);
    std::vector<dir_entry> entries;
    if (!list_finished(folder, entries).is_ok()) {
        return;
    }
    rooms.files.count_folder(folder);
    conversation &    c    = found.add(id);
    const dir_entry * uses = nullptr;
    incomplete_checkpoints incomplete;
    for (const dir_entry & entry : entries) {
        if (entry.name == names::index_file) {
            uses = &entry;
        } else {
            scan_checkpoint(c, folder, entry, incomplete);
        }
    }
    // The newest that can be cut stands for the conversation, if nothing else does.
    for (auto it = incomplete.rbegin(); it != incomplete.rend() && c.checkpoints.empty() && unread.count(folder) == 0; ++it) {
        keep_shorter(c, folder, it->second.second);
    }
    for (const auto & [number, lost] : incomplete) {
        const status why = status::corrupt(damage::incomplete, "names state that is not stored");
        if (c.checkpoints.count(number) == 0) {
            refuse(folder, lost.first, why);
        } else { // A shorter one could not be written: the next opening tries again.
            rooms.count.count_damage(why.reason());
            rooms.files.note(names::join(folder, lost.first.name), why);
        }
    }
    for (const auto & [number, point] : c.checkpoints) {
        c.last_turn    = std::max(c.last_turn, point->turn);
        c.last_used_ms = std::max(c.last_used_ms, point->created_ms);
    }
    if (uses != nullptr) {
        scan_uses(c, folder, *uses);
    }
    uint64_t & turn = found.turns[id.first];
    turn = std::max(turn, c.last_turn);
    if (const auto it = unread.find(folder); it != unread.end()) {
        c.unread = it->second;
    }
    if (c.checkpoints.empty() && !c.unread.empty()) {
        found.unread.insert(found.conversations.extract(id)); // How long it is to be kept must not be lost meanwhile.
    } else if (c.checkpoints.empty()) {
        if (c.index_size > 0) {
            rooms.files.remove_file(names::join(folder, names::index_file));
        }
        rooms.files.remove_folder(folder);
        found.conversations.erase(id);
    }
}

void recovery::scan_checkpoint(conversation & c, const std::string & folder, const dir_entry & entry,
                               incomplete_checkpoints & incomplete) {
    uint32_t number = 0;
    if (!names::parse_checkpoint(entry.name, number)) {
        refuse(folder, entry, status::corrupt(damage::misplaced, "not the name of a checkpoint"));
        return;
    }
    if (number < names::max_checkpoint / 2) {
        c.next_number = std::max(c.next_number, number + 1);
    }
    scan_file(folder, entry, format::kind_checkpoint, [&](const std::vector<uint8_t> & bytes, uint64_t file_size) {
        checkpoint_record record;
        if (status s = decode_checkpoint(bytes.data(), bytes.size(), file_size, record); !s.is_ok()) {
            return s.in(names::join(folder, entry.name));
        }
        if (record.conversation != c.hash || record.number != number || !is_own(record.header, c.name_space)) {
            return status::corrupt(damage::misplaced, "checkpoint of another name, conversation, user or model");
        }
        // A run is in the index only with all runs before it, so the last one stands for the whole chain.
        run * end = found.index.find(record.runs.back().k);
        if (end == nullptr || end->p1 != record.n_tokens || end->owner->name_space != c.name_space ||
            end->owner->root != record.header.root) {
            if (end == nullptr && unread.count(rooms.layout.pages(c.name_space)) != 0) {
                return status::io_error(names::join(folder, entry.name) + ": names state that may be in what could not be read");
            }
            incomplete[number] = { entry, std::move(record) };
            return status::ok();
        }
        found.add(make_checkpoint(record, file_size), c, *end);
        c.title = c.title.empty() ? record.title : c.title; // all of a conversation's have the same
        return status::ok();
    });
}

// A conversation that has lost the end of its last checkpoint goes on with a shorter one: what is left of it could not be listed
// or removed by name, and would not expire. A static prefix alone needs no name.
void recovery::keep_shorter(conversation & c, const std::string & folder, checkpoint_record & record) {
    run * end = nullptr;
    for (const chain_point & point : record.runs) {
        run * const r = found.index.find(point.k);
        const bool  is_its = r != nullptr && r->p1 == point.n && r->owner->name_space == c.name_space &&
                             r->owner->root == record.header.root;
        end = is_its ? r : end;
    }
    if (end == nullptr || end->p1 <= record.n_static) {
        return;
    }
    const uint32_t before = std::exchange(record.number, c.next_number);
    record.cut_to(end->p1);
    const std::vector<uint8_t> bytes = encode_checkpoint(record);
    status written = rooms.files.write(folder, names::checkpoint(record.number), { { bytes.data(), bytes.size() } }, true, {});
    written        = written.is_ok() ? rooms.files.sync(folder) : written;
    if (written.is_ok()) {
        c.next_number++;
    } else {
        rooms.files.remove_file(names::join(folder, names::checkpoint(record.number)));
        record.number = before;
    }
    found.add(make_checkpoint(record, bytes.size()), c, *end);
    c.title = record.title;
}

// This file only says when things were used; without it they count as used when they were saved.
void recovery::scan_uses(conversation & c, const std::string & folder, const dir_entry & entry) {
    const auto learn = [&](const std::vector<uint8_t> & bytes, uint64_t file_size) {
        index_record record;
        if (status s = decode_index(bytes.data(), bytes.size(), file_size, record); !s.is_ok()) {
            return s.in(names::join(folder, entry.name));
        }
        if (record.conversation != c.hash || !is_own(record.header, c.name_space)) {
            return status::corrupt(damage::misplaced, "index of another conversation, user or model");
        }
        // One that knows the newest checkpoint was written after it, whatever the clock said at either time.
        const bool is_newest = !c.checkpoints.empty() && std::any_of(record.entries.begin(), record.entries.end(),
            [&](const use_entry & use) { return use.number == c.checkpoints.rbegin()->first; });
        c.index_size   = file_size;
        c.last_turn    = std::max(c.last_turn, record.last_turn);
        c.last_used_ms = is_newest ? record.last_used_ms : std::max(c.last_used_ms, record.last_used_ms);
        c.hits         = record.hits;
        c.life         = record.life;
        for (const use_entry & use : record.entries) {
            const auto it = c.checkpoints.find(use.number);
            if (it != c.checkpoints.end()) {
                it->second->last_turn    = std::max(it->second->last_turn, use.last_turn);
                it->second->last_used_ms = std::max(it->second->last_used_ms, use.last_used_ms);
                it->second->hits         = use.hits;
            }
        }
        return status::ok();
    };
    const bool is_read = scan_file(folder, entry, format::kind_index, learn);
    c.index_stale = !is_read && unread.count(folder) == 0; // One that could not be read is not written over needlessly.
}

// State was last used when a checkpoint was that needs it.
void recovery::join_ages() {
    for (const auto & [id, c] : found.conversations) {
        for (const auto & [number, point] : c->checkpoints) {
            for (segment * s : point->segments) {
                s->last_turn    = std::max(s->last_turn, point->last_turn);
                s->last_used_ms = std::max(s->last_used_ms, point->last_used_ms);
            }
        }
    }
    for (const auto & a : anchors) {
        if (a->at != nullptr) {
            a->last_turn    = a->at->owner->last_turn;
            a->last_used_ms = a->at->owner->last_used_ms;
        }
    }
}

} // namespace kvtier

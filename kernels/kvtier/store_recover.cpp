// Opening a store: learn what is there from the files themselves, and believe none of them unchecked.
//
// There is no catalogue that could be stale or lost. Heads of segments and anchors and all checkpoints are read; payload
// is not, it is checked when it is used.
#include "kvtier/store_state.h"

#include <algorithm>

namespace kvtier {

// One read fetches the head of most files whole.
static constexpr size_t first_read = 64 << 10;

struct scan_result {
    std::vector<std::shared_ptr<segment>> segments;
    std::vector<std::shared_ptr<anchor>>  anchors;
    std::vector<conversation_id>          conversations;
};

status store_state::read_head(const std::string & path, uint16_t kind, uint64_t & file_size,
                              std::vector<uint8_t> & out) const {
    std::unique_ptr<readable_file> file;
    if (status s = e.open_file(path, file); !s.is_ok()) {
        return s;
    }
    file_size = file->size();
    out.resize(static_cast<size_t>(std::min<uint64_t>(file_size, first_read)));
    span whole = { out.data(), out.size() };
    if (status s = file->read(0, &whole, 1); !s.is_ok()) {
        return s;
    }
    size_t head_size = 0;
    if (status s = decode_head_size(out.data(), out.size(), kind, file_size, head_size); !s.is_ok()) {
        return s.in(path);
    }
    const size_t have = out.size();
    out.resize(head_size); // at most the size of the file
    if (head_size > have) {
        span rest = { out.data() + have, head_size - have };
        return file->read(have, &rest, 1);
    }
    return status::ok();
}

// A file that cannot be used. Only damage moves it: a disk that fails to read today may read tomorrow, and a file of
// another format version belongs to another version of the program, which will want it.
void store_state::refuse(const std::string & folder, const dir_entry & entry, const status & why) {
    if (why.is_miss()) {
        return;
    }
    const std::string path = names::join(folder, entry.name);
    uint64_t          size = disk_size(entry.size);
    if (entry.type == file_type::folder && !measure_tree(e, path, size).is_ok()) {
        size = disk_block;
    }
    charge(size);
    if (why.is_damaged()) {
        count.count_damage(why.reason());
        note(path, why);
    } else {
        count.read_errors++;
    }
    if (why.is_corrupt() && !options.inspect) {
        set_aside(folder, entry.name, size);
    } else {
        leave(path, size);
    }
}

void store_state::remove_unfinished(const std::string & folder, const dir_entry & entry) {
    count.temporary_removed++;
    const std::string path = names::join(folder, entry.name);
    if (!options.inspect) {
        const status s = entry.type == file_type::folder ? remove_tree(e, path, nullptr) : e.remove_file(path);
        if (s.is_ok() || s.is_miss()) {
            return;
        }
    }
    charge(disk_size(entry.size));
    leave(path, disk_size(entry.size));
}

static status wrong_type() {
    return status::corrupt(damage::wrong_type, "not a plain file");
}

static status misplaced(const char * what) {
    return status::corrupt(damage::misplaced, what);
}

bool store_state::is_own(const file_header & header, const key & name_space) const {
    return header.name_space == name_space && header.fingerprint == options.fingerprint;
}

// What a folder holds, less unfinished files: those go.
status store_state::list_finished(const std::string & folder, std::vector<dir_entry> & out) {
    std::vector<dir_entry> entries;
    if (status s = e.list_dir(folder, entries); !s.is_ok()) {
        count.read_errors += !s.is_miss();
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

// A restore takes as much memory as a file says it has state. No state shrinks to a 64th by compression: a large file with
// so little behind it was made up.
static status check_space(uint64_t on_disk, uint64_t file_size) {
    constexpr uint64_t max_harmless = uint64_t(256) << 20;
    constexpr uint64_t max_ratio    = 64;
    return file_size <= max_harmless || file_size / max_ratio <= on_disk
        ? status::ok() : status::corrupt(damage::bad_length, "has " + std::to_string(file_size) + " bytes, most of them holes");
}

// Reads the head of one file for `learn`, which decodes it and makes it known, or says why it cannot be used.
bool store_state::scan_file(const std::string & folder, const dir_entry & entry, uint16_t kind, const learn_head & learn) {
    std::vector<uint8_t> bytes;
    uint64_t             file_size = 0;
    status               s = wrong_type();
    if (entry.type == file_type::file) {
        s = read_head(names::join(folder, entry.name), kind, file_size, bytes);
    }
    if (s.is_ok()) {
        s = check_space(entry.size, file_size).in(names::join(folder, entry.name));
    }
    if (s.is_ok()) {
        s = learn(bytes, file_size);
    }
    if (!s.is_ok()) {
        refuse(folder, entry, s);
        return false;
    }
    charge(disk_size(file_size));
    return true;
}

void store_state::scan_segment(const key & name_space, const std::string & folder, const dir_entry & entry,
                               scan_result & found) {
    uint64_t id = 0;
    if (!names::parse_segment(entry.name, id)) {
        refuse(folder, entry, misplaced("not the name of a segment"));
        return;
    }
    if (id < names::max_segment / 2) { // a name near the end of the range must not leave none for what is saved next
        next_segment = std::max(next_segment, id + 1);
    }
    scan_file(folder, entry, format::kind_segment, [&](const std::vector<uint8_t> & bytes, uint64_t file_size) {
        segment_head head;
        if (status s = decode_segment(bytes.data(), bytes.size(), file_size, head); !s.is_ok()) {
            return s.in(names::join(folder, entry.name));
        }
        if (segments.count(id) != 0 || head.id != id || !is_own(head.header, name_space)) {
            return misplaced("segment of another name, user or model");
        }
        auto seg = make_segment(std::move(head));
        segments[id] = seg;
        found.segments.push_back(std::move(seg));
        return status::ok();
    });
}

void store_state::scan_anchor(const key & name_space, const std::string & folder, const dir_entry & entry,
                              scan_result & found) {
    key k;
    if (!names::parse_anchor(entry.name, k)) {
        refuse(folder, entry, misplaced("not the name of an anchor"));
        return;
    }
    scan_file(folder, entry, format::kind_anchor, [&](const std::vector<uint8_t> & bytes, uint64_t file_size) {
        anchor_head head;
        if (status s = decode_anchor(bytes.data(), bytes.size(), file_size, head); !s.is_ok()) {
            return s.in(names::join(folder, entry.name));
        }
        if (head.k != k || !is_own(head.header, name_space)) {
            return misplaced("anchor of another name, user or model");
        }
        auto a = std::make_shared<anchor>();
        a->k               = k;
        a->name_space      = name_space;
        a->root            = head.header.root;
        a->n_tokens        = head.n_tokens;
        a->flags           = head.header.flags;
        a->file_size       = file_size;
        a->payload_offset  = head.payload_offset;
        a->payload_size    = head.payload_size;
        a->checksum        = head.checksum;
        a->tokens_checksum = head.tokens_checksum;
        a->last_used_ms    = head.header.created_ms;
        anchors[{ name_space, k }] = a;
        found.anchors.push_back(std::move(a));
        return status::ok();
    });
}

void store_state::scan_checkpoint(conversation & c, const std::string & folder, const dir_entry & entry) {
    uint32_t number = 0;
    if (!names::parse_checkpoint(entry.name, number)) {
        refuse(folder, entry, misplaced("not the name of a checkpoint"));
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
            return misplaced("checkpoint of another name, conversation, user or model");
        }
        // A run is in the index only with all runs before it, so the last one stands for the whole chain.
        run * end = index.find(record.runs.back().k);
        if (end == nullptr || end->p1 != record.n_tokens || end->owner->name_space != c.name_space ||
            end->owner->root != record.header.root) {
            return status::corrupt(damage::incomplete, "names state that is not stored");
        }
        auto found = std::make_unique<checkpoint>();
        found->owner        = &c;
        found->number       = number;
        found->turn         = record.turn;
        found->n_tokens     = record.n_tokens;
        found->n_static     = record.n_static;
        found->file_size    = file_size;
        found->created_ms   = record.header.created_ms;
        found->last_turn    = record.turn;
        found->last_used_ms = record.header.created_ms;
        found->backend      = record.header.backend;
        found->end          = end;
        register_checkpoint(std::move(found));
        return status::ok();
    });
}

// Only says when things were used; without it they count as used when they were saved.
void store_state::scan_index(conversation & c, const std::string & folder, const dir_entry & entry) {
    const auto learn = [&](const std::vector<uint8_t> & bytes, uint64_t file_size) {
        index_record record;
        if (status s = decode_index(bytes.data(), bytes.size(), file_size, record); !s.is_ok()) {
            return s.in(names::join(folder, entry.name));
        }
        if (record.conversation != c.hash || !is_own(record.header, c.name_space)) {
            return misplaced("index of another conversation, user or model");
        }
        c.index_size   = file_size;
        c.last_turn    = std::max(c.last_turn, record.last_turn);
        c.last_used_ms = std::max(c.last_used_ms, record.last_used_ms);
        c.hits         = record.hits;
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
    c.index_stale = !scan_file(folder, entry, format::kind_index, learn);
}

void store_state::scan_conversation(const key & name_space, uint64_t hash) {
    const std::string      folder = names::join(folder_of(name_space), hex(hash));
    std::vector<dir_entry> entries;
    if (!list_finished(folder, entries).is_ok()) {
        return;
    }
    recount_folder(folder);
    auto & slot = conversations[{ name_space, hash }];
    slot = std::make_unique<conversation>();
    slot->name_space = name_space;
    slot->hash       = hash;
    const dir_entry * index_entry = nullptr;
    for (const dir_entry & entry : entries) {
        if (entry.name == names::index_file) {
            index_entry = &entry;
        } else {
            scan_checkpoint(*slot, folder, entry);
        }
    }
    for (const auto & [number, c] : slot->checkpoints) {
        slot->last_turn    = std::max(slot->last_turn, c->turn);
        slot->last_used_ms = std::max(slot->last_used_ms, c->created_ms);
    }
    if (index_entry != nullptr) {
        scan_index(*slot, folder, *index_entry);
    }
    uint64_t & turn = name_spaces[name_space].turn;
    turn = std::max(turn, slot->last_turn);
    if (slot->checkpoints.empty()) {
        if (!options.inspect) {
            if (slot->index_size > 0) {
                remove_or_leave(names::join(folder, names::index_file), disk_size(slot->index_size));
            }
            if (e.remove_dir(folder).is_ok()) {
                discharge_folder(folder);
            }
        }
        conversations.erase({ name_space, hash });
    }
}

status store_state::scan_name_space(const key & name_space, scan_result & found) {
    const std::string      folder = folder_of(name_space);
    std::vector<dir_entry> entries;
    if (status s = list_finished(folder, entries); !s.is_ok()) {
        return s;
    }
    recount_folder(folder);
    unsynced.insert(folder);
    name_spaces[name_space];
    const bool anonymous = name_space == key{};
    for (const dir_entry & entry : entries) {
        const std::string path      = names::join(folder, entry.name);
        const bool        is_folder = entry.type == file_type::folder;
        uint64_t          hash      = 0;
        if (is_folder && (entry.name == names::pages || entry.name == names::anchors)) {
            recount_folder(path);
            unsynced.insert(path);
            std::vector<dir_entry> inside;
            (void) list_finished(path, inside).is_ok(); // a folder that cannot be read is one without files
            for (const dir_entry & file : inside) {
                if (entry.name == names::pages) {
                    scan_segment(name_space, path, file, found);
                } else {
                    scan_anchor(name_space, path, file, found);
                }
            }
        } else if (is_folder && parse_hex(entry.name, hash)) {
            found.conversations.emplace_back(name_space, hash);
        } else if (anonymous && is_folder && entry.name == names::quarantine) {
            has_quarantine = true;
            recount_folder(path);
            const uint64_t counted = quarantine_bytes; // set aside a moment ago, from a folder that was scanned before
            (void) measure_tree(e, path, quarantine_bytes).is_ok(); // as far as it can be read
            uint64_t folder_size = 0;
            (void) e.folder_size(path, folder_size).is_ok();
            quarantine_bytes -= std::min(quarantine_bytes, folder_size);
            charge(quarantine_bytes - std::min(quarantine_bytes, counted));
            std::vector<dir_entry> aside;
            if (e.list_dir(path, aside).is_ok()) {
                next_quarantine += aside.size();
            }
        } else if (anonymous && is_folder && entry.name == names::users) {
            recount_folder(path); // its folders are scanned apart
            unsynced.insert(path);
        } else if (anonymous && entry.type == file_type::file && entry.name == names::lock_file) {
            charge(disk_block);
        } else if (entry.name[0] == '.') {
            charge(disk_size(entry.size)); // a desktop's, not ours
            leave(path, disk_size(entry.size));
        } else {
            key        k;
            uint64_t   number;
            const bool known = entry.name == names::pages || entry.name == names::anchors ||
                               entry.name == names::quarantine || entry.name == names::users ||
                               parse_hex(entry.name, number) || parse_hex(entry.name, k);
            refuse(folder, entry, known ? status::corrupt(damage::wrong_type, "not a folder")
                                        : misplaced("not a name of this store"));
        }
    }
    return status::ok();
}

status store_state::recover() {
    scan_result found;
    if (status s = scan_name_space(key{}, found); !s.is_ok()) {
        return s;
    }
    const std::string      users_dir = names::join(model_dir, names::users);
    std::vector<dir_entry> users;
    if (e.list_dir(users_dir, users).is_ok()) {
        for (const dir_entry & entry : users) {
            key user;
            if (entry.type == file_type::folder && parse_hex(entry.name, user) && user != key{}) {
                // A folder that cannot be read is its user's loss alone. It is counted for itself.
                if (!scan_name_space(user, found).is_ok()) {
                    recount_folder(folder_of(user));
                }
            } else {
                refuse(users_dir, entry, misplaced("not the folder of a user"));
            }
        }
    }

    // Oldest first: where two segments hold the same run, the first one keeps it.
    std::sort(found.segments.begin(), found.segments.end(), [](const auto & a, const auto & b) { return a->id < b->id; });
    index.attach(found.segments);
    for (const auto & s : found.segments) {
        count.loose_segments += s->n_attached == 0;
    }
    for (const auto & a : found.anchors) {
        run * at = index.find(a->k);
        if (at != nullptr && at->p1 == a->n_tokens && at->owner->name_space == a->name_space && at->owner->root == a->root) {
            a->at        = at;
            at->anchored = a;
        }
    }
    for (const conversation_id & id : found.conversations) {
        scan_conversation(id.first, id.second);
    }
    for (const auto & [id, c] : conversations) {
        for (const auto & [number, point] : c->checkpoints) {
            for (segment * s : point->segments) {
                s->last_turn    = std::max(s->last_turn, point->last_turn);
                s->last_used_ms = std::max(s->last_used_ms, point->last_used_ms);
            }
        }
    }
    for (const auto & a : found.anchors) {
        if (a->at != nullptr) {
            a->last_turn    = a->at->owner->last_turn;
            a->last_used_ms = a->at->owner->last_used_ms;
        }
    }
    count_foreign();
    if (!options.inspect) {
        for (const auto & [name_space, state] : name_spaces) {
            apply_limits(name_space, nullptr);
        }
    }
    return status::ok();
}

} // namespace kvtier

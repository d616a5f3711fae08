// What the store says about itself: conversations, numbers, and whether every byte is sound.
#include "kvtier/checksum.h"
#include "kvtier/protection.h"
#include "kvtier/store_rooms.h"

#include <algorithm>
#include <set>

namespace kvtier {

static conversation_info info_of(const store_rooms & rooms, const object_graph & all, const protection & kept,
                                 const conversation & c) {
    conversation_info info;
    info.name_space   = c.name_space;
    info.hash         = c.hash;
    info.turns        = c.checkpoints.size();
    info.hits         = c.hits;
    info.last_used_ms = c.last_used_ms;
    info.title        = c.title;
    info.life         = c.life;
    info.is_protected = kept.covers(&c);
    const checkpoint & newest = *c.checkpoints.rbegin()->second;
    info.n_tokens   = newest.n_tokens;
    info.backend    = newest.backend;
    info.created_ms = c.checkpoints.begin()->second->created_ms;
    info.bytes_own  = rooms.bytes.bytes_of(rooms.layout.conversation(c.name_space, c.hash)) + disk_size(c.index_size);

    std::vector<const segment *> seen;
    for (const auto & [number, point] : c.checkpoints) {
        info.bytes_own += disk_size(point->file_size);
        for (const segment * s : point->segments) {
            if (std::find(seen.begin(), seen.end(), s) == seen.end()) {
                seen.push_back(s);
            }
        }
    }
    for (const segment * s : seen) {
        (s->users.size() > 1 ? info.bytes_shared : info.bytes_own) += size_with_anchors(*s);
    }
    // The end decides where most of it is found, as the rest is at least as warm.
    const uint64_t turn   = all.turn_of(c.name_space);
    tier           where  = tier::cold;
    const bool     in_ram = rooms.ram.peek(object_kind::page, newest.end->k, turn, where);
    info.where = tier_of(turn - std::min(turn, c.last_turn), in_ram, rooms.options.windows);
    return info;
}

std::vector<conversation_info> store::list() const {
    return rooms->known.read([&](const object_graph & all) {
        const protection               kept(all, rooms->options.protected_bytes, rooms->e.now_ms());
        std::vector<conversation_info> out;
        for (const auto & [id, c] : all.conversations) {
            out.push_back(info_of(*rooms, all, kept, *c));
        }
        return out;
    });
}

std::vector<damage_note> store::damaged() const {
    return rooms->files.notes();
}

store_stats store::stats() const {
    const disk_budget & budget = rooms->bytes.budget();
    store_stats         out;
    out.values     = rooms->count.snapshot();
    out.disk_bytes = budget.used();
    out.disk_limit = budget.limit();
    out.ram_bytes  = rooms->ram.bytes();
    out.ram_limit  = rooms->ram.budget();
    out.protected_limit = rooms->options.protected_bytes;
    rooms->known.read([&](const object_graph & all) {
        out.protected_bytes = protection(all, rooms->options.protected_bytes, rooms->e.now_ms()).bytes();
        out.n_runs     = all.index.size();
        out.n_segments = all.segments.size();
        out.n_anchors  = all.anchors.size();
        out.n_conversations = all.conversations.size();
        for (const auto & [id, s] : all.segments) {
            out.index_bytes += sizeof(segment) + s->tokens.capacity() * sizeof(token) + s->runs.capacity() * sizeof(run);
        }
        out.index_bytes += all.index.size() * (sizeof(key) + 4 * sizeof(void *));
        for (const auto & [id, c] : all.conversations) {
            out.n_checkpoints += c->checkpoints.size();
        }
    });
    return out;
}

namespace {

// Reads the files of the report one after the other, a run at a time.
class checker {
public:
    checker(env & e, verify_report & report) : e(e), report(report) {}

    // Opens a file and reads its head; problems go into the report.
    bool head(const std::string & path, uint16_t kind, std::vector<uint8_t> & bytes) {
        file.reset();
        report.n_files++;
        status s = e.open_file(path, file);
        if (s.is_ok()) {
            report.n_bytes += file->size();
            bytes.resize(static_cast<size_t>(std::min<uint64_t>(file->size(), format::header_size)));
            s = read(0, bytes);
        }
        size_t head_size = 0;
        if (s.is_ok()) {
            s = decode_head_size(bytes.data(), bytes.size(), kind, file->size(), head_size).in(path);
        }
        if (s.is_ok()) {
            bytes.resize(head_size);
            s = read(0, bytes);
        }
        return check(path, s);
    }

    bool payload(const std::string & path, uint64_t offset, uint64_t size, uint64_t expected) {
        buffer whole(size);
        span   part = { whole.data(), whole.size() };
        status s = file->read(offset, &part, 1);
        if (s.is_ok() && checksum64(whole.data(), whole.size()) != expected) {
            s = status::corrupt(damage::bad_checksum, path + ": state at byte " + std::to_string(offset) +
                                                      " does not match its checksum");
        }
        return check(path, s);
    }

    bool check(const std::string & path, const status & s) {
        if (!s.is_ok()) {
            report.damaged.push_back({ path, s });
        }
        return s.is_ok();
    }

    uint64_t size() const { return file->size(); }

private:
    status read(uint64_t offset, std::vector<uint8_t> & into) {
        span part = { into.data(), into.size() };
        return file->read(offset, &part, 1);
    }

    env &                          e;
    verify_report &                report;
    std::unique_ptr<readable_file> file;
};

struct item {
    std::string path;
    uint16_t    kind;
};

// Every file that the catalog knows, in the order of their names.
std::vector<item> items_of(const object_graph & all, const file_layout & layout) {
    std::vector<item> items;
    for (const auto & [id, s] : all.segments) {
        items.push_back({ names::join(layout.pages(s->name_space), names::segment(id)), format::kind_segment });
    }
    for (const auto & [id, a] : all.anchors) {
        if (a->is_written()) {
            items.push_back({ names::join(layout.anchors(a->name_space), names::anchor(a->k)), format::kind_anchor });
        }
    }
    for (const auto & [id, c] : all.conversations) {
        const std::string folder = layout.conversation(c->name_space, c->hash);
        for (const auto & [number, point] : c->checkpoints) {
            items.push_back({ names::join(folder, names::checkpoint(number)), format::kind_checkpoint });
        }
        if (c->index_size > 0) {
            items.push_back({ names::join(folder, names::index_file), format::kind_index });
        }
    }
    std::sort(items.begin(), items.end(), [](const item & a, const item & b) { return a.path < b.path; });
    return items;
}

// Reads all of a file.
void check_file(checker & files, const item & i) {
    std::vector<uint8_t> bytes;
    if (!files.head(i.path, i.kind, bytes)) {
        return;
    }
    if (i.kind == format::kind_segment) {
        segment_head head;
        if (files.check(i.path, decode_segment(bytes.data(), bytes.size(), files.size(), head).in(i.path))) {
            for (const run_entry & r : head.runs) {
                if (!files.payload(i.path, r.payload_offset, r.payload_size, r.checksum)) {
                    break;
                }
            }
        }
    } else if (i.kind == format::kind_anchor) {
        anchor_head head;
        if (files.check(i.path, decode_anchor(bytes.data(), bytes.size(), files.size(), head).in(i.path))) {
            files.payload(i.path, head.payload_offset, head.payload_size, head.checksum);
        }
    } else if (i.kind == format::kind_checkpoint) {
        checkpoint_record record;
        files.check(i.path, decode_checkpoint(bytes.data(), bytes.size(), files.size(), record).in(i.path));
    } else {
        index_record record;
        files.check(i.path, decode_index(bytes.data(), bytes.size(), files.size(), record).in(i.path));
    }
}

} // namespace

status store::verify(verify_report & out) {
    mutex_lock writing(rooms->files.writing); // files stay as they are meanwhile; lookups and loads go on
    rooms->files.finish_deferred();
    const std::vector<item> items = rooms->known.read([&](const object_graph & all) { return items_of(all, rooms->layout); });
    out.damaged = rooms->files.notes(); // what opening found counts too
    checker files(rooms->e, out);
    for (const item & i : items) {
        check_file(files, i);
    }
    return status::ok();
}

status store::verify_beside(const std::function<bool()> & is_over, verify_report & out) {
    const auto known_items = [&] {
        return rooms->known.read([&](const object_graph & all) { return items_of(all, rooms->layout); });
    };
    std::set<std::string> suspects;
    for (const item & i : known_items()) {
        if (is_over()) {
            return status::miss("not everything was read");
        }
        verify_report of_one;
        checker       files(rooms->e, of_one);
        check_file(files, i);
        out.n_files += of_one.n_files;
        out.n_bytes += of_one.n_bytes;
        if (!of_one.damaged.empty()) {
            suspects.insert(i.path);
        }
    }
    // One that was removed or written anew meanwhile is not damaged. There are few of them.
    mutex_lock    writing(rooms->files.writing);
    verify_report again;
    checker       files(rooms->e, again);
    for (const item & i : known_items()) {
        if (suspects.count(i.path) > 0) {
            check_file(files, i);
        }
    }
    out.damaged.insert(out.damaged.end(), again.damaged.begin(), again.damaged.end());
    return status::ok();
}

} // namespace kvtier

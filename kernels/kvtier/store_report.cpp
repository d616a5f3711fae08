// What the store says about itself: conversations, numbers, and whether every byte is sound.
#include "kvtier/checksum.h"
#include "kvtier/store_state.h"

#include <algorithm>

namespace kvtier {

std::vector<conversation_info> store::list() const {
    const store_state & s = *state;
    std::shared_lock<std::shared_mutex> guard(s.mu);
    std::vector<conversation_info> out;
    for (const auto & [id, c] : s.conversations) {
        conversation_info info;
        info.name_space   = c->name_space;
        info.hash         = c->hash;
        info.turns        = c->checkpoints.size();
        info.hits         = c->hits;
        info.last_used_ms = c->last_used_ms;
        const checkpoint & newest = *c->checkpoints.rbegin()->second;
        info.n_tokens   = newest.n_tokens;
        info.backend    = newest.backend;
        info.created_ms = c->checkpoints.begin()->second->created_ms;
        const auto folder = s.folders.find(names::join(s.folder_of(c->name_space), hex(c->hash)));
        info.bytes_own  = (folder == s.folders.end() ? 0 : folder->second) + disk_size(c->index_size);

        std::vector<const segment *> seen;
        for (const auto & [number, point] : c->checkpoints) {
            info.bytes_own += disk_size(point->file_size);
            for (const segment * seg : point->segments) {
                if (std::find(seen.begin(), seen.end(), seg) == seen.end()) {
                    seen.push_back(seg);
                }
            }
        }
        for (const segment * seg : seen) {
            uint64_t bytes = disk_size(seg->file_size);
            for (const run & r : seg->runs) {
                bytes += r.anchored != nullptr ? disk_size(r.anchored->file_size) : 0;
            }
            (seg->users.size() > 1 ? info.bytes_shared : info.bytes_own) += bytes;
        }
        // Where most of it is found: the end decides, as the rest is at least as warm.
        const uint64_t turn = s.turn_of(c->name_space);
        tier           where = tier::cold;
        const bool     in_ram = s.ram.peek(object_kind::page, newest.end->k, turn, where);
        info.where = tier_of(turn - std::min(turn, c->last_turn), in_ram, s.options.windows);
        out.push_back(std::move(info));
    }
    return out;
}

std::vector<damage_note> store::damaged() const {
    std::shared_lock<std::shared_mutex> guard(state->mu);
    return state->notes;
}

store_stats store::stats() const {
    const store_state & s = *state;
    store_stats out;
    out.values     = s.count.snapshot();
    out.disk_bytes = s.budget->used();
    out.disk_limit = s.budget->limit();
    out.ram_bytes  = s.ram.bytes();
    out.ram_limit  = s.ram.budget();
    std::shared_lock<std::shared_mutex> guard(s.mu);
    out.n_runs     = s.index.size();
    out.n_segments = s.segments.size();
    out.n_anchors  = s.anchors.size();
    out.n_conversations = s.conversations.size();
    for (const auto & [id, seg] : s.segments) {
        out.index_bytes += sizeof(segment) + seg->tokens.capacity() * sizeof(token) + seg->runs.capacity() * sizeof(run);
    }
    out.index_bytes += s.index.size() * (sizeof(key) + 4 * sizeof(void *));
    for (const auto & [id, c] : s.conversations) {
        out.n_checkpoints += c->checkpoints.size();
    }
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

} // namespace

status store::verify(verify_report & out) {
    store_state & s = *state;
    std::lock_guard<std::mutex> writing(s.write_mu); // files stay as they are meanwhile; lookups and loads go on
    s.finish_deferred();
    struct item {
        std::string path;
        uint16_t    kind;
    };
    std::vector<item> items;
    {
        std::shared_lock<std::shared_mutex> guard(s.mu);
        out.damaged = s.notes; // what opening found counts too
        for (const auto & [id, seg] : s.segments) {
            items.push_back({ names::join(names::join(s.folder_of(seg->name_space), names::pages), names::segment(id)),
                              format::kind_segment });
        }
        for (const auto & [id, a] : s.anchors) {
            items.push_back({ names::join(names::join(s.folder_of(a->name_space), names::anchors), names::anchor(a->k)),
                              format::kind_anchor });
        }
        for (const auto & [id, c] : s.conversations) {
            const std::string folder = names::join(s.folder_of(c->name_space), hex(c->hash));
            for (const auto & [number, point] : c->checkpoints) {
                items.push_back({ names::join(folder, names::checkpoint(number)), format::kind_checkpoint });
            }
            if (c->index_size > 0) {
                items.push_back({ names::join(folder, names::index_file), format::kind_index });
            }
        }
    }
    std::sort(items.begin(), items.end(), [](const item & a, const item & b) { return a.path < b.path; });

    checker              files(s.e, out);
    std::vector<uint8_t> bytes;
    for (const item & i : items) {
        if (!files.head(i.path, i.kind, bytes)) {
            continue;
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
    return status::ok();
}

} // namespace kvtier

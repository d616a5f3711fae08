#include "kvtier/trimming.h"

#include "kvtier/checksum.h"
#include "kvtier/file_head.h"
#include "kvtier/write_budget.h"

#include <algorithm>
#include <memory>

namespace kvtier {

// Reads a segment's head, and the payload of its first runs.
static status read_first(env & e, const std::string & path, size_t n_runs, segment_head & head, std::vector<uint8_t> & payload) {
    std::vector<uint8_t> bytes;
    uint64_t             file_size = 0;
    if (status s = read_head(e, path, format::kind_segment, file_size, bytes); !s.is_ok()) {
        return s;
    }
    if (status s = decode_segment(bytes.data(), bytes.size(), file_size, head); !s.is_ok()) {
        return s.in(path);
    }
    uint64_t size = 0;
    for (size_t i = 0; i < n_runs; i++) {
        size += head.runs[i].payload_size;
    }
    payload.resize(static_cast<size_t>(size));
    std::unique_ptr<readable_file> file;
    if (status s = e.open_file(path, file); !s.is_ok()) {
        return s;
    }
    span part = { payload.data(), payload.size() };
    return file->read(bytes.size(), &part, 1);
}

static void blank(segment_head & head, size_t first) {
    size_t at = 0;
    for (size_t i = 0; i < head.runs.size(); i++) {
        run_entry &  r = head.runs[i];
        const size_t n = r.p1 - r.p0;
        if (i >= first) {
            r.k = r.parent = key{};
            r.payload_size = 0;
            r.checksum     = checksum64(nullptr, 0);
            std::fill_n(head.tokens.begin() + static_cast<std::ptrdiff_t>(at), n, token(0));
        }
        at += n;
    }
}

static status write_first(store_rooms & rooms, const segment & s, size_t n_runs) REQUIRES(rooms.files.writing) {
    const std::string folder = rooms.layout.pages(s.name_space);
    const std::string name   = names::segment(s.id);
    segment_head         head;
    std::vector<uint8_t> payload;
    if (status read = read_first(rooms.e, names::join(folder, name), n_runs, head, payload); !read.is_ok()) {
        return read;
    }
    blank(head, n_runs);
    const std::vector<uint8_t> bytes = encode_segment(head);
    reservation                room;
    if (!make_room(rooms, disk_size(bytes.size() + payload.size()) + folder_growth, room)) {
        return status::over_budget(names::join(folder, name) + ": no room in the cache's budget");
    }
    status written = rooms.files.write(folder, name, { { bytes.data(), bytes.size() }, { payload.data(), payload.size() } }, true,
                                       std::move(room));
    if (written.is_ok() && rooms.options.writes != nullptr) {
        rooms.options.writes->written(bytes.size() + payload.size());
    }
    return written;
}

status trim(store_rooms & rooms, const std::vector<uint64_t> & segments, uint64_t & bytes_freed,
            std::set<std::string> & changed) {
    rooms.untrimmed.insert(segments.begin(), segments.end());
    status result = status::ok();
    for (auto it = rooms.untrimmed.begin(); it != rooms.untrimmed.end();) {
        doomed_files     files;
        const cut_result cut = rooms.known.cut_unneeded(*it, files);
        bytes_freed += rooms.files.remove(files, &changed);
        if (cut.of != nullptr) {
            lease held; // Making room must not take it.
            held.add(cut.of);
            const uint64_t before = rooms.bytes.bytes();
            if (status s = write_first(rooms, *cut.of, cut.n_kept); !s.is_ok()) {
                // Another removal's segment is not this one's failure; one that cannot be read will never be cut, nor one that is gone.
                result = !s.is_miss() && std::count(segments.begin(), segments.end(), *it) > 0 ? s : result;
                it     = s.is_damaged() || s.is_miss() ? rooms.untrimmed.erase(it) : std::next(it);
                continue;
            }
            const uint64_t after = rooms.bytes.bytes();
            bytes_freed += before > after ? before - after : 0;
            rooms.known.is_cut(*it, cut.n_kept);
            changed.insert(rooms.layout.pages(cut.of->name_space));
        }
        it = cut.is_being_read ? std::next(it) : rooms.untrimmed.erase(it);
    }
    return result;
}

} // namespace kvtier

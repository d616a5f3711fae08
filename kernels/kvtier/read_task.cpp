#include "kvtier/read_task.h"

#include "kvtier/checksum.h"
#include "kvtier/prefix_index.h"

#include <algorithm>

namespace kvtier {

// A task is large enough for any disk, and small enough to share out evenly.
static constexpr uint64_t max_task_bytes = uint64_t(8) << 20;

// What one read has got is checked while it is still in the core's own cache, unless a disk is waited for.
static constexpr uint64_t cached_bytes = uint64_t(256) << 10;
static constexpr uint64_t disk_bytes   = uint64_t(1) << 20;

status given_up() {
    return status::miss("given up: nobody waits for it");
}

status mismatch(const std::string & path) {
    return status::corrupt(damage::bad_checksum, path + ": state does not match its checksum");
}

std::vector<read_task> read_tasks(const file_layout & layout, const match & m, const loaded_state & have) {
    std::vector<read_task> tasks;
    // There is at least one part, also of nothing: an anchor that was not read is no anchor. No two parts share a block.
    uint64_t done = 0;
    while (m.at != nullptr && have.anchor == nullptr && (done == 0 || done < m.at->payload_size)) {
        read_task task;
        task.path      = names::join(layout.anchors(m.name_space), names::anchor(m.at->k));
        task.file_size = m.at->file_size;
        task.offset    = m.at->payload_offset + done;
        task.bytes     = std::min(max_task_bytes - task.offset % block_size, m.at->payload_size - done);
        task.is_anchor = true;
        task.is_large  = m.at->payload_size >= buffer::min_large;
        done += std::max<uint64_t>(task.bytes, 1);
        tasks.push_back(std::move(task));
    }
    for (size_t i = 0; i < m.runs.size(); i++) {
        if (have.runs[i].data != nullptr || m.runs[i].node == nullptr) {
            continue;
        }
        const run & r = *m.runs[i].node;
        const bool is_large  = r.size >= buffer::min_large;
        const bool continues = !tasks.empty() && !tasks.back().is_anchor && tasks.back().owner == r.owner &&
                               tasks.back().is_large == is_large &&
                               tasks.back().offset + tasks.back().bytes == r.offset &&
                               tasks.back().bytes + r.size <= max_task_bytes;
        if (!continues) {
            read_task task;
            task.path      = names::join(layout.pages(m.name_space), names::segment(r.owner->id));
            task.offset    = r.offset;
            task.owner     = r.owner;
            task.is_large  = is_large;
            tasks.push_back(std::move(task));
        }
        tasks.back().bytes += r.size;
        tasks.back().runs.push_back(i);
    }
    return tasks;
}

status open_for(env & e, const read_task & task, std::unique_ptr<readable_file> & out) {
    if (status opened = e.open_file(task.path, out); !opened.is_ok()) {
        return opened;
    }
    // A segment's end may be cut off while its beginning is read.
    if (task.is_anchor ? out->size() != task.file_size : out->size() < task.offset + task.bytes) {
        return status::corrupt(damage::truncated, task.path + ": has another size than when it was opened");
    }
    if (task.is_large) {
        out->begin_blocks(task.offset, task.bytes, task.is_cached);
    } else {
        out->will_need(task.offset, task.bytes);
    }
    return status::ok();
}

// Fills `to`, which is in a large buffer made for this place in the file, from the file. `seen` gets the bytes in order.
template <typename Seen>
static status read_blocks(readable_file & file, const read_task & task, uint64_t offset, uint8_t * to, uint64_t size,
                          read_progress & progress, const Seen & seen) {
    const uint64_t step = task.is_cached ? cached_bytes : disk_bytes;
    const uint64_t end  = offset + size;
    for (uint64_t at = offset / block_size * block_size; at < end; at += step) {
        if (progress.abandoned) {
            return given_up();
        }
        const uint64_t until = std::min(at + step, (end + block_size - 1) / block_size * block_size);
        const int64_t  place = static_cast<int64_t>(at) - static_cast<int64_t>(offset);
        const span     part  = { to + place, static_cast<size_t>(until - at) };
        if (status got = file.read_blocks(at, part); !got.is_ok()) {
            return got;
        }
        const uint64_t first = std::max(at, offset);
        const uint64_t n     = std::min(until, end) - first;
        progress.n_bytes += n;
        seen(to + (first - offset), static_cast<size_t>(n));
    }
    return status::ok();
}

static status read_small(readable_file & file, uint64_t offset, uint8_t * to, uint64_t size, read_progress & progress) {
    const span whole = { to, static_cast<size_t>(size) };
    const status got = file.read(offset, &whole, 1);
    progress.n_bytes += size;
    return got;
}

status read_verified(readable_file & file, const read_task & task, uint64_t offset, buffer & out, uint64_t expected,
                     read_progress & progress) {
    checksum_stream sum;
    const auto      check = [&](const uint8_t * bytes, size_t size) { sum.update(bytes, size); };
    if (out.size() >= buffer::min_large) {
        if (status got = read_blocks(file, task, offset, out.data(), out.size(), progress, check); !got.is_ok()) {
            return got;
        }
    } else {
        if (status got = read_small(file, offset, out.data(), out.size(), progress); !got.is_ok()) {
            return got;
        }
        check(out.data(), out.size());
    }
    return sum.finish() == expected ? status::ok() : mismatch(task.path);
}

status read_part(readable_file & file, const read_task & task, uint8_t * to, read_progress & progress) {
    return task.is_large ? read_blocks(file, task, task.offset, to, task.bytes, progress, [](const uint8_t *, size_t) {})
                         : read_small(file, task.offset, to, task.bytes, progress);
}

} // namespace kvtier

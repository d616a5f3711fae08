// How state is read: what is in RAM is taken from there, the rest by several threads, and every byte is checked.
#include "kvtier/checksum.h"
#include "kvtier/store_state.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>
#include <thread>

namespace kvtier {

namespace {

// Runs next to each other in one file, or a part of the anchor: read one after the other, ahead of use.
struct read_task {
    std::string         path;
    uint64_t            file_size = 0;
    uint64_t            offset    = 0;
    uint64_t            bytes     = 0;
    uint64_t            owner     = 0;        // id of the segment
    bool                is_anchor = false;
    bool                is_large  = false;    // is read in blocks
    std::vector<size_t> runs;                 // indices into match::runs
    status              result = status::ok();
};

constexpr uint64_t max_task_bytes = uint64_t(8) << 20;   // large enough for any disk, small enough to share out evenly
constexpr uint64_t cached_bytes   = uint64_t(256) << 10; // of one read: checked while they are still in the core's own cache
constexpr uint64_t disk_bytes     = uint64_t(1) << 20;   // the same where a disk is waited for

// An anchor is large and has one checksum: threads read it in parts, and the one that ends last checks the whole.
struct anchor_reading {
    std::shared_ptr<buffer> data;
    std::atomic<size_t>     n_left{ 0 };
    std::atomic<bool>       failed{ false };
};

status mismatch(const std::string & path) {
    return status::corrupt(damage::bad_checksum, path + ": state does not match its checksum");
}

// Fills `to`, which is in a large buffer made for this place in the file, from the file. `seen` gets the bytes in order.
template <typename Seen>
status read_state(readable_file & file, uint64_t step, uint64_t offset, uint8_t * to, uint64_t size, const Seen & seen) {
    const uint64_t end = offset + size;
    for (uint64_t at = offset / block_size * block_size; at < end; at += step) {
        const uint64_t until = std::min(at + step, (end + block_size - 1) / block_size * block_size);
        const span     part  = { to + (static_cast<int64_t>(at) - static_cast<int64_t>(offset)), static_cast<size_t>(until - at) };
        if (status got = file.read_blocks(at, part); !got.is_ok()) {
            return got;
        }
        const uint64_t first = std::max(at, offset);
        seen(to + (first - offset), static_cast<size_t>(std::min(until, end) - first));
    }
    return status::ok();
}

// Fills the buffer from the file and checks it on the way.
status read_verified(readable_file & file, uint64_t step, const std::string & path, uint64_t offset, buffer & out,
                     uint64_t expected) {
    checksum_stream sum;
    const auto      check = [&](const uint8_t * bytes, size_t size) { sum.update(bytes, size); };
    if (out.size() >= buffer::min_large) {
        if (status got = read_state(file, step, offset, out.data(), out.size(), check); !got.is_ok()) {
            return got;
        }
    } else {
        const span whole = { out.data(), out.size() };
        if (status got = file.read(offset, &whole, 1); !got.is_ok()) {
            return got;
        }
        check(out.data(), out.size());
    }
    return sum.finish() == expected ? status::ok() : mismatch(path);
}

} // namespace

static std::vector<read_task> read_tasks(const store_state & s, const match & m, const loaded_state & have) {
    std::vector<read_task> tasks;
    // At least one part, also of nothing: an anchor that was not read is no anchor. No two parts share a block.
    uint64_t done = 0;
    while (m.at != nullptr && have.anchor == nullptr && (done == 0 || done < m.at->payload_size)) {
        read_task task;
        task.path      = names::join(names::join(s.folder_of(m.name_space), names::anchors), names::anchor(m.at->k));
        task.file_size = m.at->file_size;
        task.offset    = m.at->payload_offset + done;
        task.bytes     = std::min(max_task_bytes - task.offset % block_size, m.at->payload_size - done);
        task.is_anchor = true;
        task.is_large  = m.at->payload_size >= buffer::min_large;
        done += std::max<uint64_t>(task.bytes, 1);
        tasks.push_back(std::move(task));
    }
    for (size_t i = 0; i < m.runs.size(); i++) {
        const run & r = *m.runs[i].node;
        if (have.runs[i].data != nullptr) {
            continue;
        }
        const bool is_large  = r.size >= buffer::min_large;
        const bool continues = !tasks.empty() && !tasks.back().is_anchor && tasks.back().owner == r.owner->id &&
                               tasks.back().is_large == is_large &&
                               tasks.back().offset + tasks.back().bytes == r.offset &&
                               tasks.back().bytes + r.size <= max_task_bytes;
        if (!continues) {
            read_task task;
            task.path      = names::join(names::join(s.folder_of(m.name_space), names::pages), names::segment(r.owner->id));
            task.file_size = r.owner->file_size;
            task.offset    = r.offset;
            task.owner     = r.owner->id;
            task.is_large  = is_large;
            tasks.push_back(std::move(task));
        }
        tasks.back().bytes += r.size;
        tasks.back().runs.push_back(i);
    }
    return tasks;
}

// Of the anchor; the checksum is left to the last part.
static status read_part(readable_file & file, uint64_t step, const match & m, const read_task & task, anchor_reading & anchor) {
    uint8_t * to = anchor.data->data() + (task.offset - m.at->payload_offset);
    if (task.is_large) {
        return read_state(file, step, task.offset, to, task.bytes, [](const uint8_t *, size_t) {});
    }
    const span whole = { to, static_cast<size_t>(task.bytes) };
    return file.read(task.offset, &whole, 1);
}

static status run_task(store_state & s, const match & m, const read_task & task, anchor_reading & anchor, loaded_state & out) {
    std::unique_ptr<readable_file> file;
    if (status opened = s.e.open_file(task.path, file); !opened.is_ok()) {
        return opened;
    }
    if (file->size() != task.file_size) {
        return status::corrupt(damage::truncated, task.path + ": has another size than when it was opened");
    }
    uint64_t step = cached_bytes;
    if (!task.is_large) {
        file->will_need(task.offset, task.bytes);
    } else if (file->begin_blocks(task.offset, task.bytes)) {
        step = disk_bytes;
    }
    s.count.bytes_read += task.bytes;
    if (task.is_anchor) {
        return read_part(*file, step, m, task, anchor);
    }
    for (size_t i : task.runs) {
        const run & r    = *m.runs[i].node;
        const auto  data = std::make_shared<buffer>(r.size, r.offset);
        out.runs[i].data = data;
        if (status got = read_verified(*file, step, task.path, r.offset, *data, r.checksum); !got.is_ok()) {
            return got;
        }
    }
    return status::ok();
}

// As the task in the middle does.
static bool waits_for_disk(const store_state & s, const std::vector<read_task> & tasks) {
    if (tasks.empty() || !tasks[tasks.size() / 2].is_large) {
        return false;
    }
    const read_task &              task = tasks[tasks.size() / 2];
    std::unique_ptr<readable_file> file;
    return s.e.open_file(task.path, file).is_ok() && file->begin_blocks(task.offset, task.bytes);
}

// All tasks, each with its result.
static void run_tasks(store_state & s, const match & m, std::vector<read_task> & tasks, anchor_reading & anchor,
                      loaded_state & loaded) {
    std::atomic<size_t> next{ 0 };
    const auto          work = [&] {
        for (size_t i = next++; i < tasks.size(); i = next++) {
            read_task & task = tasks[i];
            try {
                task.result = run_task(s, m, task, anchor, loaded);
            } catch (const std::bad_alloc &) {
                task.result = status::io_error(task.path + ": out of memory for its state");
            }
            if (!task.is_anchor) {
                continue;
            }
            if (!task.result.is_ok() && anchor.failed.exchange(true)) {
                task.result = status::ok(); // one anchor, one fault
            }
            if (--anchor.n_left == 0 && !anchor.failed &&
                checksum64(anchor.data->data(), anchor.data->size()) != m.at->checksum) {
                task.result = mismatch(task.path);
            }
        }
    };
    // Threads that wait for a disk keep its queue filled. Where there is none to wait for, more of them than cores would be
    // in each other's way.
    const unsigned n_cores   = std::max(2u, std::thread::hardware_concurrency());
    const size_t   n_threads = waits_for_disk(s, tasks) ? s.options.n_read_threads : std::min(s.options.n_read_threads, n_cores);
    std::vector<std::thread> helpers;
    try {
        while (helpers.size() + 1 < std::min(tasks.size(), n_threads)) {
            helpers.emplace_back(work);
        }
    } catch (const std::system_error &) {
        // no more threads: those that are there do it
    }
    work();
    for (std::thread & helper : helpers) {
        helper.join();
    }
}

// A problem, if there was any. Damaged objects leave the index at once: the next lookup does without them.
static status forget_damaged(store_state & s, const match & m, const std::vector<read_task> & tasks) {
    status       result = status::ok();
    doomed_files damaged;
    for (const read_task & task : tasks) {
        if (task.result.is_ok()) {
            continue;
        }
        result = task.result;
        s.count.read_errors += task.result.is_io_error();
        if (!task.result.is_damaged()) {
            continue;
        }
        s.count.count_damage(task.result.reason());
        std::unique_lock<std::shared_mutex> guard(s.mu);
        s.note(task.path, task.result);
        if (task.is_anchor) {
            if (s.anchors.count({ m.name_space, m.at->k }) != 0) {
                s.forget_checkpoints_at(m.at->at, damaged);
                s.forget_anchor(m.at, damaged);
                damaged.back().aside = true;
            }
        } else if (const auto it = s.segments.find(task.owner); it != s.segments.end()) {
            s.forget_segment(*it->second, damaged);
            damaged.back().aside = true;
        }
        // A slow save must not hold up this request: if one is under way, it is left to it to move the file.
        s.deferred.insert(s.deferred.end(), damaged.begin(), damaged.end());
        damaged.clear();
    }
    return result;
}

status store::load(const match & m, const token * tokens, size_t n_tokens, loaded_state & out) {
    store_state & s = *state;
    loaded_state  loaded;
    loaded.n_tokens = m.n_tokens;
    if (m.n_tokens == 0 || n_tokens < m.n_tokens || m.runs.empty()) {
        return status::miss("nothing to load");
    }
    // The tokens were compared during the search; an anchor has a checksum over all of its own besides.
    if (m.at != nullptr && (m.at->n_tokens != m.n_tokens || tokens_checksum(tokens, m.n_tokens) != m.at->tokens_checksum)) {
        s.count.load_failures++;
        return status::miss("the anchor at " + std::to_string(m.n_tokens) + " belongs to other tokens");
    }
    uint64_t turn;
    {
        std::shared_lock<std::shared_mutex> guard(s.mu);
        turn = s.turn_of(m.name_space);
    }
    loaded.runs.resize(m.runs.size());
    for (size_t i = 0; i < m.runs.size(); i++) {
        // A model without attention rows has runs without payload: there is nothing to read.
        loaded.runs[i] = { m.runs[i].p0, m.runs[i].p1, m.runs[i].size == 0 ? std::make_shared<buffer>(0)
                           : s.ram.get(object_kind::page, m.runs[i].k, turn) };
        s.count.bytes_from_ram += loaded.runs[i].data != nullptr ? m.runs[i].size : 0;
    }
    if (m.at != nullptr) {
        loaded.anchor = s.ram.get(object_kind::anchor, m.at->k, turn);
        s.count.bytes_from_ram += loaded.anchor != nullptr ? m.at->payload_size : 0;
    }

    std::vector<read_task> tasks = read_tasks(s, m, loaded);
    anchor_reading         anchor;
    anchor.n_left = static_cast<size_t>(std::count_if(tasks.begin(), tasks.end(), [](const read_task & t) { return t.is_anchor; }));
    if (anchor.n_left > 0) {
        try {
            anchor.data = std::make_shared<buffer>(m.at->payload_size, m.at->payload_offset);
        } catch (const std::bad_alloc &) {
            s.count.load_failures++;
            return status::io_error(tasks.front().path + ": out of memory for its state");
        }
        loaded.anchor = anchor.data;
    }
    run_tasks(s, m, tasks, anchor, loaded);
    const status result = forget_damaged(s, m, tasks);
    if (!result.is_ok()) {
        s.count.load_failures++;
        std::unique_lock<std::mutex> writing(s.write_mu, std::try_to_lock);
        if (writing.owns_lock() && !s.options.inspect) {
            s.finish_deferred();
        }
        return result;
    }
    if (anchor.data != nullptr) {
        s.ram.put(object_kind::anchor, m.name_space, m.at->k, loaded.anchor, turn);
    }
    for (const read_task & task : tasks) {
        for (size_t i : task.runs) {
            s.ram.put(object_kind::page, m.name_space, m.runs[i].k, loaded.runs[i].data, turn);
        }
    }
    s.count.loads++;
    out = std::move(loaded);
    return status::ok();
}

void store::prefetch(const match & m) {
    store_state & s = *state;
    loaded_state  nothing;
    nothing.runs.resize(m.runs.size());
    for (const read_task & task : read_tasks(s, m, nothing)) {
        std::unique_ptr<readable_file> file;
        if (s.e.open_file(task.path, file).is_ok()) {
            file->will_need(task.offset, task.bytes);
        }
    }
}

} // namespace kvtier

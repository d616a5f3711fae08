// How state is read: what is in RAM is taken from there, the rest by several threads, and every byte is checked.
#include "kvtier/checksum.h"
#include "kvtier/loading.h"
#include "kvtier/store_state.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <set>
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
    const segment *     owner     = nullptr;  // kept by the match
    bool                is_anchor = false;
    bool                is_large  = false;    // is read in blocks
    bool                is_cached = true;     // by the system: no disk is waited for
    bool                given_up  = false;    // nobody waited for it
    std::vector<size_t> runs;                 // indices into match::runs
    status              result = status::ok();
};

constexpr uint64_t max_task_bytes = uint64_t(8) << 20;   // large enough for any disk, small enough to share out evenly
constexpr uint64_t cached_bytes   = uint64_t(256) << 10; // of one read: checked while they are still in the core's own cache
constexpr uint64_t disk_bytes     = uint64_t(1) << 20;   // the same where a disk is waited for
constexpr double   late_seconds   = 0.016;               // long enough for several reads of a fast disk

// Of all tasks of a load.
struct read_progress {
    std::atomic<uint64_t> n_bytes{ 0 };
    std::atomic<bool>     abandoned{ false }; // nobody waits for the rest
};

// An anchor is large and has one checksum: threads read it in parts, and the one that ends last checks the whole.
struct anchor_reading {
    std::shared_ptr<buffer> data;
    std::atomic<size_t>     n_left{ 0 };
    std::atomic<bool>       failed{ false };
    std::atomic<bool>       whole{ false }; // and checked
};

status given_up() {
    return status::miss("given up: nobody waits for it");
}

status mismatch(const std::string & path) {
    return status::corrupt(damage::bad_checksum, path + ": state does not match its checksum");
}

// Fills `to`, which is in a large buffer made for this place in the file, from the file. `seen` gets the bytes in order.
template <typename Seen>
status read_state(readable_file & file, uint64_t step, uint64_t offset, uint8_t * to, uint64_t size, read_progress & progress,
                  const Seen & seen) {
    const uint64_t end = offset + size;
    for (uint64_t at = offset / block_size * block_size; at < end; at += step) {
        if (progress.abandoned) {
            return given_up();
        }
        const uint64_t until = std::min(at + step, (end + block_size - 1) / block_size * block_size);
        const span     part  = { to + (static_cast<int64_t>(at) - static_cast<int64_t>(offset)), static_cast<size_t>(until - at) };
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

status read_small(readable_file & file, uint64_t offset, uint8_t * to, uint64_t size, read_progress & progress) {
    const span whole = { to, static_cast<size_t>(size) };
    const status got = file.read(offset, &whole, 1);
    progress.n_bytes += size;
    return got;
}

// Fills the buffer from the file and checks it on the way.
status read_verified(readable_file & file, uint64_t step, const std::string & path, uint64_t offset, buffer & out,
                     uint64_t expected, read_progress & progress) {
    checksum_stream sum;
    const auto      check = [&](const uint8_t * bytes, size_t size) { sum.update(bytes, size); };
    if (out.size() >= buffer::min_large) {
        if (status got = read_state(file, step, offset, out.data(), out.size(), progress, check); !got.is_ok()) {
            return got;
        }
    } else {
        if (status got = read_small(file, offset, out.data(), out.size(), progress); !got.is_ok()) {
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
        const bool continues = !tasks.empty() && !tasks.back().is_anchor && tasks.back().owner == r.owner &&
                               tasks.back().is_large == is_large &&
                               tasks.back().offset + tasks.back().bytes == r.offset &&
                               tasks.back().bytes + r.size <= max_task_bytes;
        if (!continues) {
            read_task task;
            task.path      = names::join(names::join(s.folder_of(m.name_space), names::pages), names::segment(r.owner->id));
            task.file_size = r.owner->file_size;
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

struct loading_work {
    loading_work(store_state * s, const match * m) : s(s), m(m) {}

    store_state * const                  s;           // null: everything was there from the beginning
    const match * const                  m;
    uint64_t                             turn = 0;
    loaded_state                         loaded;
    std::vector<std::shared_ptr<buffer>> into;        // by run: what is to be read
    std::vector<read_task>               tasks;
    anchor_reading                       anchor;
    uint64_t                             n_bytes = 0; // of all tasks
    read_progress                        progress;
    std::atomic<size_t>                  next_task{ 0 };

    const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

    std::mutex               mu;
    std::condition_variable  changed;
    std::vector<bool>        there;               // by run
    bool                     anchor_there = false;
    bool                     failed       = false;
    bool                     ended        = false;
    size_t                   n_left       = 0;    // tasks
    status                   result       = status::ok();
    double                   seconds_read   = 0;
    double                   seconds_waited = 0;
    std::vector<std::thread> threads;

    void   prepare();
    bool   is_cached(const read_task & task) const;
    void   begin();
    void   run_tasks();
    status run_task(read_task & task);
    status read_part(readable_file & file, uint64_t step, const read_task & task);
    void   done(const read_task & task);
    void   end();

    template <typename Condition>
    void wait_for(std::unique_lock<std::mutex> & guard, const Condition & condition);
};

static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Of the anchor; the checksum is left to the last part.
status loading_work::read_part(readable_file & file, uint64_t step, const read_task & task) {
    uint8_t * to = anchor.data->data() + (task.offset - m->at->payload_offset);
    return task.is_large ? read_state(file, step, task.offset, to, task.bytes, progress, [](const uint8_t *, size_t) {})
                         : read_small(file, task.offset, to, task.bytes, progress);
}

status loading_work::run_task(read_task & task) {
    std::unique_ptr<readable_file> file;
    if (status opened = s->e.open_file(task.path, file); !opened.is_ok()) {
        return opened;
    }
    if (file->size() != task.file_size) {
        return status::corrupt(damage::truncated, task.path + ": has another size than when it was opened");
    }
    const uint64_t step = task.is_cached ? cached_bytes : disk_bytes;
    if (task.is_large) {
        file->begin_blocks(task.offset, task.bytes, task.is_cached);
    } else {
        file->will_need(task.offset, task.bytes);
    }
    s->count.bytes_read += task.bytes;
    if (task.is_anchor) {
        return read_part(*file, step, task);
    }
    for (size_t i : task.runs) {
        const run & r = *m->runs[i].node;
        if (status got = read_verified(*file, step, task.path, r.offset, *into[i], r.checksum, progress); !got.is_ok()) {
            return got;
        }
    }
    return status::ok();
}

// By every thread: tasks until none is left.
void loading_work::run_tasks() {
    for (size_t i = next_task++; i < tasks.size(); i = next_task++) {
        read_task & task = tasks[i];
        try {
            task.result = progress.abandoned ? given_up() : run_task(task);
        } catch (const std::bad_alloc &) {
            task.result = status::no_space(task.path + ": out of memory for its state");
        }
        task.given_up = task.result.is_miss() && progress.abandoned;
        if (task.is_anchor) {
            if (!task.result.is_ok() && anchor.failed.exchange(true)) {
                task.result = status::ok(); // one anchor, one fault
            }
            if (--anchor.n_left == 0 && !anchor.failed) {
                anchor.whole = checksum64(anchor.data->data(), anchor.data->size()) == m->at->checksum;
                task.result  = anchor.whole ? status::ok() : mismatch(task.path);
            }
        }
        done(task);
    }
}

void loading_work::done(const read_task & task) {
    bool is_last;
    {
        std::lock_guard<std::mutex> guard(mu);
        failed = failed || !task.result.is_ok();
        for (size_t i : task.runs) {
            there[i] = task.result.is_ok();
        }
        anchor_there = anchor_there || anchor.whole;
        is_last      = --n_left == 0;
    }
    if (is_last) {
        end();
    }
    changed.notify_all();
}

// Whether the object that a task has read must go: the file is damaged, or missing though the index names it, or the disk
// has refused to read it more than once. Lack of memory or handles and a reader that left say nothing about the file.
static bool is_lost(const status & result, std::atomic<uint32_t> & n_refused) {
    constexpr uint32_t max_refused = 2;
    return result.is_damaged() || result.is_miss() || (result.is_io_error() && ++n_refused >= max_refused);
}

// Takes it out of the index, if it is still the same that was read: a new one may be in its place.
static bool forget_lost(store_state & s, const match & m, const read_task & task, doomed_files & out) {
    if (task.is_anchor) {
        const auto it = s.anchors.find({ m.name_space, m.at->k });
        if (it == s.anchors.end() || it->second != m.at || !is_lost(task.result, m.at->n_refused)) {
            return false;
        }
        s.forget_checkpoints_at(m.at->at, out);
        s.forget_anchor(m.at, out);
    } else {
        const auto it = s.segments.find(task.owner->id);
        if (it == s.segments.end() || it->second.get() != task.owner || !is_lost(task.result, it->second->n_refused)) {
            return false;
        }
        s.forget_segment(*it->second, out);
    }
    out.back().aside = true;
    return true;
}

// A problem, if there was any. Lost objects leave the index at once: the next lookup does without them.
static status forget_damaged(store_state & s, const match & m, std::vector<read_task> & tasks) {
    status                    result = status::ok();
    std::set<const segment *> refused; // by the disk: however many parts of it, once per restore
    for (read_task & task : tasks) {
        if (task.result.is_ok()) {
            continue;
        }
        s.count.read_errors += task.result.is_io_error();
        const bool is_known = !task.is_anchor && task.result.is_io_error() && !refused.insert(task.owner).second;
        if (!task.given_up && !is_known) {
            doomed_files lost;
            std::unique_lock<std::shared_mutex> guard(s.mu);
            if (forget_lost(s, m, task, lost)) {
                if (task.result.is_miss()) {
                    task.result = status::corrupt(damage::incomplete, task.path + ": is missing");
                }
                if (task.result.is_damaged()) {
                    s.count.count_damage(task.result.reason());
                }
                s.note(task.path, task.result);
                // A slow save must not hold up this request: if one is under way, it is left to it to move the file.
                s.deferred.insert(s.deferred.end(), lost.begin(), lost.end());
            }
        }
        result = task.result;
    }
    return result;
}

// Once, after the last task.
void loading_work::end() {
    const status problem = forget_damaged(*s, *m, tasks);
    if (problem.is_ok()) {
        if (anchor.data != nullptr) {
            s->ram.put(object_kind::anchor, m->name_space, m->at->k, loaded.anchor, turn);
        }
        for (const read_task & task : tasks) {
            for (size_t i : task.runs) {
                s->ram.put(object_kind::page, m->name_space, m->runs[i].k, loaded.runs[i].data, turn);
            }
        }
        s->count.loads++;
    } else {
        s->count.load_failures++;
        std::unique_lock<std::mutex> writing(s->write_mu, std::try_to_lock);
        if (writing.owns_lock() && !s->options.inspect) {
            s->finish_deferred();
        }
    }
    std::lock_guard<std::mutex> guard(mu);
    seconds_read = seconds_since(start);
    result       = problem;
    ended        = true;
}

// What is in RAM, and what has to be read. Throws when there is no memory for it.
void loading_work::prepare() {
    {
        std::shared_lock<std::shared_mutex> guard(s->mu);
        turn = s->turn_of(m->name_space);
    }
    loaded.n_tokens = m->n_tokens;
    loaded.runs.resize(m->runs.size());
    for (size_t i = 0; i < m->runs.size(); i++) {
        // A model without attention rows has runs without payload: there is nothing to read.
        loaded.runs[i] = { m->runs[i].p0, m->runs[i].p1, m->runs[i].size == 0 ? std::make_shared<buffer>(0)
                           : s->ram.get(object_kind::page, m->runs[i].k, turn) };
        s->count.bytes_from_ram += loaded.runs[i].data != nullptr ? m->runs[i].size : 0;
        there.push_back(loaded.runs[i].data != nullptr);
    }
    if (m->at != nullptr) {
        loaded.anchor = s->ram.get(object_kind::anchor, m->at->k, turn);
        s->count.bytes_from_ram += loaded.anchor != nullptr ? m->at->payload_size : 0;
        anchor_there = loaded.anchor != nullptr;
    }
    tasks  = read_tasks(*s, *m, loaded);
    n_left = tasks.size();
    // Memory is mapped here, by one thread, and the readers find it there: mapping can make all threads of a process wait.
    into.resize(m->runs.size());
    for (read_task & task : tasks) {
        task.is_cached = !task.is_large || is_cached(task);
        anchor.n_left += task.is_anchor;
        n_bytes       += task.bytes;
        for (size_t i : task.runs) {
            into[i]             = std::make_shared<buffer>(m->runs[i].size, m->runs[i].node->offset);
            loaded.runs[i].data = into[i];
        }
    }
    if (anchor.n_left > 0) {
        anchor.data   = std::make_shared<buffer>(m->at->payload_size, m->at->payload_offset);
        loaded.anchor = anchor.data;
    }
}

bool loading_work::is_cached(const read_task & task) const {
    std::unique_ptr<readable_file> file;
    return !s->e.open_file(task.path, file).is_ok() || file->is_cached(task.offset, task.bytes);
}

void loading_work::begin() {
    if (tasks.empty()) {
        end();
        return;
    }
    // Threads that wait for a disk keep its queue filled. Where there is none to wait for, more of them than cores would be
    // in each other's way.
    const unsigned n_cores   = std::max(2u, std::thread::hardware_concurrency());
    const size_t   n_threads = std::min(s->options.n_read_threads, tasks[tasks.size() / 2].is_cached ? n_cores : UINT32_MAX);
    try {
        while (tasks.size() > 1 && threads.size() < std::min(tasks.size(), n_threads)) {
            threads.emplace_back([this] { run_tasks(); });
        }
    } catch (const std::system_error &) {
        // no more threads: those that are there do it
    }
    if (threads.empty()) {
        run_tasks();
    }
}

template <typename Condition>
void loading_work::wait_for(std::unique_lock<std::mutex> & guard, const Condition & condition) {
    if (condition()) {
        return;
    }
    const auto since = std::chrono::steady_clock::now();
    changed.wait(guard, condition);
    seconds_waited += seconds_since(since);
}

loading::loading(std::unique_ptr<loading_work> work) : work(std::move(work)) {}

loading::loading(loaded_state state) : work(std::make_unique<loading_work>(nullptr, nullptr)) {
    for (const loaded_run & run : state.runs) {
        work->there.push_back(run.data != nullptr);
    }
    work->anchor_there = state.anchor != nullptr;
    work->loaded       = std::move(state);
    work->ended        = true;
}

loading::~loading() {
    work->progress.abandoned = true;
    for (std::thread & thread : work->threads) {
        thread.join();
    }
}

size_t loading::n_tokens() const {
    return work->loaded.n_tokens;
}

size_t loading::n_runs() const {
    return work->loaded.runs.size();
}

size_t loading::wait_for_runs(size_t first, uint64_t bytes) {
    std::unique_lock<std::mutex> guard(work->mu);
    size_t   end     = first;
    uint64_t n_bytes = 0;
    work->wait_for(guard, [&] {
        for (; end < n_runs() && work->there[end]; end++) {
            n_bytes += work->loaded.runs[end].data->size();
        }
        return end == n_runs() || n_bytes >= bytes || work->ended;
    });
    return end;
}

const loaded_run & loading::run(size_t i) const {
    return work->loaded.runs[i];
}

blob loading::wait_for_anchor() {
    std::unique_lock<std::mutex> guard(work->mu);
    work->wait_for(guard, [&] { return work->anchor_there || work->ended; });
    return work->anchor_there ? work->loaded.anchor : nullptr;
}

// Some disks are fast for a moment and slow afterwards: the slower of both counts, since the beginning and of late.
status loading::wait_until_left(double seconds) {
    std::unique_lock<std::mutex> guard(work->mu);
    auto       late    = work->start;
    double     by_then = 0; // bytes
    double     of_late = 0; // bytes per second
    const auto is_near = [&] {
        const double n_read = static_cast<double>(work->progress.n_bytes.load());
        if (const double passed = seconds_since(late); passed >= late_seconds) {
            of_late = (n_read - by_then) / passed;
            by_then = n_read;
            late    = std::chrono::steady_clock::now();
        }
        return static_cast<double>(work->n_bytes) - n_read <= seconds * std::min(of_late, n_read / seconds_since(work->start));
    };
    while (!work->ended && (work->failed || !is_near())) {
        work->changed.wait_for(guard, std::chrono::milliseconds(1));
    }
    return work->result;
}

status loading::wait() {
    std::unique_lock<std::mutex> guard(work->mu);
    work->changed.wait(guard, [&] { return work->ended; });
    return work->result;
}

double loading::seconds_read() const {
    return work->seconds_read;
}

double loading::seconds_waited() const {
    return work->seconds_waited;
}

loaded_state & loading::state() {
    return work->loaded;
}

status store::begin_load(const match & m, const token * tokens, size_t n_tokens, std::unique_ptr<loading> & out) {
    store_state & s = *state;
    if (m.n_tokens == 0 || n_tokens < m.n_tokens || m.runs.empty()) {
        return status::miss("nothing to load");
    }
    // The tokens were compared during the search; an anchor has a checksum over all of its own besides.
    if (m.at != nullptr && (m.at->n_tokens != m.n_tokens || tokens_checksum(tokens, m.n_tokens) != m.at->tokens_checksum)) {
        s.count.load_failures++;
        return status::miss("the anchor at " + std::to_string(m.n_tokens) + " belongs to other tokens");
    }
    auto work = std::make_unique<loading_work>(&s, &m);
    try {
        work->prepare();
    } catch (const std::bad_alloc &) {
        s.count.load_failures++;
        return status::no_space("out of memory for the state of " + std::to_string(m.n_tokens) + " tokens");
    }
    work->begin();
    out = std::make_unique<loading>(std::move(work));
    return status::ok();
}

status store::load(const match & m, const token * tokens, size_t n_tokens, loaded_state & out) {
    std::unique_ptr<loading> reading;
    if (status s = begin_load(m, tokens, n_tokens, reading); !s.is_ok()) {
        return s;
    }
    const status s = reading->wait();
    if (s.is_ok()) {
        out = std::move(reading->state());
    }
    return s;
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

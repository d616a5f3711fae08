// How state is read: what is in RAM is taken from there, the rest by several threads, and every byte is checked.
#include "kvtier/loading.h"

#include "kvtier/checksum.h"
#include "kvtier/read_task.h"
#include "kvtier/store_rooms.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <set>
#include <system_error>
#include <thread>

namespace kvtier {

namespace {

using steady_clock = std::chrono::steady_clock;

constexpr double late_seconds = 0.016; // is long enough for several reads of a fast disk

double seconds_since(steady_clock::time_point start) {
    return std::chrono::duration<double>(steady_clock::now() - start).count();
}

// An anchor is large and has one checksum: threads read it in parts, and the one that ends last checks the whole.
struct anchor_reading {
    std::shared_ptr<buffer> data;
    std::atomic<size_t>     n_left{ 0 };
    std::atomic<bool>       failed{ false };
    std::atomic<bool>       whole{ false }; // and checked
};

} // namespace

// Everything outside of the guarded part is made before the threads begin and belongs to them afterwards, each task to the one
// that took it. A run's data may be used once it is there.
struct loading_work {
    loading_work(store_rooms * rooms, const match * m, reading_for whom = reading_for::request) : rooms(rooms), m(m), whom(whom) {}

    store_rooms * const                  rooms;       // null: everything was there from the beginning
    const match * const                  m;
    const reading_for                    whom;
    uint64_t                             turn = 0;
    loaded_state                         loaded;
    std::vector<std::shared_ptr<buffer>> into;        // by run: what is to be read
    std::vector<read_task>               tasks;
    anchor_reading                       anchor;
    uint64_t                             n_bytes = 0; // of all tasks
    read_progress                        progress;
    std::atomic<size_t>                  next_task{ 0 };
    std::vector<std::thread>             threads;

    const steady_clock::time_point start = steady_clock::now();

    mutable mutex     mu;
    condition         changed;
    std::vector<bool> there GUARDED_BY(mu);               // by run
    bool              anchor_there GUARDED_BY(mu) = false;
    bool              failed GUARDED_BY(mu)       = false;
    bool              ended GUARDED_BY(mu)        = false;
    size_t            n_left GUARDED_BY(mu)       = 0;    // tasks
    status            result GUARDED_BY(mu)       = status::ok();
    double            seconds_read GUARDED_BY(mu)   = 0;
    double            seconds_waited GUARDED_BY(mu) = 0;

    bool   is_asked_for() const { return whom == reading_for::request; }
    void   prepare();
    bool   is_cached(const read_task & task) const;
    void   begin();
    void   run_tasks();
    status run_task(read_task & task);
    void   done(const read_task & task);
    void   end();
    status forget_damaged();
    bool   forget(const read_task & task);
};

status loading_work::run_task(read_task & task) {
    std::unique_ptr<readable_file> file;
    if (status opened = open_for(rooms->e, task, file); !opened.is_ok()) {
        return opened;
    }
    (is_asked_for() ? rooms->count.bytes_read : rooms->count.bytes_read_ahead) += task.bytes;
    if (task.is_anchor) {
        return read_part(*file, task, anchor.data->data() + (task.offset - m->at->payload_offset), progress);
    }
    for (size_t i : task.runs) {
        const run & r = *m->runs[i].node;
        if (status got = read_verified(*file, task, r.offset, *into[i], r.checksum, progress); !got.is_ok()) {
            return got;
        }
    }
    return status::ok();
}

// Every thread takes tasks until none is left.
void loading_work::run_tasks() {
    for (size_t i = next_task++; i < tasks.size(); i = next_task++) {
        read_task & task = tasks[i];
        try {
            task.result = progress.abandoned ? given_up() : run_task(task);
        } catch (const std::bad_alloc &) {
            task.result = status::exhausted(task.path + ": out of memory for its state");
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
        mutex_lock guard(mu);
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

// A slow save must not hold up this request: if one is under way, it is left to it to move the files.
bool loading_work::forget(const read_task & task) {
    const auto defer = [this](const doomed_files & files) { rooms->files.defer(files); };
    return task.is_anchor ? rooms->known.forget_lost(m->at, task.result, defer)
                          : rooms->known.forget_lost(task.owner, task.result, defer);
}

// Gives a problem, if there was any. Lost objects leave the catalog at once: the next lookup does without them.
status loading_work::forget_damaged() {
    status                    problem = status::ok();
    std::set<const segment *> refused; // by the disk: however many parts of it, once per restore
    for (read_task & task : tasks) {
        if (task.result.is_ok()) {
            continue;
        }
        rooms->count.read_errors += task.result.is_io_error();
        const bool is_known = !task.is_anchor && task.result.is_io_error() && !refused.insert(task.owner).second;
        if (!task.given_up && !is_known && forget(task)) {
            if (task.result.is_miss()) {
                task.result = status::corrupt(damage::incomplete, task.path + ": is missing");
            }
            if (task.result.is_damaged()) {
                rooms->count.count_damage(task.result.reason());
            }
            rooms->files.note(task.path, task.result);
        }
        problem = task.result;
    }
    return problem;
}

// Runs once, after the last task.
void loading_work::end() {
    const status problem = forget_damaged();
    if (problem.is_ok()) {
        if (anchor.data != nullptr) {
            rooms->ram.put(object_kind::anchor, m->name_space, m->at->k, loaded.anchor, turn);
        }
        for (const read_task & task : tasks) {
            for (size_t i : task.runs) {
                rooms->ram.put(object_kind::page, m->name_space, m->runs[i].k, loaded.runs[i].data, turn);
            }
        }
        rooms->count.loads += is_asked_for();
    } else {
        rooms->count.load_failures += is_asked_for();
        if (rooms->files.writing.try_lock()) {
            mutex_lock writing(rooms->files.writing, std::adopt_lock);
            rooms->files.finish_deferred();
        }
    }
    mutex_lock guard(mu);
    seconds_read = seconds_since(start);
    result       = problem;
    ended        = true;
}

// Finds what is in RAM, and what has to be read. Throws when there is no memory for it.
void loading_work::prepare() {
    mutex_lock guard(mu);
    turn = rooms->known.turn_of(m->name_space);
    loaded.n_tokens = m->n_tokens;
    loaded.runs.resize(m->runs.size());
    for (size_t i = 0; i < m->runs.size(); i++) {
        // A model without attention rows has runs without payload: there is nothing to read.
        loaded.runs[i] = { m->runs[i].p0, m->runs[i].p1, m->runs[i].size == 0       ? std::make_shared<buffer>(0)
                                                         : m->runs[i].node == nullptr ? m->runs[i].data
                                                         : rooms->ram.get(object_kind::page, m->runs[i].k, turn) };
        rooms->count.bytes_from_ram += is_asked_for() && loaded.runs[i].data != nullptr ? m->runs[i].size : 0;
        there.push_back(loaded.runs[i].data != nullptr);
    }
    if (m->at != nullptr) {
        loaded.anchor = m->at->is_written() ? rooms->ram.get(object_kind::anchor, m->at->k, turn) : m->at->unwritten;
        rooms->count.bytes_from_ram += is_asked_for() && loaded.anchor != nullptr ? m->at->payload_size : 0;
        anchor_there = loaded.anchor != nullptr;
    }
    tasks  = read_tasks(rooms->layout, *m, loaded);
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
    return !rooms->e.open_file(task.path, file).is_ok() || file->is_cached(task.offset, task.bytes);
}

void loading_work::begin() {
    if (tasks.empty()) {
        end();
        return;
    }
    // Threads that wait for a disk keep its queue filled. Where there is none to wait for, more of them than cores would be
    // in each other's way.
    const unsigned n_cores   = std::max(2u, std::thread::hardware_concurrency());
    const size_t   n_threads = std::min(rooms->options.n_read_threads, tasks[tasks.size() / 2].is_cached ? n_cores : UINT32_MAX);
    try {
        while (tasks.size() > 1 && threads.size() < std::min(tasks.size(), n_threads)) {
            threads.emplace_back([this] { run_tasks(); });
        }
    } catch (const std::system_error &) {
        // There are no more threads to be had: those that are there do it.
    }
    if (threads.empty()) {
        run_tasks();
    }
}

loading::loading(std::unique_ptr<loading_work> work) : work(std::move(work)) {}

loading::loading(loaded_state state) : work(std::make_unique<loading_work>(nullptr, nullptr)) {
    mutex_lock guard(work->mu);
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
    const auto since   = steady_clock::now();
    size_t     end     = first;
    uint64_t   n_bytes = 0;
    mutex_lock guard(work->mu);
    for (bool waited = false;; waited = true) {
        for (; end < n_runs() && work->there[end]; end++) {
            n_bytes += work->loaded.runs[end].data->size();
        }
        if (end == n_runs() || n_bytes >= bytes || work->ended) {
            work->seconds_waited += waited ? seconds_since(since) : 0;
            return end;
        }
        work->changed.wait(guard);
    }
}

const loaded_run & loading::run(size_t i) const {
    return work->loaded.runs[i];
}

blob loading::wait_for_anchor() {
    const auto since = steady_clock::now();
    mutex_lock guard(work->mu);
    if (!work->anchor_there && !work->ended) {
        while (!work->anchor_there && !work->ended) {
            work->changed.wait(guard);
        }
        work->seconds_waited += seconds_since(since);
    }
    return work->anchor_there ? work->loaded.anchor : nullptr;
}

// Some disks are fast for a moment and slow afterwards: the slower of both counts, since the beginning and of late.
status loading::wait_until_left(double seconds) {
    auto       late    = work->start;
    double     by_then = 0; // bytes
    double     of_late = 0; // bytes per second
    const auto is_near = [&] {
        const double n_read = static_cast<double>(work->progress.n_bytes.load());
        if (const double passed = seconds_since(late); passed >= late_seconds) {
            of_late = (n_read - by_then) / passed;
            by_then = n_read;
            late    = steady_clock::now();
        }
        return static_cast<double>(work->n_bytes) - n_read <= seconds * std::min(of_late, n_read / seconds_since(work->start));
    };
    mutex_lock guard(work->mu);
    while (!work->ended && (work->failed || !is_near())) {
        work->changed.wait_until(guard, steady_clock::now() + std::chrono::milliseconds(1));
    }
    return work->result;
}

bool loading::wait_at_most(std::chrono::milliseconds time) {
    const auto until = steady_clock::now() + time;
    mutex_lock guard(work->mu);
    while (!work->ended && steady_clock::now() < until) {
        work->changed.wait_until(guard, until);
    }
    return work->ended;
}

status loading::wait() {
    mutex_lock guard(work->mu);
    while (!work->ended) {
        work->changed.wait(guard);
    }
    return work->result;
}

double loading::seconds_read() const {
    mutex_lock guard(work->mu);
    return work->seconds_read;
}

double loading::seconds_waited() const {
    mutex_lock guard(work->mu);
    return work->seconds_waited;
}

loaded_state & loading::state() {
    return work->loaded;
}

status begin_loading(store_rooms & rooms, const match & m, reading_for whom, std::unique_ptr<loading> & out) {
    auto work = std::make_unique<loading_work>(&rooms, &m, whom);
    try {
        work->prepare();
    } catch (const std::bad_alloc &) {
        rooms.count.load_failures += work->is_asked_for();
        return status::exhausted("out of memory for the state of " + std::to_string(m.n_tokens) + " tokens");
    }
    work->begin();
    out = std::make_unique<loading>(std::move(work));
    return status::ok();
}

status store::begin_load(const match & m, const token * tokens, size_t n_tokens, std::unique_ptr<loading> & out) {
    if (m.n_tokens == 0 || n_tokens < m.n_tokens || m.runs.empty()) {
        return status::miss("nothing to load");
    }
    // The tokens were compared during the search; an anchor has a checksum over all of its own besides.
    if (m.at != nullptr && (m.at->n_tokens != m.n_tokens || tokens_checksum(tokens, m.n_tokens) != m.at->tokens_checksum)) {
        rooms->count.load_failures++;
        return status::miss("the anchor at " + std::to_string(m.n_tokens) + " belongs to other tokens");
    }
    if (!std::all_of(m.arriving.begin(), m.arriving.end(), [](const auto & data) { return data->wait(); })) {
        rooms->count.load_failures++;
        return status::miss("what waits to be written could not be copied");
    }
    return begin_loading(*rooms, m, reading_for::request, out);
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
    loaded_state nothing;
    nothing.runs.resize(m.runs.size());
    for (const read_task & task : read_tasks(rooms->layout, m, nothing)) {
        std::unique_ptr<readable_file> file;
        if (rooms->e.open_file(task.path, file).is_ok()) {
            file->will_need(task.offset, task.bytes);
        }
    }
}

} // namespace kvtier

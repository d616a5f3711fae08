#include "kvtier/writer.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace kvtier {

writer::writer(store & s, uint64_t max_queue_bytes, trouble_listener listener) :
    target(s), max_bytes(max_queue_bytes), listener(std::move(listener)) {
    thread = std::thread([this] { run(); });
}

writer::~writer() {
    stop();
}

save_request writer::plan(const plan_request & request) const {
    std::vector<save_run> queued_runs;
    {
        mutex_lock guard(mu);
        for (const save_request & queued_request : queue) {
            for (const save_run & r : queued_request.runs) {
                save_run name = r;
                name.data = nullptr;
                queued_runs.push_back(std::move(name));
            }
        }
    }
    return target.plan(request, queued_runs);
}

bool writer::enqueue(save_request request) {
    const uint64_t size = request.bytes();
    mutex_lock guard(mu);
    if (!admits(size)) {
        return false;
    }
    bytes += size;
    n_queued++;
    queue.push_back(std::move(request));
    changed.notify_all();
    return true;
}

bool writer::has_room(uint64_t n_bytes) {
    mutex_lock guard(mu);
    return admits(n_bytes);
}

bool writer::admits(uint64_t n_bytes) {
    if (stopping || n_bytes > max_bytes || bytes > max_bytes - n_bytes) {
        target.count().skipped_queue_full++;
        return false;
    }
    return true;
}

writer::promise writer::coming(const chain_root & root, const token * tokens, size_t n_tokens) const {
    promise best;
    mutex_lock guard(mu);
    if (queue.empty() || held) {
        return best;
    }
    const key wanted = root_key(root);
    uint64_t  number = n_done;
    for (const save_request & request : queue) {
        number++;
        if (root_key(request.root) != wanted) {
            continue;
        }
        const size_t n_both = std::min(n_tokens, request.tokens.size());
        const auto   parted = std::mismatch(tokens, tokens + n_both, request.tokens.begin());
        size_t       length = static_cast<size_t>(parted.first - tokens);
        if (request.folded) {
            size_t anchored = 0;
            for (const save_anchor & a : request.anchors) {
                anchored = a.n_tokens <= length ? std::max<size_t>(anchored, a.n_tokens) : anchored;
            }
            length = anchored;
        }
        if (length > best.n_tokens) {
            best = { length, number };
        }
    }
    return best;
}

bool writer::wait_for(const promise & save, std::chrono::milliseconds at_most) {
    mutex_lock guard(mu);
    const auto until = std::chrono::steady_clock::now() + at_most;
    while (n_done < save.number) {
        if (!changed.wait_until(guard, until)) {
            return n_done >= save.number;
        }
    }
    return true;
}

void writer::hold(bool on) {
    mutex_lock guard(mu);
    held = on;
    changed.notify_all();
}

void writer::flush() {
    mutex_lock guard(mu);
    const uint64_t until = n_queued;
    n_flushed = std::max(n_flushed, until);
    changed.notify_all();
    while (n_done < until) {
        changed.wait(guard);
    }
}

void writer::stop() {
    {
        mutex_lock guard(mu);
        stopping = true;
        changed.notify_all();
    }
    if (thread.joinable()) {
        thread.join();
    }
}

uint64_t writer::queued_bytes() const {
    mutex_lock guard(mu);
    return bytes;
}

size_t writer::queued() const {
    mutex_lock guard(mu);
    return queue.size();
}

std::string writer::last_error() const {
    mutex_lock guard(mu);
    return error;
}

void writer::run() {
    mutex_lock guard(mu);
    for (;;) {
        while (!stopping && (queue.empty() || (held && n_done >= n_flushed))) {
            changed.wait(guard);
        }
        if (queue.empty()) {
            return;
        }
        // It stays in the queue while it is written, for plan() to see; a deque does not move its front.
        const save_request & request = queue.front();
        guard.unlock();
        status result = status::ok();
        try {
            result = request.wait_for_data() ? target.save(request) : status::miss("its state could not be copied");
        } catch (const std::exception & e) { // out of memory: this turn is not persisted
            target.count().skipped_exhausted++;
            result = status::exhausted(e.what());
        }
        const uint64_t size = request.bytes();
        // A request that had nothing to write says nothing about the disk.
        const bool wrote  = result.is_ok() && size > 0;
        const bool failed = result.is_no_space() || result.is_exhausted() || result.is_io_error();
        if (listener && (in_trouble ? wrote : failed)) {
            in_trouble = failed;
            listener(result);
        }
        guard.lock();
        error  = wrote || !result.is_ok() ? result.message() : error;
        bytes -= size;
        n_done++;
        queue.pop_front();
        changed.notify_all();
    }
}

} // namespace kvtier

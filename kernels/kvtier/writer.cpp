#include "kvtier/writer.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace kvtier {

// So much of the RAM tier's size may be kept back at most.
static constexpr uint64_t settling_share = 4;

writer::writer(store & s, uint64_t max_queue_bytes, trouble_listener listener, std::chrono::milliseconds settle) :
    target(s), max_bytes(max_queue_bytes), listener(std::move(listener)), settled(settle, s.options().ram_bytes / settling_share) {
    thread = std::thread([this] { run(); });
}

writer::~writer() {
    stop();
}

save_request writer::plan(const plan_request & request) const {
    std::vector<save_run> queued_runs;
    {
        mutex_lock guard(mu);
        for (const auto & queued_request : queue) {
            for (const save_run & r : queued_request->runs) {
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
    queue.push_back(std::make_shared<const save_request>(std::move(request)));
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

// The queue comes first: what is done with meanwhile is in the store as well.
match writer::find(const lookup_request & request) const {
    queued_saves saves;
    {
        mutex_lock guard(mu);
        saves.assign(queue.begin(), queue.end());
    }
    return find_with_queued(request, saves, target);
}

void writer::hold(bool on) {
    mutex_lock guard(mu);
    held = on;
    changed.notify_all();
}

void writer::flush() {
    mutex_lock guard(mu);
    const uint64_t until = n_queued;
    settle_until = std::max(settle_until, until);
    n_flushed    = std::max(n_flushed, until);
    changed.notify_all();
    while (n_done < until || settled.has_any_until(until) || settling_one) {
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

uint64_t writer::unwritten_bytes() const {
    mutex_lock guard(mu);
    return settled.bytes();
}

size_t writer::unwritten() const {
    mutex_lock guard(mu);
    return settled.size();
}

//
// the thread
//

bool writer::may_write_queued() const {
    return !queue.empty() && (!held || n_done < n_flushed);
}

bool writer::may_write_settled() const {
    return held ? settled.has_any_until(settle_until) : settled.is_due(settling::clock::now(), settle_until);
}

// Else what is kept back comes when the queue is empty, which on a busy server may never be: neither a flush nor the bound waits
// for that.
bool writer::settled_comes_first() const {
    return (!held && settled.is_over_limit()) || (n_done >= settle_until && settled.has_any_until(settle_until));
}

void writer::run() {
    mutex_lock guard(mu);
    for (;;) {
        while (!stopping && !may_write_queued() && !may_write_settled()) {
            const auto next = settled.next_due();
            if (next && !held) {
                (void) changed.wait_until(guard, *next);
            } else {
                changed.wait(guard);
            }
        }
        if (!queue.empty() && (stopping || may_write_queued()) && !settled_comes_first()) {
            // It stays in the queue while it is written, for plan and find to see.
            std::shared_ptr<const save_request> request = queue.front();
            const bool                          waits   = settled.concerns(*request);
            guard.unlock();
            const uint64_t size = request->bytes();
            written        done = write(*request, waits);
            guard.lock();
            if (done.keeps_back) {
                auto needless = settled.add(std::move(done.later), n_done + 1, settling::clock::now());
                guard.unlock();
                give_up(std::move(needless));
                guard.lock();
            }
            error  = done.wrote || !done.result.is_ok() ? done.result.message() : error;
            bytes -= size;
            n_done++;
            queue.pop_front(); // Who sees it done sees counted what it made needless, too.
            changed.notify_all();
            guard.unlock();
            request.reset(); // Freeing what nobody else holds takes a while, for which nobody should wait.
            guard.lock();
        } else if (const auto turn = settled.take_due(held ? settling::clock::time_point::min() : settling::clock::now(),
                                                      stopping ? n_queued : settle_until)) {
            settling_one = true;
            guard.unlock();
            const status result = write_settled(*turn);
            guard.lock();
            settling_one = false;
            error        = result.message();
            changed.notify_all();
        } else if (stopping) {
            return;
        }
    }
}

// waits: its folded state may be kept back.
writer::written writer::write(const save_request & request, bool waits) {
    written done;
    done.result = guarded([&] {
        if (!request.wait_for_data()) {
            return status::miss("its state could not be copied");
        }
        save_request now;
        if (waits) {
            now        = request;
            done.later = settling::split(now);
        }
        const save_request & what     = waits ? now : request;
        size_t               n_stored = 0;
        const status         saved    = target.save(what, n_stored);
        done.later.cut_to(n_stored);
        done.wrote      = saved.is_ok() && what.bytes() > 0; // Who had nothing to write says nothing about the disk.
        done.keeps_back = waits && saved.is_ok() && n_stored > 0 && (done.later.checkpoint || !done.later.anchors.empty());
        if (done.keeps_back) {
            target.keep_unwritten(done.later);
        }
        return saved;
    });
    tell(done.result, done.wrote);
    return done;
}

// By value: what nobody else holds is freed here, while nobody waits for the lock.
void writer::give_up(std::vector<save_request> needless) {
    for (const save_request & turn : needless) {
        target.count().anchors_superseded += turn.anchors.size();
        target.give_up_unwritten(turn);
    }
}

status writer::write_settled(const save_request & turn) {
    const status result = guarded([&] { return target.save(turn); });
    save_request gone; // What of it could not be written, or was not allowed to be, unless another turn waits with it, too.
    gone.root = turn.root;
    {
        mutex_lock guard(mu);
        for (const save_anchor & a : turn.anchors) {
            if (!settled.waits(a.k)) {
                gone.anchors.push_back(a);
            }
        }
    }
    target.give_up_unwritten(gone);
    tell(result, result.is_ok());
    return result;
}

// Without memory this turn is not persisted, and the next one is tried.
status writer::guarded(const std::function<status()> & work) {
    try {
        return work();
    } catch (const std::exception & e) {
        target.count().skipped_exhausted++;
        return status::exhausted(e.what());
    }
}

void writer::tell(const status & result, bool wrote) {
    const bool failed = result.is_no_space() || result.is_exhausted() || result.is_io_error();
    if (listener && (in_trouble ? wrote : failed)) {
        in_trouble = failed;
        listener(result);
    }
}

} // namespace kvtier

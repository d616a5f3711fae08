// The thread that writes, so that serving never waits for a disk.
//
// Requests wait in a queue bounded by bytes. When it is full, a request is refused and counted; nothing blocks and
// nothing fails but the persisting of that turn, and the next turn's plan includes what this one left out. plan() knows
// what is queued, so that pages handed over early (while an answer is still being generated) are not copied twice.
//
// Folded state may be kept back until its conversation rests (settling.h); it is found in memory meanwhile.
//
// Ownership: the store must outlive the writer. Thread safety: all functions may be called from any thread; enqueue and
// plan return without waiting for files.
#pragma once

#include "kvtier/queued_state.h"
#include "kvtier/settling.h"
#include "kvtier/store.h"
#include "kvtier/thread_annotations.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace kvtier {

class writer {
public:
    // The writer's thread tells it when saves begin to fail for want of room or because of the disk, and ok when one has
    // succeeded again. Saves that a full queue refuses do not count: the next turn has them.
    using trouble_listener = std::function<void(const status & result)>;

    // settle: how long a conversation rests before its folded state is written.
    writer(store & s, uint64_t max_queue_bytes, trouble_listener listener = {}, std::chrono::milliseconds settle = {});
    ~writer(); // stop()

    // Says what has to be copied out of the backend to save this sequence: the caller fills in `data` and passes it to enqueue.
    save_request plan(const plan_request & request) const;

    // False when the queue is full or the writer has stopped, which is counted as skipped.
    bool enqueue(save_request request);

    // Says the same for a request of about that size, so that nothing is copied in vain.
    bool has_room(uint64_t n_bytes);

    // What the store's lookup would find if the queue were on disk. Some of it may still be on its way into memory.
    match find(const lookup_request & request) const;

    // Nothing is written from now on, until it is allowed again, flushed or stopped: a battery is low. Requests stay in the
    // queue, and are found there.
    void hold(bool on);

    // Returns when everything that was queued before the call is on disk, or has failed; also what was kept back.
    void flush();

    // Flushes and ends the thread. Afterwards enqueue refuses.
    void stop();

    uint64_t    queued_bytes() const;
    size_t      queued() const;     // requests, with the one being written
    uint64_t    unwritten_bytes() const; // of folded state that is kept back
    size_t      unwritten() const;       // anchors
    std::string last_error() const; // of the last save that failed; empty if one with something to write has succeeded since

private:
    struct written {
        status       result     = status::ok();
        bool         wrote      = false;
        bool         keeps_back = false;
        save_request later; // what of it
    };

    bool    admits(uint64_t n_bytes) REQUIRES(mu);
    bool    may_write_queued() const REQUIRES(mu);
    bool    may_write_settled() const REQUIRES(mu);
    bool    settled_comes_first() const REQUIRES(mu);
    void    run();
    written write(const save_request & request, bool waits);
    void    give_up(std::vector<save_request> needless);
    status  write_settled(const save_request & turn);
    status  guarded(const std::function<status()> & work);
    void    tell(const status & result, bool wrote);

    store &                target;
    const uint64_t         max_bytes;
    const trouble_listener listener;
    bool                   in_trouble = false; // is the writer's thread's own

    mutable mutex            mu;
    condition                changed;
    std::deque<std::shared_ptr<const save_request>> queue GUARDED_BY(mu); // the front one is being written
    uint64_t                 bytes GUARDED_BY(mu)    = 0;
    uint64_t                 n_queued GUARDED_BY(mu) = 0; // ever
    uint64_t                 n_done GUARDED_BY(mu)   = 0; // ever
    bool                     held GUARDED_BY(mu)     = false;
    uint64_t                 n_flushed GUARDED_BY(mu) = 0; // up to here they are written, held or not
    bool                     stopping GUARDED_BY(mu) = false;
    settling                 settled GUARDED_BY(mu);
    uint64_t                 settle_until GUARDED_BY(mu) = 0; // the number of the last save that is not kept back any more
    bool                     settling_one GUARDED_BY(mu) = false; // is being written
    std::string              error GUARDED_BY(mu);
    std::thread              thread;
};

} // namespace kvtier

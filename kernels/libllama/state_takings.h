// Copies of state that go on beside evaluation, out of a context and into it: made by a thread of their own, on a queue of their own
// on each device. A worker of another machine has one queue for everything: there the copies come between the batches.
//
// Rows do not change once they are evaluated, until their cells are given to other tokens. They are copied from where they are,
// and whoever is about to write to their cells waits for that (state_guard.h). Folded state changes with every batch. The device
// copies it aside, behind the batch that made it, and the thread fetches it from there.
//
// What cannot be done beside is done at once, as it would be without a thread: on devices without events or queues and with
// Vulkan, for snapshots that the device has no memory for, for folded state in host memory or in scattered pieces.
//
// Thread safety: one thread gives orders and writes to cells, the context's. Any may wait for the results.
#pragma once

#include "state_copies.h"

#include "../kvtier/thread_annotations.h"

#include "ggml-cpp.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

class llama_kv_cache;

namespace state_rows {

// Cells [first, end) of one stream.
struct cell_range {
    uint32_t stream;
    uint32_t first;
    uint32_t end;

    bool operator<(const cell_range & other) const { return std::tie(stream, first) < std::tie(other.stream, other.first); }
};

// Adds these cells, of which many follow each other.
void add_ranges(std::vector<cell_range> & out, uint32_t stream, const std::vector<uint32_t> & cells);

// What is copied from or to cells, which nobody else may write to meanwhile.
struct rows_order {
    copies                  what;
    const llama_kv_cache *  from = nullptr;
    std::vector<cell_range> cells;
    copies::direction       dir = copies::TO_HOST;
};

// Device memory for one folded state. It is free when nobody else holds it.
struct snapshot {
    ggml_backend_buffer_ptr buffer;
    ggml_context_ptr        ctx;
    ggml_tensor *           bytes;
};

// One order to the thread. The result is false where something could not be copied, and nobody knows what is in its place.
struct taking {
    rows_order                             order;
    std::vector<std::pair<ggml_backend_dev_t, ggml_backend_event_ptr>> behind; // the batches that must have ended
    std::vector<std::shared_ptr<snapshot>> kept;   // that it copies from
    std::promise<bool>                     result;
};

class taker {
public:
    // now: copies at once, after everything that was evaluated.
    explicit taker(std::function<void(copies &, copies::direction)> now);
    ~taker(); // returns when everything is taken

    taker(const taker &) = delete;
    taker & operator=(const taker &) = delete;

    // Makes the queues, once the context has a scheduler: it gets that with its first batch.
    void connect(ggml_backend_sched_t sched);

    std::shared_future<bool> take(rows_order rows);
    std::shared_future<bool> take_folded(copies what);

    // Into cells that no batch looks at before the result is there; what is in host memory is there at once.
    std::shared_future<bool> put(rows_order rows);

    // Returns when none of these cells is being copied; null: none of the cache's.
    void before_write(const llama_kv_cache * kv, const std::vector<cell_range> * cells);

    // From all devices; any thread may ask.
    bool takes_beside() const { return all_have_queues; }

    // Into at least one device; any thread may ask.
    bool puts_beside() const { return any_has_queue; }

    // By before_write, and for room for a snapshot. Any thread may ask.
    uint64_t waited_us() const { return n_waited_us; }

private:
    // Of a device that can copy while it evaluates.
    struct queue {
        ggml_backend_t   evaluating; // the context's own
        ggml_backend_ptr copying;
    };

    struct pending {
        std::shared_ptr<taking>  what;
        std::shared_future<bool> result;
    };

    std::shared_future<bool>  give(rows_order rows, std::vector<std::shared_ptr<snapshot>> kept);
    std::shared_ptr<snapshot> room_on(ggml_backend_dev_t device, size_t size);
    void                      wait(const std::shared_future<bool> & result);
    void                      run();

    const std::function<void(copies &, copies::direction)> now;
    bool                                   connected = false;
    std::atomic<bool>                      all_have_queues{ false };
    std::atomic<bool>                      any_has_queue{ false };
    std::map<ggml_backend_dev_t, queue>    queues; // complete before the first order is given
    std::vector<std::shared_ptr<snapshot>> snapshots;
    std::atomic<uint64_t>                  n_waited_us{ 0 };

    kvtier::mutex       mu;
    kvtier::condition   changed;
    std::deque<pending> orders GUARDED_BY(mu); // the front one is being taken
    bool                over GUARDED_BY(mu) = false;
    std::thread         thread;
};

} // namespace state_rows

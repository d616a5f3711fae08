#include "state_takings.h"

#include "state_guard.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <tuple>
#include <utility>

namespace state_rows {

// How many folded states may be on their way from one device: a turn leaves two or three within a moment.
static constexpr size_t MOST_SNAPSHOTS = 4;

// What must be left on the device: a longer batch may still want memory, and evaluating cannot do without.
static constexpr size_t LEAST_FREE = 1u << 30;

static constexpr size_t   SNAPSHOT_ALIGNMENT = 256;
static constexpr unsigned TAKING_THREADS     = 2; // nobody waits for it: the other cores are left to those who are waited for
static constexpr unsigned PUTTING_THREADS    = 4; // a request does

// Cells are written to far more often than any are being copied.
static std::atomic<uint32_t> n_taking{ 0 };

static kvtier::mutex        every_taker_mu;
static std::vector<taker *> every_taker GUARDED_BY(every_taker_mu);

// Vulkan stays out: waiting for one of its events frees a command buffer of the queue that evaluates, which only that queue's thread
// may, and its copies between tensors are not ordered behind what wrote to them.
static bool can_copy_beside(ggml_backend_dev_t device) {
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device, &props);
    const bool is_vulkan = strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), "Vulkan") == 0;
    return props.caps.async && props.caps.events && !is_vulkan;
}

// A worker of another machine.
static bool is_remote(ggml_backend_dev_t device) {
    return strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), "RPC") == 0;
}

void add_ranges(std::vector<cell_range> & out, uint32_t stream, const std::vector<uint32_t> & cells) {
    for (const uint32_t i : cells) {
        if (!out.empty() && out.back().stream == stream && out.back().end == i) {
            out.back().end++;
        } else {
            out.push_back({ stream, i, i + 1 });
        }
    }
}

taker::taker(std::function<void(copies &, copies::direction)> now) : now(std::move(now)) {
    thread = std::thread([this] { run(); });
    kvtier::mutex_lock lock(every_taker_mu);
    every_taker.push_back(this);
}

void taker::connect(ggml_backend_sched_t sched) {
    if (connected || !sched) {
        return;
    }
    connected = true;
    bool all = true;
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); ++i) {
        ggml_backend_t     evaluating = ggml_backend_sched_get_backend(sched, i);
        ggml_backend_dev_t device     = ggml_backend_get_device(evaluating);
        const auto         type       = ggml_backend_dev_type(device);
        if (type != GGML_BACKEND_DEVICE_TYPE_GPU && type != GGML_BACKEND_DEVICE_TYPE_IGPU) {
            continue; // the others work in host memory
        }
        copies::prepare(device);
        ggml_backend_ptr copying(can_copy_beside(device) ? ggml_backend_dev_init(device, nullptr) : nullptr);
        if (copying) {
            queues.emplace(device, queue { evaluating, std::move(copying) });
        }
        all = all && queues.count(device) != 0;
    }
    all_have_queues = all;
    any_has_queue   = !queues.empty();
}

taker::~taker() {
    {
        kvtier::mutex_lock lock(every_taker_mu);
        every_taker.erase(std::remove(every_taker.begin(), every_taker.end(), this), every_taker.end());
    }
    {
        kvtier::mutex_lock lock(mu);
        over = true;
        changed.notify_all();
    }
    thread.join();
}

//
// orders
//

std::shared_future<bool> taker::give(rows_order rows, std::vector<std::shared_ptr<snapshot>> kept) {
    auto t = std::make_shared<taking>();
    t->order = std::move(rows);
    t->kept  = std::move(kept);
    std::sort(t->order.cells.begin(), t->order.cells.end());
    for (const auto & [device, q] : queues) {
        ggml_backend_event_ptr event(ggml_backend_event_new(device));
        ggml_backend_event_record(event.get(), q.evaluating);
        t->behind.emplace_back(device, std::move(event));
    }
    const std::shared_future<bool> result = t->result.get_future().share();
    n_taking++;
    kvtier::mutex_lock lock(mu);
    orders.push_back({ t, result });
    changed.notify_all();
    return result;
}

std::shared_future<bool> taker::take(rows_order rows) {
    copies at_once = rows.what.split([&](const copy & c) {
        ggml_backend_dev_t device = device_of(c.tensor);
        return device && queues.count(device) == 0;
    });
    if (!at_once.empty()) {
        now(at_once, copies::TO_HOST);
    }
    return give(std::move(rows), {});
}

std::shared_future<bool> taker::put(rows_order rows) {
    rows.dir = copies::TO_TENSOR;
    copies at_once = rows.what.split([&](const copy & c) { return queues.count(device_of(c.tensor)) == 0; });
    if (!at_once.empty()) {
        now(at_once, copies::TO_TENSOR);
    }
    if (rows.what.empty()) {
        std::promise<bool> done;
        done.set_value(true);
        return done.get_future().share();
    }
    return give(std::move(rows), {});
}

std::shared_future<bool> taker::take_folded(copies what) {
    rows_order                             aside;
    std::vector<std::shared_ptr<snapshot>> kept;
    for (const auto & [device, q] : queues) {
        const ggml_backend_dev_t here = device;
        copies own  = what.split([&](const copy & c) { return c.n == 1 && device_of(c.tensor) == here; });
        size_t size = 0;
        for (const copy & c : own.list()) {
            size += GGML_PAD(c.size, SNAPSHOT_ALIGNMENT);
        }
        const std::shared_ptr<snapshot> room = size > 0 ? room_on(device, size) : nullptr;
        if (!room) {
            if (size > 0) {
                now(own, copies::TO_HOST);
            }
            continue;
        }
        const ggml_context_ptr ctx(ggml_init({ 2*own.list().size()*ggml_tensor_overhead(), nullptr, true }));
        uint8_t * const base = (uint8_t *) room->bytes->data;
        size_t          at   = 0;
        for (const copy & c : own.list()) {
            ggml_tensor * from = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I8, c.size);
            from->view_src  = c.tensor->view_src ? c.tensor->view_src : c.tensor;
            from->view_offs = (c.tensor->view_src ? c.tensor->view_offs : 0) + c.offset;
            from->buffer    = from->view_src->buffer;
            from->data      = (uint8_t *) c.tensor->data + c.offset;
            ggml_tensor * to = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I8, c.size);
            ggml_backend_tensor_alloc(room->buffer.get(), to, base + at);
            ggml_backend_tensor_copy_async(q.evaluating, q.evaluating, from, to);
            aside.what.note(room->bytes, at, c.host, c.size);
            at += GGML_PAD(c.size, SNAPSHOT_ALIGNMENT);
        }
        kept.push_back(room);
    }
    if (!what.empty()) {
        now(what, copies::TO_HOST);
    }
    return give(std::move(aside), std::move(kept));
}

// Null: the device has no memory for it.
std::shared_ptr<snapshot> taker::room_on(ggml_backend_dev_t device, size_t size) {
    // A worker that frees memory forgets the graph that it is to repeat for the next token, ends the connection, and llama.cpp
    // aborts. So nothing is freed there while tokens may follow, and sizes are rounded up, so that few are asked for.
    const bool stays = is_remote(device);
    if (stays) {
        size_t rounded = SNAPSHOT_ALIGNMENT;
        while (rounded < size) {
            rounded *= 2;
        }
        size = rounded;
    }
    for (;;) {
        size_t n_here = 0;
        for (auto it = snapshots.begin(); it != snapshots.end();) {
            const bool here = ggml_backend_buft_get_device(ggml_backend_buffer_get_type((*it)->buffer.get())) == device;
            const bool free = it->use_count() == 1;
            const bool fits = ggml_nbytes((*it)->bytes) >= size;
            if (here && free && fits) {
                return *it;
            }
            if (here && free && !stays) {
                it = snapshots.erase(it); // too small, and a larger one will take its place
                continue;
            }
            n_here += here && (fits || !stays);
            ++it;
        }
        if (n_here < MOST_SNAPSHOTS) {
            size_t free  = 0;
            size_t total = 0;
            ggml_backend_dev_memory(device, &free, &total);
            if (free < size + LEAST_FREE) {
                return nullptr;
            }
            auto made = std::make_shared<snapshot>();
            made->buffer.reset(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), size));
            if (!made->buffer) {
                return nullptr;
            }
            made->ctx.reset(ggml_init({ ggml_tensor_overhead(), nullptr, true }));
            made->bytes = ggml_new_tensor_1d(made->ctx.get(), GGML_TYPE_I8, size);
            ggml_backend_tensor_alloc(made->buffer.get(), made->bytes, ggml_backend_buffer_get_base(made->buffer.get()));
            snapshots.push_back(made);
            return made;
        }
        std::shared_future<bool> first;
        {
            kvtier::mutex_lock lock(mu);
            if (!orders.empty()) {
                first = orders.front().result;
            }
        }
        if (first.valid()) {
            wait(first);
        }
    }
}

//
// waiting
//

namespace {

class waiting {
public:
    explicit waiting(std::atomic<uint64_t> & total) : total(total) {}
    ~waiting() {
        total += std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
    }

private:
    std::atomic<uint64_t> & total;
    const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

// Both are sorted.
bool meet(const std::vector<cell_range> & a, const std::vector<cell_range> & b) {
    auto x = a.begin();
    auto y = b.begin();
    while (x != a.end() && y != b.end()) {
        if (x->stream == y->stream && x->first < y->end && y->first < x->end) {
            return true;
        }
        (std::tie(x->stream, x->end) < std::tie(y->stream, y->end) ? x : y)++;
    }
    return false;
}

} // namespace

void taker::wait(const std::shared_future<bool> & result) {
    const waiting measured(n_waited_us);
    result.wait();
}

void taker::before_write(const llama_kv_cache * kv, const std::vector<cell_range> * cells) {
    std::shared_future<bool> result;
    {
        // They are taken in order: when the last one that counts is done, those before it are.
        kvtier::mutex_lock lock(mu);
        const auto last = std::find_if(orders.rbegin(), orders.rend(), [&](const pending & p) {
            return p.what->order.from == kv && (!cells || meet(*cells, p.what->order.cells));
        });
        if (last == orders.rend()) {
            return;
        }
        result = last->result;
    }
    wait(result);
}

//
// the thread
//

void taker::run() {
    kvtier::mutex_lock lock(mu);
    const copies::backend_finder on_queue = [this](ggml_backend_dev_t device) {
        const auto q = queues.find(device);
        return q == queues.end() ? nullptr : q->second.copying.get();
    };
    for (;;) {
        while (!over && orders.empty()) {
            changed.wait(lock);
        }
        if (orders.empty()) {
            return;
        }
        const std::shared_ptr<taking> t = orders.front().what;
        lock.unlock();
        bool copied = true;
        try {
            for (const auto & [device, event] : t->behind) {
                ggml_backend_t copying = queues.at(device).copying.get();
                ggml_backend_event_wait(copying, event.get());
                ggml_backend_synchronize(copying);
            }
            t->order.what.make(t->order.dir, on_queue, t->order.dir == copies::TO_HOST ? TAKING_THREADS : PUTTING_THREADS);
        } catch (const std::exception &) {
            copied = false;
        }
        t->behind.clear();
        t->kept.clear();
        lock.lock();
        orders.pop_front();
        n_taking--;
        t->result.set_value(copied);
    }
}

} // namespace state_rows

using namespace state_rows;

void llama_state_before_write(const llama_kv_cache * kv) {
    if (n_taking > 0) {
        kvtier::mutex_lock lock(every_taker_mu);
        for (taker * t : every_taker) {
            t->before_write(kv, nullptr);
        }
    }
}

void llama_state_before_write(const llama_kv_cache * kv, const std::vector<llama_seq_id> & streams, const std::vector<std::vector<uint32_t>> & cells) {
    if (n_taking == 0) {
        return;
    }
    std::vector<cell_range> ranges;
    for (size_t s = 0; s < cells.size(); ++s) {
        add_ranges(ranges, (uint32_t) streams[s], cells[s]);
    }
    std::sort(ranges.begin(), ranges.end());
    kvtier::mutex_lock lock(every_taker_mu);
    for (taker * t : every_taker) {
        t->before_write(kv, &ranges);
    }
}

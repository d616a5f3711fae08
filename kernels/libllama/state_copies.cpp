// Three ways, by where a tensor is and how its pieces lie:
//
//   host memory                         memcpy, by two threads
//   a device, few or scattered bytes    piece by piece; so are a worker's of another machine, which has no such memory
//   a device, many bytes                through memory that the device reaches by itself: a device copies from and to ordinary
//                                       memory several times slower, and waits after each piece
#include "state_copies.h"

#include "../kvtier/thread_annotations.h"

#include "ggml-cpp.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <system_error>
#include <thread>
#include <tuple>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace state_rows {

static constexpr size_t   LEAST_SHARED   = 1u << 20;  // bytes that are worth a thread
static constexpr size_t   LEAST_STREAMED = 4u << 10;  // bytes of a piece that are worth going past the caches
static constexpr size_t   STAGE_BYTES    = 16u << 20; // one is filled or emptied while the device works on the other
static constexpr size_t   PIECE_BYTES    = 1u << 20;  // more at once would keep a batch waiting on a worker's one connection
static constexpr unsigned MEMORY_THREADS = 2;         // one core alone does not fill the bus

static bool is_in_host_memory(const ggml_tensor * t) {
    return ggml_backend_buffer_is_host(t->view_src ? t->view_src->buffer : t->buffer);
}

// Threads, with the caller's among them, that share one piece of work after another. In between they do not sleep: the next
// piece is there sooner than they would be awake again.
class team {
public:
    explicit team(unsigned n) {
        try {
            while (size() < n) {
                others.emplace_back([this, i = size()] { serve(i); });
            }
        } catch (const std::system_error &) {
            // no more threads: those that are there do it
        }
    }

    ~team() {
        over = true;
        for (std::thread & other : others) {
            other.join();
        }
    }

    unsigned size() const { return 1 + (unsigned) others.size(); }

    // work(0) .. work(size() - 1), at once.
    void share(const std::function<void(unsigned)> & work) {
        current = &work;
        n_busy  = (unsigned) others.size();
        n_shared++;
        work(0);
        while (n_busy > 0) {
            std::this_thread::yield();
        }
    }

private:
    void serve(unsigned i) {
        for (unsigned seen = 0;; ++seen) {
            while (n_shared == seen) {
                if (over) {
                    return;
                }
                std::this_thread::yield();
            }
            (*current)(i);
            n_busy--;
        }
    }

    const std::function<void(unsigned)> * current = nullptr;
    std::atomic<unsigned>                 n_shared{ 0 };
    std::atomic<unsigned>                 n_busy{ 0 };
    std::atomic<bool>                     over{ false };
    std::vector<std::thread>              others;
};

static unsigned n_threads(size_t n_bytes, unsigned at_most) {
    return n_bytes < LEAST_SHARED ? 1 : std::min(at_most, std::max(1u, std::thread::hardware_concurrency()));
}

// Past the processor's caches, where that can be said: an ordinary store first reads what is in its place, and nobody asks for
// these bytes before the next batch.
static void copy_past_caches(uint8_t * to, const uint8_t * from, size_t size) {
#if defined(__SSE2__)
    if (size >= LEAST_STREAMED) {
        const size_t head = -(uintptr_t) to % sizeof(__m128i);
        memcpy(to, from, head);
        size_t done = head;
        for (; done + 4*sizeof(__m128i) <= size; done += 4*sizeof(__m128i)) {
            const __m128i * in  = (const __m128i *) (from + done);
            __m128i *       out = (__m128i *) (to + done);
            const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
            _mm_stream_si128(out,     a);
            _mm_stream_si128(out + 1, b);
            _mm_stream_si128(out + 2, c);
            _mm_stream_si128(out + 3, d);
        }
        _mm_sfence();
        memcpy(to + done, from + done, size - done);
        return;
    }
#endif
    memcpy(to, from, size);
}

static void move(copies::direction dir, uint8_t * in_tensor, uint8_t * in_host, size_t size) {
    if (dir == copies::TO_TENSOR) {
        copy_past_caches(in_tensor, in_host, size);
    } else {
        memcpy(in_host, in_tensor, size);
    }
}

//
// host memory
//

static void make_in_memory(const copy * c, const copy * end, copies::direction dir) {
    while (c != end) {
        const copy * first = c++;
        // Rows of several blocks that lie beside each other in the tensor: in the order of the tensor's memory.
        while (c != end && c->tensor == first->tensor && c->n == first->n && c->stride == first->stride) {
            ++c;
        }
        for (size_t i = 0; i < first->n; ++i) {
            for (const copy * b = first; b != c; ++b) {
                move(dir, (uint8_t *) b->tensor->data + b->offset + i*b->stride, b->host + i*b->size, b->size);
            }
        }
    }
}

static void make_in_memory(const std::vector<copy> & list, copies::direction dir, unsigned most_threads) {
    size_t n_bytes = 0;
    for (const copy & c : list) {
        n_bytes += c.n*c.size;
    }
    team workers(n_threads(n_bytes, std::min(most_threads, MEMORY_THREADS)));
    const copy * begin = list.data();
    const copy * end   = begin + list.size();
    const copy * half  = end;
    if (workers.size() > 1) {
        half = begin;
        for (size_t done = 0; done < n_bytes/2; ++half) {
            done += half->n*half->size;
        }
    }
    workers.share([&](unsigned i) {
        make_in_memory(i == 0 ? begin : half, i == 0 ? half : end, dir);
    });
}

//
// devices
//

static void make_one(const copy & c, copies::direction dir) {
    // most backends do many equally spaced ones far faster together
    if (dir == copies::TO_TENSOR) {
        ggml_backend_tensor_set_2d(c.tensor, c.host, c.offset, c.size, c.n, c.stride, c.size);
    } else {
        ggml_backend_tensor_get_2d(c.tensor, c.host, c.offset, c.size, c.n, c.stride, c.size);
    }
}

// Memory that a device reaches by itself, in two parts. It stays for the next time: it takes as long to get as to use.
struct stage {
    kvtier::mutex           mu; // held while it is in use
    ggml_backend_buffer_ptr buffer;
    uint8_t *               parts[2] = {};
};

// One for each direction, so that what is restored does not wait for what is saved. Null: the device has no such memory.
static stage * stage_of(ggml_backend_dev_t device, copies::direction dir) {
    static kvtier::mutex mu;
    static auto & stages = *new std::map<std::pair<ggml_backend_dev_t, copies::direction>, std::unique_ptr<stage>>(); // drivers may be gone before us
    kvtier::mutex_lock lock(mu);
    const auto known = stages.find({ device, dir });
    if (known != stages.end()) {
        return known->second.get();
    }
    std::unique_ptr<stage> made;
    ggml_backend_buffer_type_t type = ggml_backend_dev_host_buffer_type(device);
    ggml_backend_buffer_ptr buffer(type ? ggml_backend_buft_alloc_buffer(type, 2*STAGE_BYTES) : nullptr);
    if (buffer && ggml_backend_buffer_is_host(buffer.get())) {
        made = std::make_unique<stage>();
        uint8_t * base = (uint8_t *) ggml_backend_buffer_get_base(buffer.get());
        made->buffer   = std::move(buffer);
        made->parts[0] = base;
        made->parts[1] = base + STAGE_BYTES;
    }
    return stages.emplace(std::make_pair(device, dir), std::move(made)).first->second.get();
}

// A contiguous part of a tensor, and where it is in the stage.
struct range {
    ggml_tensor * tensor;
    size_t        offset;
    size_t        at;
    size_t        size;
};

// What fits into one part of the stage: pieces of host memory behind one another, and the tensors' ranges they make up.
struct batch {
    std::vector<std::pair<uint8_t *, size_t>> pieces;
    std::vector<range>                        ranges;
    size_t                                    size = 0;
};

static std::vector<batch> batches_of(const std::vector<copy> & list) {
    std::vector<batch> out(1);
    for (const copy & c : list) {
        for (size_t done = 0; done < c.size;) {
            if (out.back().size == STAGE_BYTES) {
                out.emplace_back();
            }
            batch &      b = out.back();
            const size_t n = std::min(c.size - done, STAGE_BYTES - b.size);
            b.pieces.emplace_back(c.host + done, n);
            range *      r = b.ranges.empty() ? nullptr : &b.ranges.back();
            if (r && r->tensor == c.tensor && r->offset + r->size == c.offset + done) {
                r->size += n;
            } else {
                b.ranges.push_back({ c.tensor, c.offset + done, b.size, n });
            }
            b.size += n;
            done   += n;
        }
    }
    return out;
}

// Between the stage and ordinary memory.
static void shuffle(team & workers, const batch & b, uint8_t * part, copies::direction dir) {
    const unsigned n = workers.size();
    workers.share([&](unsigned i) {
        const size_t begin = b.size*i/n;
        const size_t end   = b.size*(i + 1)/n;
        size_t       at    = 0;
        for (const auto & [host, size] : b.pieces) {
            const size_t from = std::max(begin, at);
            const size_t to   = std::min(end, at + size);
            if (from < to) {
                move(dir, part + from, host + (from - at), to - from);
            }
            at += size;
        }
    });
}

static void transfer(const batch & b, uint8_t * part, copies::direction dir, ggml_backend_t backend) {
    for (const range & r : b.ranges) {
        if (dir == copies::TO_TENSOR) {
            ggml_backend_tensor_set_async(backend, r.tensor, part + r.at, r.offset, r.size);
        } else {
            ggml_backend_tensor_get_async(backend, r.tensor, part + r.at, r.offset, r.size);
        }
    }
}

static void make_staged(const std::vector<copy> & list, copies::direction dir, ggml_backend_t backend, stage & through,
        unsigned most_threads) {
    kvtier::mutex_lock lock(through.mu);
    const std::vector<batch> batches = batches_of(list);
    team workers(n_threads(batches[0].size, most_threads));
    if (dir == copies::TO_TENSOR) {
        for (size_t i = 0; i < batches.size(); ++i) {
            shuffle(workers, batches[i], through.parts[i % 2], dir);
            ggml_backend_synchronize(backend); // the other part is free
            transfer(batches[i], through.parts[i % 2], dir, backend);
        }
        ggml_backend_synchronize(backend);
        return;
    }
    transfer(batches[0], through.parts[0], dir, backend);
    for (size_t i = 0; i < batches.size(); ++i) {
        ggml_backend_synchronize(backend);
        if (i + 1 < batches.size()) {
            transfer(batches[i + 1], through.parts[(i + 1) % 2], dir, backend);
        }
        shuffle(workers, batches[i], through.parts[i % 2], dir);
    }
}

static void make_on_device(const std::vector<copy> & list, copies::direction dir, ggml_backend_t backend, unsigned most_threads) {
    size_t n_bytes = 0;
    for (const copy & c : list) {
        n_bytes += c.size;
    }
    stage * through = backend && n_bytes >= LEAST_SHARED ? stage_of(ggml_backend_get_device(backend), dir) : nullptr;
    if (through) {
        make_staged(list, dir, backend, *through, most_threads);
        return;
    }
    for (const copy & c : list) {
        for (size_t done = 0; done < c.size; done += PIECE_BYTES) {
            make_one({ c.tensor, c.offset + done, c.host + done, std::min(c.size - done, PIECE_BYTES), 1, 0 }, dir);
        }
    }
}

//
// copies
//

ggml_backend_dev_t device_of(const ggml_tensor * tensor) {
    const ggml_backend_buffer_t buffer = tensor->view_src ? tensor->view_src->buffer : tensor->buffer;
    return is_in_host_memory(tensor) ? nullptr : ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
}

void copies::prepare(ggml_backend_dev_t device) {
    stage_of(device, TO_HOST);
    stage_of(device, TO_TENSOR);
}

void copies::note(ggml_tensor * tensor, size_t offset, uint8_t * host, size_t size) {
    if (tensor->view_src && !tensor->data) {
        // llama.cpp forgets to give views their address behind a tensor that is larger than one of the device's buffers may be.
        offset += tensor->view_offs;
        tensor  = tensor->view_src;
    }
    if (!noted.empty()) {
        copy & c = noted.back();
        const bool follows = c.tensor == tensor && c.size == size && c.host + c.n*c.size == host;
        if (follows && (c.n == 1 ? offset > c.offset : offset == c.offset + c.n*c.stride)) {
            c.stride = c.n == 1 ? offset - c.offset : c.stride;
            c.n++;
            return;
        }
    }
    noted.push_back({ tensor, offset, host, size, 1, 0 });
}

void copies::join_pieces() {
    for (copy & c : noted) {
        GGML_ASSERT(c.offset + (c.n - 1)*c.stride + c.size <= ggml_nbytes(c.tensor));
        if (c.n > 1 && c.stride == c.size) { // no gaps: one piece
            c = { c.tensor, c.offset, c.host, c.n*c.size, 1, 0 };
        }
    }
}

copies copies::split(const std::function<bool(const copy &)> & which) {
    join_pieces();
    const auto middle = std::stable_partition(noted.begin(), noted.end(), [&](const copy & c) { return !which(c); });
    copies out;
    out.noted.assign(middle, noted.end());
    noted.erase(middle, noted.end());
    return out;
}

void copies::make(direction dir, const backend_finder & find_backend, unsigned most_threads) {
    join_pieces();
    std::sort(noted.begin(), noted.end(), [](const copy & a, const copy & b) {
        return std::tie(a.tensor, a.offset) < std::tie(b.tensor, b.offset);
    });
    std::vector<copy> in_memory;
    std::map<ggml_backend_t, std::vector<copy>> on_devices;
    for (const copy & c : noted) {
        if (is_in_host_memory(c.tensor)) {
            in_memory.push_back(c);
        } else if (c.n > 1) {
            make_one(c, dir);
        } else {
            on_devices[find_backend(device_of(c.tensor))].push_back(c);
        }
    }
    make_in_memory(in_memory, dir, most_threads);
    for (const auto & [backend, list] : on_devices) {
        make_on_device(list, dir, backend, most_threads);
    }
    noted.clear();
}

} // namespace state_rows

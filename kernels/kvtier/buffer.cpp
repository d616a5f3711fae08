#include "kvtier/buffer.h"

#include "kvtier/blocks.h"
#include "kvtier/thread_annotations.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <new>
#include <utility>

#include <sys/mman.h>
#if defined(__linux__)
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvtier {

namespace {

using memory = buffer::memory;

constexpr size_t huge_page = size_t(2) << 20;

// Memory that was taken is replaced after this time: whoever took it has something to do with it, and needs the processor.
constexpr std::chrono::milliseconds quiet_time(200);

memory allocate(size_t size) {
    const size_t alignment = size < buffer::min_large ? alignof(std::max_align_t) : size < huge_page ? block_size : huge_page;
    void *       bytes     = nullptr;
    if (::posix_memalign(&bytes, alignment, std::max<size_t>(size, 1)) != 0) {
        throw std::bad_alloc();
    }
#if defined(MADV_HUGEPAGE)
    if (size >= huge_page) {
        ::madvise(bytes, size - size % huge_page, MADV_HUGEPAGE); // only a hint
    }
#endif
    return memory(static_cast<uint8_t *>(bytes));
}

// Whether memory of `size` will do for a buffer that needs `wanted`, and not much of it is left over.
bool fits(size_t size, size_t wanted) {
    return size >= wanted && size - wanted <= wanted / 8;
}

class recycler {
public:
    // size says what is needed and, afterwards, what was found.
    memory take(size_t & size) {
        if (size >= buffer::min_large) { // the allocator is as good for anything smaller
            mutex_lock guard(mu);
            for (auto it = idle.rbegin(); it != idle.rend(); ++it) {
                if (fits(it->first, size)) {
                    size = it->first;
                    memory found = std::move(it->second);
                    idle.erase(std::next(it).base());
                    idle_size -= size;
                    last_taken = std::chrono::steady_clock::now();
                    changed.notify_all();
                    return found;
                }
            }
        }
        return allocate(size);
    }

    void give(memory bytes, size_t size) {
        if (size < buffer::min_large) {
            return;
        }
        mutex_lock guard(mu);
        idle.emplace_back(size, std::move(bytes));
        idle_size += size;
        trim();
    }

    size_t bytes() {
        mutex_lock guard(mu);
        return idle_size;
    }

    // Makes room for stock beyond max_idle_bytes.
    void stock(size_t more) {
        mutex_lock guard(mu);
        stocked += more;
    }

    void unstock(size_t less, bool & over) {
        mutex_lock guard(mu);
        stocked -= less;
        trim();
        over = true;
        changed.notify_all();
    }

    // Waits until there are fewer than n of this size and nobody has taken any for a while. False: it is over.
    bool wait_for_less(size_t size, size_t n, const bool & over) {
        mutex_lock guard(mu);
        while (!over && count(size) >= n) {
            changed.wait(guard);
        }
        while (!over && std::chrono::steady_clock::now() < last_taken + quiet_time) {
            changed.wait_until(guard, last_taken + quiet_time);
        }
        return !over;
    }

private:
    void trim() REQUIRES(mu) {
        while (idle_size > buffer::max_idle_bytes + stocked) { // the longest unused go: another model's have another size
            idle_size -= idle.front().first;
            idle.pop_front();
        }
    }

    size_t count(size_t size) const REQUIRES(mu) {
        return static_cast<size_t>(std::count_if(idle.begin(), idle.end(), [&](const auto & each) { return each.first == size; }));
    }

    mutex                                 mu;
    condition                             changed;
    std::list<std::pair<size_t, memory>>  idle GUARDED_BY(mu); // longest unused first
    size_t                                idle_size GUARDED_BY(mu) = 0;
    size_t                                stocked GUARDED_BY(mu)   = 0;
    std::chrono::steady_clock::time_point last_taken GUARDED_BY(mu);
};

// Never destroyed: buffers may outlive static objects.
recycler & the_recycler() {
    static recycler & one = *new recycler;
    return one;
}

} // namespace

// A large buffer gets whole blocks, and enough of them for every place in a block where its bytes may begin. What would fill
// half a huge page or more gets a whole one: a disk writes into one piece of memory faster than into hundreds.
static size_t memory_of(size_t size) {
    if (size < buffer::min_large) {
        return size;
    }
    const size_t blocks = (size + 2 * block_size - 1) / block_size * block_size;
    const size_t rest   = blocks % huge_page;
    return rest < huge_page / 2 ? blocks : blocks - rest + huge_page;
}

buffer::buffer(size_t size, uint64_t file_offset)
    : n(size), lead(size < min_large ? 0 : file_offset % block_size), capacity(memory_of(size)),
      bytes(the_recycler().take(capacity)) {}

buffer::~buffer() {
    the_recycler().give(std::move(bytes), capacity);
}

size_t buffer::memory_size() const {
    return capacity;
}

size_t buffer::idle_bytes() {
    return the_recycler().bytes();
}

buffer_stock::buffer_stock(size_t size, size_t n) : size(memory_of(size)), n(size < buffer::min_large ? 0 : n) {
    the_recycler().stock(this->size * this->n);
    if (this->n > 0) {
        filler = std::thread([this] { fill(); });
    }
}

buffer_stock::~buffer_stock() {
    the_recycler().unstock(size * n, over);
    if (filler.joinable()) {
        filler.join();
    }
}

// Where all processors are busy, this thread's work can wait: what it does in advance, others do when they have to.
static void give_way() {
#if defined(__linux__)
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
#endif
}

void buffer_stock::fill() {
    give_way();
    while (the_recycler().wait_for_less(size, n, over)) {
        try {
            memory bytes = allocate(size);
            for (size_t at = 0; at < size; at += block_size) {
                const_cast<volatile uint8_t *>(bytes.get())[at] = 0; // now the system has to find a page for it
            }
            the_recycler().give(std::move(bytes), size);
        } catch (const std::bad_alloc &) {
            return; // there is no memory to spare
        }
    }
}

} // namespace kvtier

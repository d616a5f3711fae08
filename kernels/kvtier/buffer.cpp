#include "kvtier/buffer.h"

#include "kvtier/env.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace kvtier {

namespace {

using memory = buffer::memory;

constexpr size_t huge_page = size_t(2) << 20;

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

class recycler {
public:
    memory take(size_t size) {
        if (size >= buffer::min_large) { // the allocator is as good for anything smaller
            std::lock_guard<std::mutex> guard(mu);
            for (auto it = idle.rbegin(); it != idle.rend(); ++it) {
                if (it->first == size) {
                    memory found = std::move(it->second);
                    idle.erase(std::next(it).base());
                    idle_size -= size;
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
        std::lock_guard<std::mutex> guard(mu);
        idle.emplace_back(size, std::move(bytes));
        idle_size += size;
        while (idle_size > buffer::max_idle_bytes) { // the longest unused go: another model's pages have another size
            idle_size -= idle.front().first;
            idle.pop_front();
        }
    }

    size_t bytes() {
        std::lock_guard<std::mutex> guard(mu);
        return idle_size;
    }

private:
    std::mutex                           mu;
    std::list<std::pair<size_t, memory>> idle; // longest unused first
    size_t                               idle_size = 0;
};

// Never destroyed: buffers may outlive static objects.
recycler & the_recycler() {
    static recycler & one = *new recycler;
    return one;
}

} // namespace

// Of large ones whole blocks, and so many for every place in a block that any buffer of this size can follow. What would fill
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
    : bytes(the_recycler().take(memory_of(size))), n(size), lead(size < min_large ? 0 : file_offset % block_size) {}

buffer::~buffer() {
    the_recycler().give(std::move(bytes), memory_of(n));
}

size_t buffer::memory_size() const {
    return memory_of(n);
}

size_t buffer::idle_bytes() {
    return the_recycler().bytes();
}

} // namespace kvtier

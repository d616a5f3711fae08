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

// Large ones are laid out so that the system can back them with huge pages.
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

// The same for every place in a block, so that any buffer of this size can follow.
static size_t with_whole_blocks(size_t size) {
    return size < buffer::min_large ? size : (size + 2 * block_size - 1) / block_size * block_size;
}

buffer::buffer(size_t size, uint64_t file_offset)
    : bytes(the_recycler().take(with_whole_blocks(size))), n(size), lead(size < min_large ? 0 : file_offset % block_size) {}

buffer::~buffer() {
    the_recycler().give(std::move(bytes), with_whole_blocks(n));
}

size_t buffer::idle_bytes() {
    return the_recycler().bytes();
}

} // namespace kvtier

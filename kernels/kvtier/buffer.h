// Bytes of model state on their way between backend, RAM and disk.
//
// A blob is immutable once shared, so several conversations, the writer's queue and a reader may hold the same one
// without a copy and without a lock. The memory is not zeroed first: pages are megabytes and always filled whole.
//
// Memory that the system hands out for the first time costs a page fault for every page, which takes several times as
// long as reading those bytes from a warm page cache. Large buffers therefore ask for huge pages, and freed ones are kept
// for the next one of about their size, up to max_idle_bytes in the whole process. A buffer_stock has such memory at hand
// before it is needed.
//
// Large buffers can be read into in whole blocks of a file (see env.h): the bytes then begin at the same place within a
// block in memory as in the file, and what lies around them in their first and last block belongs to the buffer too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>

namespace kvtier {

class buffer {
public:
    static constexpr size_t max_idle_bytes = size_t(128) << 20;
    static constexpr size_t min_large      = size_t(1) << 20;

    explicit buffer(size_t size, uint64_t file_offset = 0);
    ~buffer();

    buffer(const buffer &) = delete;
    buffer & operator=(const buffer &) = delete;

    uint8_t *       data()       { return bytes.get() + lead; }
    const uint8_t * data() const { return bytes.get() + lead; }
    size_t          size() const { return n; }

    // Says what it takes of the machine's memory.
    size_t memory_size() const;

    // Says how much freed memory waits for the next buffer.
    static size_t idle_bytes();

    struct free_memory {
        void operator()(uint8_t * bytes) const { std::free(bytes); }
    };
    using memory = std::unique_ptr<uint8_t[], free_memory>;

private:
    size_t n;
    size_t lead;     // bytes of the first block before data()
    size_t capacity; // what the memory has room for
    memory bytes;
};

// Keeps memory for n buffers of about this size at hand, which has been written to before. A thread of its own gets it, at once
// and again whenever some of it was taken. It counts beyond max_idle_bytes, and lasts as long as this object.
class buffer_stock {
public:
    buffer_stock(size_t size, size_t n);
    ~buffer_stock();

    buffer_stock(const buffer_stock &) = delete;
    buffer_stock & operator=(const buffer_stock &) = delete;

private:
    void fill();

    const size_t size; // of the memory
    const size_t n;
    bool         over = false;
    std::thread  filler;
};

using blob = std::shared_ptr<const buffer>;

} // namespace kvtier

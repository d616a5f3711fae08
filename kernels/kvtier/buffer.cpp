#include "kvtier/buffer.h"

#include <list>
#include <mutex>
#include <utility>

namespace kvtier {

namespace {

// The allocator is as good for anything smaller.
constexpr size_t min_kept = size_t(1) << 20;

class recycler {
public:
    std::unique_ptr<uint8_t[]> take(size_t size) {
        if (size >= min_kept) {
            std::lock_guard<std::mutex> guard(mu);
            for (auto it = idle.rbegin(); it != idle.rend(); ++it) {
                if (it->first == size) {
                    std::unique_ptr<uint8_t[]> found = std::move(it->second);
                    idle.erase(std::next(it).base());
                    idle_size -= size;
                    return found;
                }
            }
        }
        return std::unique_ptr<uint8_t[]>(new uint8_t[size]);
    }

    void give(std::unique_ptr<uint8_t[]> bytes, size_t size) {
        if (size < min_kept) {
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
    std::mutex                                               mu;
    std::list<std::pair<size_t, std::unique_ptr<uint8_t[]>>> idle; // longest unused first
    size_t                                                   idle_size = 0;
};

// Never destroyed: buffers may outlive static objects.
recycler & the_recycler() {
    static recycler & one = *new recycler;
    return one;
}

} // namespace

buffer::buffer(size_t size) : bytes(the_recycler().take(size)), n(size) {}

buffer::~buffer() {
    the_recycler().give(std::move(bytes), n);
}

size_t buffer::idle_bytes() {
    return the_recycler().bytes();
}

} // namespace kvtier

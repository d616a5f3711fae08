// Freed memory is kept for the next buffer, but not without end and never handed out twice.
#include "kvtier/buffer.h"
#include "kvtier/env.h"
#include "kvtier/testing.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

using namespace kvtier;

static constexpr size_t mib = size_t(1) << 20;

TEST(a_buffer_of_the_same_size_takes_the_freed_memory) {
    const uint8_t * first;
    {
        buffer b(3 * mib);
        first = b.data();
    }
    buffer again(3 * mib);
    buffer beside(3 * mib);
    CHECK(again.data() == first);
    CHECK(beside.data() != first);
}

TEST(a_buffer_lies_in_its_block_as_its_bytes_in_the_file) {
    for (uint64_t offset : { uint64_t(0), uint64_t(392), uint64_t(4095), uint64_t(1) << 40 | 77 }) {
        buffer large(2 * mib, offset), small(100, offset);
        CHECK(reinterpret_cast<uintptr_t>(large.data()) % block_size == offset % block_size);
        std::memset(large.data(), 1, large.size());
        std::memset(small.data(), 1, small.size());
    }
}

TEST(memory_of_a_buffer_is_what_it_needs_and_little_more) {
    for (size_t size : { mib - 1, mib, 3 * mib - 1, 3 * mib, 5 * mib + 392, 6 * mib - 1, 40 * mib + 4096 }) {
        const size_t taken = buffer(size, 4095).memory_size();
        CHECK(taken >= size + (size < buffer::min_large ? 0 : 4095));
        CHECK(taken <= size + mib + 2 * block_size);
    }
}

TEST(idle_memory_has_a_limit) {
    {
        std::vector<std::unique_ptr<buffer>> many;
        for (size_t i = 0; i < 100; i++) {
            many.push_back(std::make_unique<buffer>(4 * mib + i));
        }
    }
    CHECK(buffer::idle_bytes() <= buffer::max_idle_bytes);
    CHECK(buffer::idle_bytes() > buffer::max_idle_bytes - 5 * mib);
    {
        buffer huge(buffer::max_idle_bytes + 1);
    }
    CHECK(buffer::idle_bytes() == 0); // it was the newest and did not fit either
}

TEST(small_buffers_are_not_kept) {
    const size_t before = buffer::idle_bytes();
    {
        buffer small(1000), none(0);
        CHECK(none.size() == 0);
    }
    CHECK(buffer::idle_bytes() == before);
}

// Says whether it has become so within five minutes: a stock is filled in idle time, of which a busy machine has little.
template <typename condition>
static bool becomes(const condition & met) {
    for (int i = 0; i < 30000 && !met(); i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return met();
}

TEST(a_stock_is_filled_again) {
    const size_t before = buffer::idle_bytes();
    {
        buffer_stock stock(5 * mib, 40); // more than is kept without one
        const size_t all = 40 * buffer(5 * mib).memory_size();
        CHECK(becomes([&] { return buffer::idle_bytes() >= before + all; }));
        std::vector<std::unique_ptr<buffer>> taken;
        for (size_t i = 0; i < 10; i++) {
            taken.push_back(std::make_unique<buffer>(5 * mib - 100 * i)); // about that size
            CHECK(taken.back()->memory_size() == all / 40);
        }
        CHECK(becomes([&] { return buffer::idle_bytes() >= before + all; }));
    }
    CHECK(buffer::idle_bytes() <= buffer::max_idle_bytes);
}

TEST(stocked_memory_is_not_taken_for_a_much_smaller_buffer) {
    buffer_stock stock(8 * mib, 2);
    CHECK(becomes([] { return buffer::idle_bytes() >= 16 * mib; }));
    CHECK(buffer(6 * mib).memory_size() < 7 * mib);
}

int main() {
    return run_tests();
}

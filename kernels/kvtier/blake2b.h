// BLAKE2b (RFC 7693), unkeyed: the hash behind every key of the store.
//
// Keys are 16 bytes. Tokens are stored beside the state and compared on every hit, so a collision costs a
// recompute and never a wrong answer; BLAKE2b is here so that nobody can make collisions cheaply either.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvtier {

class blake2b {
public:
    // digest_size is between 1 and 64 bytes.
    explicit blake2b(size_t digest_size);

    void update(const void * data, size_t size);

    // Writes digest_size bytes to out. The object must not be used afterwards.
    void finish(uint8_t * out);

private:
    static constexpr size_t block_size = 128;

    void compress(bool last);

    std::array<uint64_t, 8>         state;
    std::array<uint8_t, block_size> block{};
    size_t                          n_block = 0; // bytes waiting in block
    uint64_t                        n_total = 0; // bytes compressed so far; 2^64 are never reached here
    size_t                          digest_size;
};

} // namespace kvtier

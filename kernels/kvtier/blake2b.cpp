#include "kvtier/blake2b.h"

#include <algorithm>
#include <cstring>

namespace kvtier {

// These are the fractional parts of the square roots of the first eight primes, as in SHA-512.
static constexpr std::array<uint64_t, 8> initial_state = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

// The sixteen message words enter each round in this order; rounds 10 and 11 repeat 0 and 1.
static constexpr uint8_t schedule[10][16] = {
    {  0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15 },
    { 14, 10,  4,  8,  9, 15, 13,  6,  1, 12,  0,  2, 11,  7,  5,  3 },
    { 11,  8, 12,  0,  5,  2, 15, 13, 10, 14,  3,  6,  7,  1,  9,  4 },
    {  7,  9,  3,  1, 13, 12, 11, 14,  2,  6,  5, 10,  4,  0, 15,  8 },
    {  9,  0,  5,  7,  2,  4, 10, 15, 14,  1, 11, 12,  6,  8,  3, 13 },
    {  2, 12,  6, 10,  0, 11,  8,  3,  4, 13,  7,  5, 15, 14,  1,  9 },
    { 12,  5,  1, 15, 14, 13,  4, 10,  0,  7,  6,  3,  9,  2,  8, 11 },
    { 13, 11,  7, 14, 12,  1,  3,  9,  5,  0, 15,  4,  8,  6,  2, 10 },
    {  6, 15, 14,  9, 11,  3,  0,  8, 12,  2, 13,  7,  1,  4, 10,  5 },
    { 10,  2,  8,  4,  7,  6,  1,  5, 15, 11,  9, 14,  3, 12, 13,  0 },
};

static uint64_t load_le64(const uint8_t * bytes) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) {
        value = value << 8 | bytes[i];
    }
    return value;
}

static uint64_t rotate_right(uint64_t value, int by) {
    return value >> by | value << (64 - by);
}

blake2b::blake2b(size_t digest_size) : state(initial_state), digest_size(digest_size) {
    // The parameter block says: digest length, no key, fan-out 1, depth 1.
    state[0] ^= 0x01010000 ^ static_cast<uint64_t>(digest_size);
}

void blake2b::update(const void * data, size_t size) {
    const uint8_t * bytes = static_cast<const uint8_t *>(data);
    while (size > 0) {
        // A full block is compressed only when more follows: the last one is marked as such.
        if (n_block == block_size) {
            n_total += block_size;
            compress(false);
            n_block = 0;
        }
        const size_t n = std::min(size, block_size - n_block);
        std::memcpy(block.data() + n_block, bytes, n);
        n_block += n;
        bytes   += n;
        size    -= n;
    }
}

void blake2b::finish(uint8_t * out) {
    n_total += n_block;
    std::fill(block.begin() + static_cast<std::ptrdiff_t>(n_block), block.end(), uint8_t(0));
    compress(true);
    for (size_t i = 0; i < digest_size; i++) {
        out[i] = static_cast<uint8_t>(state[i / 8] >> (8 * (i % 8)));
    }
}

void blake2b::compress(bool last) {
    uint64_t m[16];
    for (size_t i = 0; i < 16; i++) {
        m[i] = load_le64(block.data() + 8 * i);
    }

    uint64_t v[16];
    std::copy(state.begin(), state.end(), v);
    std::copy(initial_state.begin(), initial_state.end(), v + 8);
    v[12] ^= n_total;
    if (last) {
        v[14] = ~v[14];
    }

    const auto mix = [&v](int a, int b, int c, int d, uint64_t x, uint64_t y) {
        v[a] += v[b] + x;
        v[d]  = rotate_right(v[d] ^ v[a], 32);
        v[c] += v[d];
        v[b]  = rotate_right(v[b] ^ v[c], 24);
        v[a] += v[b] + y;
        v[d]  = rotate_right(v[d] ^ v[a], 16);
        v[c] += v[d];
        v[b]  = rotate_right(v[b] ^ v[c], 63);
    };

    for (int round = 0; round < 12; round++) {
        const uint8_t * s = schedule[round % 10];
        for (int i = 0; i < 4; i++) { // columns
            mix(i, i + 4, i + 8, i + 12, m[s[2 * i]], m[s[2 * i + 1]]);
        }
        for (int i = 0; i < 4; i++) { // diagonals
            mix(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
        }
    }

    for (size_t i = 0; i < 8; i++) {
        state[i] ^= v[i] ^ v[i + 8];
    }
}

} // namespace kvtier

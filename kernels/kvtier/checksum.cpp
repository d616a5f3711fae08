#include "kvtier/checksum.h"

#include "kvtier/coding.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvtier {

namespace {

// All numbers here are those of the XXH3 specification.
constexpr uint64_t prime32_1 = 0x9E3779B1;
constexpr uint64_t prime32_2 = 0x85EBCA77;
constexpr uint64_t prime32_3 = 0xC2B2AE3D;
constexpr uint64_t prime64_1 = 0x9E3779B185EBCA87;
constexpr uint64_t prime64_2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t prime64_3 = 0x165667B19E3779F9;
constexpr uint64_t prime64_4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t prime64_5 = 0x27D4EB2F165667C5;
constexpr uint64_t prime_mx1 = 0x165667919E3779F9;
constexpr uint64_t prime_mx2 = 0x9FB21C651E98DF25;

constexpr size_t  secret_size = 192;
constexpr uint8_t secret[secret_size] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

constexpr size_t stripe_size       = checksum_stream::stripe_size;
constexpr size_t n_lanes           = checksum_stream::n_lanes;
constexpr size_t stripes_per_block = (secret_size - stripe_size) / 8; // each stripe meets the secret 8 bytes further on
constexpr size_t max_short         = 240;

uint64_t load64(const uint8_t * at) { return load_le<uint64_t>(at); }
uint64_t load32(const uint8_t * at) { return load_le<uint32_t>(at); }

uint64_t rotate_left(uint64_t value, int by) { return value << by | value >> (64 - by); }

uint64_t reverse_bytes(uint64_t value) {
    uint64_t out = 0;
    for (int i = 0; i < 8; i++, value >>= 8) {
        out = out << 8 | (value & 0xff);
    }
    return out;
}

uint64_t multiply_and_fold(uint64_t a, uint64_t b) {
    __extension__ using wide = unsigned __int128;
    const wide product = static_cast<wide>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t avalanche(uint64_t hash) {
    hash = (hash ^ hash >> 37) * prime_mx1;
    return hash ^ hash >> 32;
}

//
// short inputs
//

uint64_t avalanche_of_tiny(uint64_t hash) {
    hash = (hash ^ hash >> 33) * prime64_2;
    hash = (hash ^ hash >> 29) * prime64_3;
    return hash ^ hash >> 32;
}

uint64_t mix16(const uint8_t * at, const uint8_t * with) {
    return multiply_and_fold(load64(at) ^ load64(with), load64(at + 8) ^ load64(with + 8));
}

uint64_t up_to_16(const uint8_t * data, size_t size) {
    if (size > 8) {
        const uint64_t first = load64(data)            ^ load64(secret + 24) ^ load64(secret + 32);
        const uint64_t last  = load64(data + size - 8) ^ load64(secret + 40) ^ load64(secret + 48);
        return avalanche(size + reverse_bytes(first) + last + multiply_and_fold(first, last));
    }
    if (size >= 4) {
        uint64_t hash = load32(data + size - 4) + (load32(data) << 32);
        hash ^= load64(secret + 8) ^ load64(secret + 16);
        hash ^= rotate_left(hash, 49) ^ rotate_left(hash, 24);
        hash *= prime_mx2;
        hash ^= (hash >> 35) + size;
        hash *= prime_mx2;
        return hash ^ hash >> 28;
    }
    if (size > 0) {
        const uint64_t all = uint64_t(data[0]) << 16 | uint64_t(data[size / 2]) << 24 | data[size - 1] | size << 8;
        return avalanche_of_tiny(all ^ load32(secret) ^ load32(secret + 4));
    }
    return avalanche_of_tiny(load64(secret + 56) ^ load64(secret + 64));
}

uint64_t up_to_128(const uint8_t * data, size_t size) {
    uint64_t hash = size * prime64_1;
    for (size_t i = (size - 1) / 32 + 1; i-- > 0;) {
        hash += mix16(data + 16 * i, secret + 32 * i);
        hash += mix16(data + size - 16 * (i + 1), secret + 32 * i + 16);
    }
    return avalanche(hash);
}

uint64_t up_to_240(const uint8_t * data, size_t size) {
    uint64_t hash = size * prime64_1;
    for (size_t i = 0; i < 8; i++) {
        hash += mix16(data + 16 * i, secret + 16 * i);
    }
    hash = avalanche(hash);
    for (size_t i = 8; i < size / 16; i++) {
        hash += mix16(data + 16 * i, secret + 16 * (i - 8) + 3);
    }
    return avalanche(hash + mix16(data + size - 16, secret + 136 - 17));
}

//
// long inputs
//

using lane_array = std::array<uint64_t, n_lanes>;

void absorb_stripe(lane_array & lanes, const uint8_t * at, const uint8_t * with) {
    for (size_t i = 0; i < n_lanes; i++) {
        const uint64_t word = load64(at + 8 * i);
        const uint64_t both = word ^ load64(with + 8 * i);
        lanes[i ^ 1] += word;
        lanes[i]     += (both & 0xffffffff) * (both >> 32);
    }
}

void stir(lane_array & lanes) {
    for (size_t i = 0; i < n_lanes; i++) {
        lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ load64(secret + secret_size - stripe_size + 8 * i)) * prime32_1;
    }
}

// Takes in stripes of one block, which are not stirred in between.
void absorb_some(lane_array & lanes, const uint8_t * at, size_t n, const uint8_t * with) {
    for (; n > 0; n--, at += stripe_size, with += 8) {
        absorb_stripe(lanes, at, with);
    }
}

#if defined(__x86_64__)

// The compiler does not find by itself that one instruction multiplies four pairs of lower halves.
__attribute__((target("avx2")))
void absorb_some_avx2(lane_array & lanes, const uint8_t * at, size_t n, const uint8_t * with) {
    __m256i sums[2];
    for (int half = 0; half < 2; half++) {
        sums[half] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(lanes.data()) + half);
    }
    for (; n > 0; n--, at += stripe_size, with += 8) {
        for (int half = 0; half < 2; half++) {
            const __m256i word    = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at) + half);
            const __m256i both    = _mm256_xor_si256(word, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(with) + half));
            const __m256i product = _mm256_mul_epu32(both, _mm256_srli_epi64(both, 32));
            const __m256i crossed = _mm256_shuffle_epi32(word, _MM_SHUFFLE(1, 0, 3, 2));
            sums[half] = _mm256_add_epi64(sums[half], _mm256_add_epi64(product, crossed));
        }
    }
    for (int half = 0; half < 2; half++) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(lanes.data()) + half, sums[half]);
    }
}

#endif

// n_done says how many stripes of the current block are in the lanes already.
void absorb(lane_array & lanes, size_t & n_done, const uint8_t * at, size_t n_stripes) {
#if defined(__x86_64__)
    static const auto some = __builtin_cpu_supports("avx2") ? absorb_some_avx2 : absorb_some;
#else
    const auto some = absorb_some;
#endif
    while (n_stripes > 0) {
        const size_t n = std::min(n_stripes, stripes_per_block - n_done);
        some(lanes, at, n, secret + 8 * n_done);
        at        += n * stripe_size;
        n_stripes -= n;
        n_done    += n;
        if (n_done == stripes_per_block) {
            stir(lanes);
            n_done = 0;
        }
    }
}

} // namespace

checksum_stream::checksum_stream()
    : lanes{ prime32_3, prime64_1, prime64_2, prime64_3, prime64_4, prime32_2, prime64_5, prime32_1 } {}

void checksum_stream::update(const void * data, size_t size) {
    const uint8_t * at = static_cast<const uint8_t *>(data);
    n_total += size;
    if (size > held_size - n_held) {
        if (n_held > 0) {
            const size_t n = held_size - n_held;
            std::memcpy(held.data() + n_held, at, n);
            at   += n;
            size -= n;
            absorb(lanes, n_stripes, held.data(), held_size / stripe_size);
            n_held = 0;
        }
        // The last stripe counts apart, so at least one byte is held back.
        if (size > held_size) {
            const size_t n = (size - 1) / stripe_size;
            absorb(lanes, n_stripes, at, n);
            at   += n * stripe_size;
            size -= n * stripe_size;
            std::memcpy(held.data() + held_size - stripe_size, at - stripe_size, stripe_size);
        }
    }
    if (size > 0) {
        std::memcpy(held.data() + n_held, at, size);
        n_held += size;
    }
}

uint64_t checksum_stream::finish() const {
    if (n_total <= max_short) {
        const size_t n = static_cast<size_t>(n_total);
        return n <= 16 ? up_to_16(held.data(), n) : n <= 128 ? up_to_128(held.data(), n) : up_to_240(held.data(), n);
    }
    lane_array end    = lanes;
    size_t     n_done = n_stripes;
    uint8_t    last[stripe_size];
    if (n_held >= stripe_size) {
        absorb(end, n_done, held.data(), (n_held - 1) / stripe_size);
        std::memcpy(last, held.data() + n_held - stripe_size, stripe_size);
    } else {
        const size_t before = stripe_size - n_held;
        std::memcpy(last, held.data() + held_size - before, before);
        std::memcpy(last + before, held.data(), n_held);
    }
    absorb_stripe(end, last, secret + secret_size - stripe_size - 7);

    uint64_t hash = n_total * prime64_1;
    for (size_t i = 0; i < n_lanes; i += 2) {
        hash += multiply_and_fold(end[i] ^ load64(secret + 11 + 8 * i), end[i + 1] ^ load64(secret + 19 + 8 * i));
    }
    return avalanche(hash);
}

uint64_t checksum64(const void * data, size_t size) {
    checksum_stream stream;
    stream.update(data, size);
    return stream.finish();
}

} // namespace kvtier

#include "kvtier/checksum.h"

#include "kvtier/coding.h"

#include <algorithm>
#include <cstring>

namespace kvtier {

// The five primes of the XXH64 specification.
static constexpr uint64_t prime_1 = 0x9E3779B185EBCA87;
static constexpr uint64_t prime_2 = 0xC2B2AE3D27D4EB4F;
static constexpr uint64_t prime_3 = 0x165667B19E3779F9;
static constexpr uint64_t prime_4 = 0x85EBCA77C2B2AE63;
static constexpr uint64_t prime_5 = 0x27D4EB2F165667C5;

static uint64_t rotate_left(uint64_t value, int by) {
    return value << by | value >> (64 - by);
}

static uint64_t absorb(uint64_t lane, uint64_t word) {
    return rotate_left(lane + word * prime_2, 31) * prime_1;
}

static uint64_t merge(uint64_t hash, uint64_t lane) {
    return (hash ^ absorb(0, lane)) * prime_1 + prime_4;
}

checksum_stream::checksum_stream(uint64_t seed) :
    seed(seed), lanes{ seed + prime_1 + prime_2, seed + prime_2, seed, seed - prime_1 } {}

const uint8_t * checksum_stream::absorb_stripes(const uint8_t * at, size_t n_stripes) {
    // In local variables: through `this` the compiler would write them back at every step.
    uint64_t a = lanes[0], b = lanes[1], c = lanes[2], d = lanes[3];
    for (; n_stripes > 0; n_stripes--, at += stripe_size) {
        a = absorb(a, load_le<uint64_t>(at));
        b = absorb(b, load_le<uint64_t>(at + 8));
        c = absorb(c, load_le<uint64_t>(at + 16));
        d = absorb(d, load_le<uint64_t>(at + 24));
    }
    lanes = { a, b, c, d };
    return at;
}

void checksum_stream::update(const void * data, size_t size) {
    const uint8_t * at = static_cast<const uint8_t *>(data);
    n_total += size;
    if (n_rest > 0) {
        const size_t n = std::min(size, stripe_size - n_rest);
        std::memcpy(rest.data() + n_rest, at, n);
        n_rest += n;
        at     += n;
        size   -= n;
        if (n_rest < stripe_size) {
            return;
        }
        absorb_stripes(rest.data(), 1);
        n_rest = 0;
    }
    at     = absorb_stripes(at, size / stripe_size);
    n_rest = size % stripe_size;
    if (n_rest > 0) {
        std::memcpy(rest.data(), at, n_rest);
    }
}

uint64_t checksum_stream::finish() const {
    uint64_t hash = seed + prime_5;
    if (n_total >= stripe_size) {
        const auto & [a, b, c, d] = lanes;
        hash = rotate_left(a, 1) + rotate_left(b, 7) + rotate_left(c, 12) + rotate_left(d, 18);
        hash = merge(merge(merge(merge(hash, a), b), c), d);
    }
    hash += n_total;

    const uint8_t * at   = rest.data();
    size_t          left = n_rest;
    for (; left >= 8; left -= 8, at += 8) {
        hash = rotate_left(hash ^ absorb(0, load_le<uint64_t>(at)), 27) * prime_1 + prime_4;
    }
    if (left >= 4) {
        hash = rotate_left(hash ^ load_le<uint32_t>(at) * prime_1, 23) * prime_2 + prime_3;
        left -= 4;
        at   += 4;
    }
    for (; left > 0; left--, at++) {
        hash = rotate_left(hash ^ *at * prime_5, 11) * prime_1;
    }

    hash = (hash ^ hash >> 33) * prime_2;
    hash = (hash ^ hash >> 29) * prime_3;
    return hash ^ hash >> 32;
}

uint64_t checksum64(const void * data, size_t size, uint64_t seed) {
    checksum_stream stream(seed);
    stream.update(data, size);
    return stream.finish();
}

} // namespace kvtier

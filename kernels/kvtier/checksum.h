// XXH64: the checksum over every header and payload of the store.
//
// It finds damage, not malice; keys are the job of BLAKE2b. It is chosen for speed (several GB/s on one core), because
// each byte is checked before it reaches the model, on the way of a request that waits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvtier {

uint64_t checksum64(const void * data, size_t size, uint64_t seed = 0);

// The same, piece by piece: what has just been read is still in the processor's cache.
class checksum_stream {
public:
    explicit checksum_stream(uint64_t seed = 0);

    void     update(const void * data, size_t size);
    uint64_t finish() const;

private:
    static constexpr size_t stripe_size = 32;

    const uint8_t * absorb_stripes(const uint8_t * at, size_t n_stripes);

    uint64_t                         seed;
    std::array<uint64_t, 4>          lanes; // independent, so that the multiplications overlap
    std::array<uint8_t, stripe_size> rest{};
    size_t                           n_rest  = 0; // bytes waiting in rest
    uint64_t                         n_total = 0;
};

} // namespace kvtier

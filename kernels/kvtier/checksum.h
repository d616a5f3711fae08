// XXH3 (64 bits, no seed): the checksum over every header and payload of the store.
//
// It finds damage, not malice; keys are the job of BLAKE2b. It is chosen for speed (tens of GB/s on one core), because
// each byte is checked before it reaches the model, on the way of a request that waits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvtier {

uint64_t checksum64(const void * data, size_t size);

// Computes the same piece by piece, because what has just been read is still in the processor's cache.
class checksum_stream {
public:
    checksum_stream();

    void     update(const void * data, size_t size);
    uint64_t finish() const;

    static constexpr size_t n_lanes     = 8;
    static constexpr size_t stripe_size = n_lanes * sizeof(uint64_t);

private:
    static constexpr size_t held_size = 4 * stripe_size; // a short input has its own formula and is held whole

    std::array<uint64_t, n_lanes>  lanes;
    size_t                         n_stripes = 0; // absorbed since the lanes were last stirred
    std::array<uint8_t, held_size> held{};        // ends with the last stripe absorbed where nothing newer lies there
    size_t                         n_held  = 0;
    uint64_t                       n_total = 0;
};

} // namespace kvtier

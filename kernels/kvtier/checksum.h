// XXH64: the checksum over every header and payload of the store.
//
// It finds damage, not malice; keys are the job of BLAKE2b. It is chosen for speed (several GB/s on one core), because
// each byte is checked before it reaches the model, on the way of a request that waits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtier {

uint64_t checksum64(const void * data, size_t size, uint64_t seed = 0);

} // namespace kvtier

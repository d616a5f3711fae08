// One function per parser: takes any bytes, must not crash. Shared by the fuzzers and by the replay in the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvtier {

struct fuzz_target {
    const char * name;
    void      (* run)(const uint8_t * data, size_t size);
};

const std::vector<fuzz_target> & fuzz_targets();

} // namespace kvtier

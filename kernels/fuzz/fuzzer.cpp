// Entry point for libFuzzer; which parser it feeds is decided when it is built (KVTIER_FUZZ_TARGET).
#include "fuzz/targets.h"

#include <cstdlib>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    for (const kvtier::fuzz_target & target : kvtier::fuzz_targets()) {
        if (std::strcmp(target.name, KVTIER_FUZZ_TARGET) == 0) {
            target.run(data, size);
            return 0;
        }
    }
    std::abort();
}

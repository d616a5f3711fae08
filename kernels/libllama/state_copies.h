// Copies between tensors and host memory, noted down one by one and made together.
#pragma once

#include "ggml-backend.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace state_rows {

// Between one tensor and host memory: n pieces that follow each other there, and lie stride apart in the tensor.
// Transposed V is one short piece per element of a row.
struct copy {
    ggml_tensor * tensor;
    size_t        offset;
    uint8_t     * host;
    size_t        size; // of a piece
    size_t        n;
    size_t        stride;
};

// They are made in any order: no two may write to the same place.
class copies {
public:
    enum direction { TO_HOST, TO_TENSOR };

    // Gets the memory that large copies go through, which otherwise the first of them does.
    static void prepare(ggml_backend_sched_t sched);

    void note(ggml_tensor * tensor, size_t offset, uint8_t * host, size_t size);

    // sched: has the backends on whose devices the tensors are.
    void make(direction dir, ggml_backend_sched_t sched);

private:
    std::vector<copy> noted;
};

} // namespace state_rows

// Copies between tensors and host memory, noted down one by one and made together.
#pragma once

#include "ggml-backend.h"

#include <cstddef>
#include <cstdint>
#include <functional>
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

// Null where the tensor is in host memory.
ggml_backend_dev_t device_of(const ggml_tensor * tensor);

// They are made in any order: no two may write to the same place.
class copies {
public:
    enum direction { TO_HOST, TO_TENSOR };

    // The backend on whose queue the copies from and to a device are made; null: piece by piece, by nobody's.
    using backend_finder = std::function<ggml_backend_t(ggml_backend_dev_t)>;

    // Gets the memory that large copies go through, which otherwise the first of them does.
    static void prepare(ggml_backend_dev_t device);

    void note(ggml_tensor * tensor, size_t offset, uint8_t * host, size_t size);

    // Takes out those of which `which` is true.
    copies split(const std::function<bool(const copy &)> & which);

    bool                      empty() const { return noted.empty(); }
    const std::vector<copy> & list()  const { return noted; }

    // most_threads: how many may work at it. None is left afterwards.
    void make(direction dir, const backend_finder & find_backend, unsigned most_threads);

private:
    void join_pieces();

    std::vector<copy> noted;
};

} // namespace state_rows

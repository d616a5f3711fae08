// Bytes of model state on their way between backend, RAM and disk.
//
// A blob is immutable once shared, so several conversations, the writer's queue and a reader may hold the same one
// without a copy and without a lock. The memory is not zeroed first: pages are megabytes and always filled whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvtier {

class buffer {
public:
    explicit buffer(size_t size) : bytes(new uint8_t[size]), n(size) {}

    uint8_t *       data()       { return bytes.get(); }
    const uint8_t * data() const { return bytes.get(); }
    size_t          size() const { return n; }

private:
    std::unique_ptr<uint8_t[]> bytes;
    size_t                     n;
};

using blob = std::shared_ptr<const buffer>;

} // namespace kvtier

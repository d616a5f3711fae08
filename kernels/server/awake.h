// Requests that need the model loaded. A server that falls asleep under one of them would close the vocabulary it is
// tokenised with and the store it was looked up in.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace llama_run {

// Thread-safe. Must outlive what hold() gives.
class awake_count {
public:
    // The server stays awake while the result lives. Taken before one waits until it is awake, so that it cannot fall asleep
    // in between.
    std::shared_ptr<void> hold() {
        n++;
        return std::shared_ptr<void>(this, [](void * held) { static_cast<awake_count *>(held)->n--; });
    }

    bool none() const { return n == 0; }

private:
    std::atomic<uint32_t> n{ 0 };
};

} // namespace llama_run

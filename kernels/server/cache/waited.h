// How long the inference thread was busy with the cache, by what it did for it: the rest goes on beside it.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "server/cache/stopwatch.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace llama_run {

enum class wait_cause : uint8_t {
    lookup,  // looks at what is stored for a request, and copies what is in RAM
    restore, // puts state into a slot
    anchor,  // takes folded state on the way
    persist, // plans what is stored, and hands it over
    n_kinds,
};

inline const char * wait_cause_name(wait_cause cause) {
    switch (cause) {
        case wait_cause::lookup:  return "lookup";
        case wait_cause::restore: return "restore";
        case wait_cause::anchor:  return "anchor";
        case wait_cause::persist: return "persist";
        case wait_cause::n_kinds: break;
    }
    return "unknown";
}

class waited {
public:
    // Counts from its making to its end.
    class timer {
    public:
        timer(waited & in, wait_cause cause) : in(in), cause(cause) {}
        ~timer() { in.us[static_cast<size_t>(cause)] += static_cast<uint64_t>(1000 * watch.ms()); }

        timer(const timer &) = delete;
        timer & operator=(const timer &) = delete;

    private:
        waited &         in;
        const wait_cause cause;
        const stopwatch  watch;
    };

    double ms(wait_cause cause) const { return static_cast<double>(us[static_cast<size_t>(cause)].load()) / 1000; }

private:
    std::array<std::atomic<uint64_t>, static_cast<size_t>(wait_cause::n_kinds)> us{};
};

} // namespace llama_run

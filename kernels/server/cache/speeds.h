// How fast this machine has been: what a restore is weighed by against evaluating.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace llama_run {

// How long fewer bytes take says nothing about more of them.
inline constexpr uint64_t least_told_by = uint64_t(4) << 20;

// A moving average of what was measured; 0 while nothing was.
class speed {
public:
    void add(double amount, double seconds) {
        if (amount <= 0 || seconds <= 0) {
            return;
        }
        const double now = amount / seconds;
        const double old = value.load();
        value.store(old == 0 ? now : 0.7 * old + 0.3 * now);
    }

    // What is not used is not measured: it may be faster by now, and is tried again some time.
    void doubt() { value.store(1.15 * value.load()); }

    double get() const { return value.load(); }

private:
    std::atomic<double> value{ 0 };
};

struct speeds {
    speed disk;   // bytes per second
    speed shared; // bytes per second, out of the shared folder into the store
    speed copy;   // bytes per second, from RAM into the context
    speed eval;   // tokens per second
};

} // namespace llama_run

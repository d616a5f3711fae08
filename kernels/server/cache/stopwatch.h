#pragma once

#include <chrono>

namespace llama_run {

// Runs from its making.
class stopwatch {
public:
    double ms() const { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count(); }

private:
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

} // namespace llama_run

// Where the power comes from, as the launcher tells it.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "json.h"

#include <atomic>

namespace llama_run {

class power_state {
public:
    static constexpr int low_percent = 20;

    void set(bool on_mains, int percent) {
        mains   = on_mains;
        battery = percent;
    }

    bool is_low() const { return !mains && battery >= 0 && battery < low_percent; }

    common_json describe() const {
        return { { "mains", mains.load() }, { "battery", battery.load() }, { "writes_held", is_low() } };
    }

private:
    std::atomic<bool> mains{ true };
    std::atomic<int>  battery{ -1 }; // percent; -1: there is none, or nobody has said
};

} // namespace llama_run

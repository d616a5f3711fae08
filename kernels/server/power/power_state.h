// Where the power comes from, and how worn the cache's disk is, as the launcher tells it.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "json.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace llama_run {

class power_state {
public:
    static constexpr int low_percent = 20;

    void set(bool on_mains, int percent) {
        mains   = on_mains;
        battery = percent;
    }

    // Bytes that were ever written to the disk, and that it is rated for; 0: not known.
    void set_disk(uint64_t n_written, uint64_t n_rated) {
        disk_written = n_written;
        disk_rated   = n_rated;
    }

    // Adds them to what the cache says of its writing, with the days until the one is the other: per_day is the cache's pace.
    void add_wear(common_json & written, double per_day) const {
        if (disk_rated == 0) {
            return;
        }
        written["disk_written"] = disk_written.load();
        written["disk_rated"]   = disk_rated.load();
        if (per_day > 0) {
            const double left = static_cast<double>(disk_rated) - static_cast<double>(disk_written);
            written["days_left"] = std::max(0.0, left / per_day);
        }
    }

    bool is_low() const { return !mains && battery >= 0 && battery < low_percent; }

    common_json describe() const {
        return { { "mains", mains.load() }, { "battery", battery.load() }, { "writes_held", is_low() } };
    }

private:
    std::atomic<bool> mains{ true };
    std::atomic<int>  battery{ -1 }; // percent; -1: there is none, or nobody has said

    std::atomic<uint64_t> disk_written{ 0 };
    std::atomic<uint64_t> disk_rated{ 0 };
};

} // namespace llama_run

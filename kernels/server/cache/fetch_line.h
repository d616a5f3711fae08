// Who fetches what from the shared folder: prompts that begin alike are fetched for once, and others do not wait for each other.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "kvtier/keys.h"
#include "kvtier/thread_annotations.h"

#include <set>
#include <utility>

namespace llama_run {

class fetch_line {
public:
    static constexpr size_t max_turns = 4; // each holds two batches in memory, of which nobody else knows

    // Waits until nobody fetches any of these runs, and has them while it lives.
    class turn {
    public:
        turn(fetch_line & line, std::set<kvtier::key> wanted) : line(line), runs(std::move(wanted)) {
            kvtier::mutex_lock guard(line.mu);
            while (line.n_turns >= max_turns || line.is_any(runs)) {
                line.changed.wait(guard);
            }
            line.fetched.insert(runs.begin(), runs.end());
            line.n_turns++;
        }
        ~turn() {
            kvtier::mutex_lock guard(line.mu);
            for (const kvtier::key & k : runs) {
                line.fetched.erase(k);
            }
            line.n_turns--;
            line.changed.notify_all();
        }
        turn(const turn &) = delete;
        turn & operator=(const turn &) = delete;

    private:
        fetch_line &                line;
        const std::set<kvtier::key> runs;
    };

private:
    bool is_any(const std::set<kvtier::key> & runs) const REQUIRES(mu) {
        for (const kvtier::key & k : runs) {
            if (fetched.count(k) != 0) {
                return true;
            }
        }
        return false;
    }

    kvtier::mutex         mu;
    kvtier::condition     changed;
    std::set<kvtier::key> fetched GUARDED_BY(mu); // at the moment
    size_t                n_turns GUARDED_BY(mu) = 0;
};

} // namespace llama_run

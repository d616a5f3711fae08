// What the cache was good for, day by day and in all: it survives restarts.
//
// A small text file beside the models' folders keeps it, one for each model. It is written a minute after something changed and
// at the end; kill -9 costs that minute. A file that is broken begins anew, since it only counts. Days are those of UTC.
//
//   llama-run-days-1 SINCE_MS EVAL_TOKENS_PER_S
//   WHO DAY REQUESTS REUSED EVALUATED ANSWERED SAVED_MS WRITTEN READ
//
// WHO is `*` for all together, else the hash of a user's id; DAY counts from 1970, `ever` is all of them.
//
// Thread safety: all functions may be called from any thread. Memory is bounded by n_days and max_users.
#pragma once

#include "kvtier/env.h"
#include "kvtier/thread_annotations.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

namespace llama_run {

struct day_counts {
    uint64_t n_requests  = 0;
    uint64_t n_reused    = 0; // tokens of prompts
    uint64_t n_evaluated = 0;
    uint64_t n_answered  = 0;
    int64_t  saved_ms    = 0; // what evaluating the reused ones would have taken, less what restoring took
    uint64_t bytes_written = 0;
    uint64_t bytes_read    = 0;

    void add(const day_counts & other);
};

class day_totals {
public:
    static constexpr int64_t n_days    = 90;
    static constexpr size_t  max_users = 256; // ids come from clients; the rest counts among all

    struct history {
        std::map<int64_t, day_counts> days; // by number, the last n_days
        day_counts                    ever;
    };

    struct bytes {
        uint64_t written = 0;
        uint64_t read    = 0;
    };

    // so_far: what the store has written and read since it was opened; it is asked until close.
    day_totals(kvtier::env & e, std::string path, std::function<bytes()> so_far);
    ~day_totals() { close(); }

    // Writes what is new, and counts no bytes from then on.
    void close();

    // One request. n_reused tokens took restore_ms; tokens_per_s is what was measured of evaluating, 0 while nothing was.
    void add(const std::string & user, uint64_t n_reused, uint64_t n_evaluated, uint64_t n_answered, double restore_ms,
             double tokens_per_s);

    history all();                              // everybody together
    history of(const std::string & user) const; // without bytes, which belong to nobody alone
    int64_t since_ms() const;

    void forget(const std::string & user);
    void forget_users(); // but for what all did together

private:
    void        keep();
    void        read();
    void        count_bytes() REQUIRES(mu);
    void        count(const std::string & who, const day_counts & what) REQUIRES(mu);
    std::string text() const REQUIRES(mu);
    void        store() EXCLUDES(mu);

    kvtier::env &     e;
    const std::string path;

    kvtier::mutex                  writing; // of the file; it comes before mu
    mutable kvtier::mutex          mu;
    kvtier::condition              ending;
    std::function<bytes()>         so_far GUARDED_BY(mu); // null: it is closed
    bytes                          counted GUARDED_BY(mu);
    std::map<std::string, history> by_who GUARDED_BY(mu);
    int64_t                        since GUARDED_BY(mu) = 0;
    double                         speed GUARDED_BY(mu) = 0; // of evaluating, tokens per second, as it was last known
    bool                           changed GUARDED_BY(mu) = false;
    std::thread                    keeper; // writes
};

} // namespace llama_run

// What finished requests reused and evaluated, all together and by user.
//
// Thread safety: all functions may be called from any thread. Memory is bounded: users beyond max_users are not counted apart,
// because ids come from clients.
#pragma once

#include "server/cache_report.h"

#include "kvtier/thread_annotations.h"

#include "server-task.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace llama_run {

struct request_counts {
    uint64_t n           = 0;
    uint64_t n_reused    = 0; // tokens
    uint64_t n_evaluated = 0;
    std::array<uint64_t, static_cast<size_t>(cache_source::n_kinds)> by_source{};
    std::array<uint64_t, static_cast<size_t>(cache_miss::n_kinds)> by_miss{};

    void add(const cache_report & report, const server_slot_stats & stats) {
        n++;
        n_reused    += stats.n_prompt_cached;
        n_evaluated += stats.n_prompt_processed;
        by_source[static_cast<size_t>(report.source_of(stats.n_prompt_cached))]++;
        by_miss[static_cast<size_t>(report.miss)]++;
    }
};

class request_totals {
public:
    static constexpr size_t max_users = 4096;

    void add(const std::string & user, const cache_report & report, const server_slot_stats & stats) {
        kvtier::mutex_lock guard(mu);
        everyone.add(report, stats);
        if (users.size() < max_users || users.count(user) != 0) {
            users[user].add(report, stats);
        }
    }

    request_counts all() const {
        kvtier::mutex_lock guard(mu);
        return everyone;
    }

    request_counts of(const std::string & user) const {
        kvtier::mutex_lock guard(mu);
        const auto known = users.find(user);
        return known == users.end() ? request_counts() : known->second;
    }

    void forget(const std::string & user) {
        kvtier::mutex_lock guard(mu);
        users.erase(user);
    }

    void forget_users() {
        kvtier::mutex_lock guard(mu);
        users.clear();
    }

private:
    mutable kvtier::mutex                 mu;
    request_counts                        everyone GUARDED_BY(mu);
    std::map<std::string, request_counts> users GUARDED_BY(mu);
};

} // namespace llama_run

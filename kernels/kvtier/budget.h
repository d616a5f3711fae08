// How many bytes the cache may take on disk, and how many it takes now.
//
// One budget covers the whole cache folder. It is shared by the stores that one process has open (the model's and its
// draft model's). What lies in the folders of other models is measured when a store opens and counted as well; other processes
// write there without asking here, so it is measured again from time to time. Space is reserved before the first byte is
// written, so the limit holds during a write too. Whichever store needs room, what is worth least in all of them goes.
//
// Thread safety: all functions may be called at any time.
#pragma once

#include "kvtier/blocks.h"
#include "kvtier/thread_annotations.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvtier {

// A store that shares a budget and can give room back when another one needs it more.
class budget_member {
public:
    virtual ~budget_member() = default;

    virtual uint64_t evictable_bytes() const = 0;

    // Evicts what is worth least to it, if that is worth less than `worth`. It gives false when nothing is, or when it is busy:
    // it must not wait for a save, whose store may be asking here in turn.
    virtual bool evict_below(double worth) = 0;
};

class disk_budget {
public:
    explicit disk_budget(uint64_t limit) : limit_(limit) {}

    bool reserve(uint64_t bytes) {
        mutex_lock guard(mu);
        if (bytes > limit_ || used_ > limit_ - bytes) {
            return false;
        }
        used_ += bytes;
        reserved += bytes;
        return true;
    }

    // Counts what is there already, whether it fits or not.
    void add(uint64_t bytes) {
        mutex_lock guard(mu);
        used_ += bytes;
    }

    void release(uint64_t bytes) {
        mutex_lock guard(mu);
        used_ -= std::min(used_, bytes);
    }

    // Counts another model's folder. One that a store of this process has opened meanwhile is counted by that store.
    void set_foreign(const std::string & name, uint64_t bytes) {
        mutex_lock guard(mu);
        if (owned.count(name) == 0) {
            replace_foreign(name, bytes);
        }
    }

    // Other models' folders are about to be measured.
    void begin_look(int64_t now_ms) {
        mutex_lock guard(mu);
        looked_ms = now_ms;
        reserved  = 0;
    }

    // Whether they should be again. Walking them is cheap beside writing a part of the limit, and processes that fill a folder
    // together exceed the limit by little more than such a part each. After a minute it is worth it even for one that has no
    // room: the others may have left some.
    bool is_look_due(int64_t now_ms) const {
        mutex_lock guard(mu);
        const bool minute_over = now_ms >= looked_ms + minute_ms || now_ms < looked_ms; // The clock may be set back.
        return minute_over || reserved >= limit_ / look_share;
    }

    std::vector<std::string> foreign_names() const {
        mutex_lock               guard(mu);
        std::vector<std::string> names;
        for (const auto & [name, bytes] : foreign) {
            names.push_back(name);
        }
        return names;
    }

    // A store of this process takes the folder over and counts it itself from now on.
    void own(const std::string & name) {
        mutex_lock guard(mu);
        replace_foreign(name, 0);
        owned.insert(name);
    }

    void disown(const std::string & name) {
        mutex_lock guard(mu);
        owned.erase(name);
    }

    bool is_owned(const std::string & name) const {
        mutex_lock guard(mu);
        return owned.count(name) != 0;
    }

    // A member can be asked to evict until it leaves. Leaving waits for an eviction that is under way.
    void join(budget_member * member) {
        mutex_lock guard(members_mu);
        members.push_back(member);
    }

    void leave(const budget_member * member) {
        mutex_lock guard(members_mu);
        members.erase(std::remove(members.begin(), members.end(), member), members.end());
    }

    uint64_t evictable_of_others(const budget_member * asking) const {
        mutex_lock guard(members_mu);
        uint64_t   bytes = 0;
        for (const budget_member * member : members) {
            bytes += member != asking ? member->evictable_bytes() : 0;
        }
        return bytes;
    }

    bool evict_of_others(const budget_member * asking, double worth) {
        mutex_lock guard(members_mu);
        return std::any_of(members.begin(), members.end(), [&](budget_member * member) {
            return member != asking && member->evict_below(worth);
        });
    }

    uint64_t used() const {
        mutex_lock guard(mu);
        return used_;
    }

    uint64_t limit() const { return limit_; }

private:
    static constexpr int64_t  minute_ms  = 60 * 1000;
    static constexpr uint64_t look_share = 64;

    void replace_foreign(const std::string & name, uint64_t bytes) REQUIRES(mu) {
        used_ -= std::min(used_, foreign[name]);
        foreign[name] = bytes;
        used_ += bytes;
    }

    const uint64_t               limit_;
    mutable mutex                members_mu ACQUIRED_BEFORE(mu); // is held while a member evicts
    std::vector<budget_member *> members GUARDED_BY(members_mu);

    mutable mutex                   mu;
    uint64_t                        used_ GUARDED_BY(mu) = 0;
    uint64_t                        reserved GUARDED_BY(mu) = 0; // since the last look at other models
    int64_t                         looked_ms GUARDED_BY(mu) = 0;
    std::map<std::string, uint64_t> foreign GUARDED_BY(mu);
    std::set<std::string>           owned GUARDED_BY(mu);
};

} // namespace kvtier

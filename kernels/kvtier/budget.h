// How many bytes the cache may take on disk, and how many it takes now.
//
// One budget covers the whole cache folder. It is shared by the stores that one process has open (the model's and its
// draft model's); what lies in the folders of other models is measured when a store opens and counted as well. Space is
// reserved before the first byte is written, so the limit holds during a write too. Whichever store needs room, what is worth
// least in all of them goes.
//
// Thread safety: all functions may be called at any time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace kvtier {

// File systems allocate blocks: a file of one byte takes 4 KiB. Counting bytes alone would understate many small files.
constexpr uint64_t disk_block = 4096;

constexpr uint64_t disk_size(uint64_t file_size) {
    return (file_size + disk_block - 1) / disk_block * disk_block;
}

// A folder grows with the names in it. What two new ones may add at most (a file's temporary one and its own): ext4 turns
// one block into three when it begins to index them, and later splits a leaf and at times the node above.
constexpr uint64_t folder_growth = 4 * disk_block;

// A store that shares a budget and can give room back when another one needs it more.
class budget_member {
public:
    virtual ~budget_member() = default;

    virtual uint64_t evictable_bytes() const = 0;

    // Evicts what is worth least to it, if that is worth less than `worth`. False when nothing is, or when it is busy: it
    // must not wait for a save, whose store may be asking here in turn.
    virtual bool evict_below(double worth) = 0;
};

class disk_budget {
public:
    explicit disk_budget(uint64_t limit) : limit_(limit) {}

    bool reserve(uint64_t bytes) {
        std::lock_guard<std::mutex> guard(mu);
        if (bytes > limit_ || used_ > limit_ - bytes) {
            return false;
        }
        used_ += bytes;
        return true;
    }

    // Counts what is there already, whether it fits or not.
    void add(uint64_t bytes) {
        std::lock_guard<std::mutex> guard(mu);
        used_ += bytes;
    }

    void release(uint64_t bytes) {
        std::lock_guard<std::mutex> guard(mu);
        used_ -= std::min(used_, bytes);
    }

    // Another model's folder. One that a store of this process has opened meanwhile is counted by that.
    void set_foreign(const std::string & name, uint64_t bytes) {
        std::lock_guard<std::mutex> guard(mu);
        if (owned.count(name) == 0) {
            replace_foreign(name, bytes);
        }
    }

    // Taken over by a store of this process, which counts it itself from now on.
    void own(const std::string & name) {
        std::lock_guard<std::mutex> guard(mu);
        replace_foreign(name, 0);
        owned[name] = true;
    }

    void disown(const std::string & name) {
        std::lock_guard<std::mutex> guard(mu);
        owned.erase(name);
    }

    bool is_owned(const std::string & name) const {
        std::lock_guard<std::mutex> guard(mu);
        return owned.count(name) != 0;
    }

    // Until it leaves. Leaving waits for an eviction that is under way.
    void join(budget_member * member) {
        std::lock_guard<std::mutex> guard(members_mu);
        members.push_back(member);
    }

    void leave(const budget_member * member) {
        std::lock_guard<std::mutex> guard(members_mu);
        members.erase(std::remove(members.begin(), members.end(), member), members.end());
    }

    uint64_t evictable_of_others(const budget_member * asking) const {
        std::lock_guard<std::mutex> guard(members_mu);
        uint64_t                    bytes = 0;
        for (const budget_member * member : members) {
            bytes += member != asking ? member->evictable_bytes() : 0;
        }
        return bytes;
    }

    bool evict_of_others(const budget_member * asking, double worth) {
        std::lock_guard<std::mutex> guard(members_mu);
        return std::any_of(members.begin(), members.end(), [&](budget_member * member) {
            return member != asking && member->evict_below(worth);
        });
    }

    uint64_t used() const {
        std::lock_guard<std::mutex> guard(mu);
        return used_;
    }

    uint64_t limit() const { return limit_; }

private:
    void replace_foreign(const std::string & name, uint64_t bytes) { // mu held
        used_ -= std::min(used_, foreign[name]);
        foreign[name] = bytes;
        used_ += bytes;
    }

    const uint64_t                  limit_;
    mutable std::mutex              mu;
    uint64_t                        used_ = 0;
    std::map<std::string, uint64_t> foreign;
    std::map<std::string, bool>     owned;
    mutable std::mutex              members_mu; // before mu; held while a member evicts
    std::vector<budget_member *>    members;
};

} // namespace kvtier

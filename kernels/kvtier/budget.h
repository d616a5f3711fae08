// How many bytes the cache may take on disk, and how many it takes now.
//
// One budget covers the whole cache folder. It is shared by the stores that one process has open (the model's and its
// draft model's); what lies in the folders of other models is measured when a store opens and counted as well. Space is
// reserved before the first byte is written, so the limit holds during a write too.
//
// Thread safety: all functions may be called at any time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace kvtier {

// File systems allocate blocks: a file of one byte takes 4 KiB. Counting bytes alone would understate many small files.
constexpr uint64_t disk_block = 4096;

constexpr uint64_t disk_size(uint64_t file_size) {
    return (file_size + disk_block - 1) / disk_block * disk_block;
}

// A folder grows with the names in it. What two new ones may add at most (a file's temporary one and its own): ext4 turns
// one block into three when it begins to index them, and later splits a leaf and at times the node above.
constexpr uint64_t folder_growth = 4 * disk_block;

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

    // Another model's folder, which no store of this process has open.
    void set_foreign(const std::string & name, uint64_t bytes) {
        std::lock_guard<std::mutex> guard(mu);
        used_ -= std::min(used_, foreign[name]);
        foreign[name] = bytes;
        used_ += bytes;
    }

    // Taken over by a store of this process, which counts it itself from now on.
    void own(const std::string & name) {
        set_foreign(name, 0);
        std::lock_guard<std::mutex> guard(mu);
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

    uint64_t used() const {
        std::lock_guard<std::mutex> guard(mu);
        return used_;
    }

    uint64_t limit() const { return limit_; }

private:
    const uint64_t                  limit_;
    mutable std::mutex              mu;
    uint64_t                        used_ = 0;
    std::map<std::string, uint64_t> foreign;
    std::map<std::string, bool>     owned;
};

} // namespace kvtier

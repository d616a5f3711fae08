// The real disk, for a process that looks at a store.
//
// Differs from posix_env in two things. Inspecting leaves no trace: the lock is taken where one lies, also on a disk
// that cannot be written, and its file keeps its time (the store takes it for the last use of the model). And reads
// can be watched and broken off, because reading every byte of a store takes minutes.
#pragma once

#include "kvtier/env.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

class looking_env : public kvtier::env {
public:
    // Told the bytes of each read; false breaks off: all reads fail from then on. Called from the reading thread.
    using watcher = std::function<bool(uint64_t bytes)>;

    explicit looking_env(bool inspect) : inspect(inspect) {}

    // An empty one ends the watch.
    void watch(watcher function);

    kvtier::status open_file(const std::string & path, std::unique_ptr<kvtier::readable_file> & out) override;
    kvtier::status lock_file(const std::string & path, std::unique_ptr<kvtier::file_lock> & out) override;

    kvtier::status create_file(const std::string & path, std::unique_ptr<kvtier::writable_file> & out) override {
        return real.create_file(path, out);
    }
    kvtier::status make_dir(const std::string & path) override { return real.make_dir(path); }
    kvtier::status list_dir(const std::string & path, std::vector<kvtier::dir_entry> & out) override {
        return real.list_dir(path, out);
    }
    kvtier::status folder_size(const std::string & path, uint64_t & out) override { return real.folder_size(path, out); }
    kvtier::status sync_dir(const std::string & path) override { return real.sync_dir(path); }
    kvtier::status rename(const std::string & from, const std::string & to) override { return real.rename(from, to); }
    kvtier::status remove_file(const std::string & path) override { return real.remove_file(path); }
    kvtier::status remove_dir(const std::string & path) override { return real.remove_dir(path); }
    kvtier::status free_space(const std::string & path, uint64_t & out) override { return real.free_space(path, out); }
    int64_t        now_ms() override { return real.now_ms(); }
    kvtier::status touch(const std::string & path) override { return real.touch(path); }

private:
    friend class watched_file;
    kvtier::status see(const std::string & path, uint64_t bytes);

    kvtier::env & real = kvtier::posix_env();
    const bool    inspect;
    std::mutex    mu; // guards the rest
    watcher       seen;
    bool          stopped = false;
};

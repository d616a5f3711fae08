// Files of a folder that may hang: who calls it can be seen from outside, and for how long.
//
// A network file system whose server is gone keeps a call for minutes, or for ever, and nothing takes the calling thread out of it.
// So calls are made by threads that nobody has to wait for (folder_threads.h), and whoever waits for one asks here whether it hangs.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "kvtier/env.h"
#include "kvtier/thread_annotations.h"

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace kvtier {

// The calls that are under way.
class call_watch {
public:
    using clock = std::chrono::steady_clock;

    class call {
    public:
        explicit call(call_watch & watch);
        ~call();
        call(const call &) = delete;
        call & operator=(const call &) = delete;

        void goes_on(); // It takes long because it does much: its time begins anew.

    private:
        call_watch &                            watch;
        std::multiset<clock::time_point>::iterator at;
    };

    // How long the oldest of them has taken so far.
    clock::duration longest() const;

private:
    mutable mutex                    mu;
    std::multiset<clock::time_point> under_way GUARDED_BY(mu);
};

class watched_env : public env {
public:
    // The env must outlive it.
    watched_env(env & inner, std::shared_ptr<call_watch> watch) : inner(inner), watch(std::move(watch)) {}

    status  open_file(const std::string & path, std::unique_ptr<readable_file> & out) override;
    status  create_file(const std::string & path, std::unique_ptr<writable_file> & out) override;
    status  make_dir(const std::string & path) override;
    status  list_dir(const std::string & path, std::vector<dir_entry> & out) override;
    status  folder_size(const std::string & path, uint64_t & out) override;
    status  sync_dir(const std::string & path) override;
    status  rename(const std::string & from, const std::string & to) override;
    status  remove_file(const std::string & path) override;
    status  remove_dir(const std::string & path) override;
    status  touch(const std::string & path) override;
    status  lock_file(const std::string & path, std::unique_ptr<file_lock> & out) override;
    status  free_space(const std::string & path, uint64_t & out) override;
    int64_t now_ms() override { return inner.now_ms(); }

private:
    env &                             inner;
    const std::shared_ptr<call_watch> watch;
};

} // namespace kvtier

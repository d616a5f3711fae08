// A file system in memory that fails on purpose. Only tests use it.
//
// It keeps two copies of the truth: what a running process sees, and what would be left after a power cut. A file's
// bytes reach the second copy by sync(), a name by sync_dir() of its folder. Calls are counted; a test runs an
// operation once to learn how many calls it makes and then once per call with a fault there.
//
// Thread safety: all functions may be called at any time; faults are meant to be set while nothing else runs.
#pragma once

#include "kvtier/env.h"
#include "kvtier/thread_annotations.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace kvtier {

enum class fault : uint8_t {
    none,
    cut,          // this call and all later ones fail: the power is gone
    io_error,     // EIO, once
    no_space,     // ENOSPC, once; an append has written half of its bytes
    no_access,    // EACCES, once
    short_append, // half of the bytes are written, then EIO
    kill,         // like cut, but only the process dies: everything done so far stays
};

// This becomes of data that was not synced when the power goes.
enum class cut_mode : uint8_t {
    strict,       // nothing of it is left: no byte, no name
    names_first,  // names are there, bytes are not: files that were not synced are empty
    torn,         // names are there, files that were not synced have half of their bytes
};

class fault_env : public env {
public:
    fault_env();
    ~fault_env() override;

    // The n-th call from now on (1 = the next) meets the fault.
    void   fail_at(size_t n, fault what);
    size_t calls() const;                     // since the last reset_calls
    void   reset_calls();
    void   power_cut(cut_mode mode);          // all open files and locks are gone; faults are cleared

    void set_read_only(bool on);              // every change fails with EROFS
    void set_capacity(uint64_t bytes);        // ENOSPC beyond it; 0 = no limit
    void set_delay_us(uint64_t us);           // of each append and each read: a slow disk
    void set_now_ms(int64_t now);

    // A test reaches the disk with these; they are not counted and meet no faults.
    std::vector<std::string> files() const;   // paths of all files, sorted
    bool                     exists(const std::string & path) const;
    std::string              get(const std::string & path) const;
    void                     put(const std::string & path, const std::string & bytes); // also durable
    void                     damage(const std::string & path); // flips a bit of the last byte, if the file is there
    void                     put_folder(const std::string & path);
    void                     put_link(const std::string & path);
    void                     erase(const std::string & path);
    uint64_t                 disk_bytes() const;     // of files, as disk_size counts them, and folders
    uint64_t                 bytes_appended() const; // ever
    std::unique_ptr<fault_env> clone() const;        // same files, no faults

    status  open_file(const std::string & path, std::unique_ptr<readable_file> & out) override;
    status  create_file(const std::string & path, std::unique_ptr<writable_file> & out) override;
    status  make_dir(const std::string & path) override;
    status  list_dir(const std::string & path, std::vector<dir_entry> & out) override;
    status  folder_size(const std::string & path, uint64_t & out) override; // as ext4: it grows with names, and never shrinks
    status  sync_dir(const std::string & path) override;
    status  rename(const std::string & from, const std::string & to) override;
    status  remove_file(const std::string & path) override;
    status  remove_dir(const std::string & path) override;
    status  touch(const std::string & path) override;
    status  lock_file(const std::string & path, std::unique_ptr<file_lock> & out) override;
    status  free_space(const std::string & path, uint64_t & out) override;
    int64_t now_ms() override;

private:
    friend class fault_readable;
    friend class fault_writable;
    friend class fault_lock;

    struct node {
        file_type   type = file_type::file;
        std::string bytes;
        std::string synced;
        size_t      most_names = 0; // ever, in a folder
        int64_t     modified_ms = 0;
    };
    using tree = std::map<std::string, std::shared_ptr<node>>; // by full path

    status   before(const std::string & path, bool changes, fault * met = nullptr) REQUIRES(mu);
    uint64_t used() const REQUIRES(mu);
    void     add_name(const std::string & path, std::shared_ptr<node> file) REQUIRES(mu);
    void     pause() const; // as long as a slow disk takes
    static uint64_t size_of(const node & file);

    mutable mutex         mu; // guards the nodes, too
    tree                  now GUARDED_BY(mu);
    tree                  durable GUARDED_BY(mu);
    std::set<std::shared_ptr<node>> locks GUARDED_BY(mu); // the locked files
    size_t                n_calls GUARDED_BY(mu)   = 0;
    size_t                fault_at GUARDED_BY(mu)  = 0;
    fault                 fault_is GUARDED_BY(mu)  = fault::none;
    bool                  dead GUARDED_BY(mu)      = false;
    bool                  read_only GUARDED_BY(mu) = false;
    uint64_t              capacity GUARDED_BY(mu)  = 0;
    uint64_t              delay_us GUARDED_BY(mu)  = 0;
    uint64_t              appended GUARDED_BY(mu)  = 0;
    int64_t               clock_ms GUARDED_BY(mu)  = 1700000000000;
};

} // namespace kvtier

// The folder that several servers share: its names, and what is done to its files. It knows nothing of what is in memory.
//
//   <root>/llama-run.shared                                           says that this is such a folder, and no empty mount point
//   <root>/incoming/<number>-<size>                                   being written; the size is what it will have
//   <root>/evictor.lease                                              who evicts, see eviction_lease.h
//   <root>/<fingerprint>/<backend>/<name space>/<key>-<p0>.seg        runs that follow each other: the key is the last one's
//   <root>/<fingerprint>/<backend>/<name space>/<key>-<n_tokens>.anc  folded state at one length
//
// A file is named by what it holds, and never changes: whoever writes it again writes the same. It is complete when it has its name.
// There are no locks: nobody's work depends on being the only one.
//
// Every function may hang for as long as the file system does. Thread safety: all may be called from any thread.
#pragma once

#include "kvtier/buffer.h"
#include "kvtier/codec.h"
#include "kvtier/env.h"
#include "kvtier/keys.h"
#include "kvtier/status.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvtier {

// Whose files lie together.
struct shared_place {
    key         fingerprint{};
    std::string backend;
    key         name_space{};
};

struct shared_name {
    shared_place place;
    bool         is_anchor = false;
    key          k{};
    uint32_t     at = 0; // where the first run begins, or the anchor's length

    std::string path() const; // within the folder
};

struct shared_file {
    shared_name name;
    uint64_t    bytes       = 0; // on disk
    int64_t     modified_ms = 0; // when it was written or last used, by somebody's clock
};

// In incoming/: it is being written, or was.
struct unfinished_file {
    std::string name;
    uint64_t    bytes       = 0; // so far
    int64_t     modified_ms = 0; // by somebody's clock
};

struct shared_listing {
    std::vector<shared_file>     files;
    std::vector<unfinished_file> unfinished;
    uint64_t                     bytes_claimed = 0; // that they will have
    uint64_t                     bytes         = 0; // of all of it, with those
    std::vector<std::string>     unreadable;        // folders that were passed over
    std::string                  problem;           // with the first of them
};

// What is read of a file, and where to.
struct shared_read {
    uint64_t                offset   = 0;
    uint64_t                checksum = 0;
    std::shared_ptr<buffer> into;
};

// A file that is to be written.
struct shared_copy {
    shared_name          name;
    std::vector<uint8_t> head;
    std::vector<blob>    payload;

    uint64_t bytes() const;
};

// What became of it.
struct shared_written {
    status  result      = status::ok();
    bool    was_there   = false; // Another server wrote it.
    int64_t modified_ms = 0;     // by the folder's clock
};

// The name of a backend as a folder has it: lower case, letters and digits.
std::string backend_folder(const std::string & backend);

class shared_folder {
public:
    // The env must outlive it.
    shared_folder(env & e, std::string root) : e(e), root(std::move(root)) {}

    // The root must be there: a folder that is made where a disk is not mounted fills the wrong one. One that was used before
    // must have its mark, for the same reason; another gets it. is_marked: it has it.
    status prepare(bool was_used, bool & is_marked);

    status list(shared_listing & out);

    // The head must be sound and fit the name.
    status read_segment(const shared_file & file, segment_head & out);
    status read_anchor(const shared_file & file, anchor_head & out);

    // Fills the buffers and checks them. A handle that goes stale meanwhile is opened again, once.
    status read(const shared_name & name, uint64_t file_size, const std::vector<shared_read> & parts, const std::atomic<bool> & abandoned);

    // Writes files in their order, and says what became of each: nothing happens to one that is there, and those that the
    // folder has no room for within `limit` bytes are over_budget. The folder is listed once for all of them, so they should be few
    // bytes of it: what is claimed for them others cannot have. is_wanted is asked again and again; what is left when it says no
    // is given up. Those that wait for their turn are touched every so often, so that nobody takes them for what a killed
    // writer left.
    std::vector<shared_written> write(const std::vector<shared_copy> & copies, uint64_t limit,
                                      const std::function<bool()> & is_wanted, std::chrono::milliseconds renew_every);

    status touch(const shared_name & name);  // it counts as used now
    status remove(const shared_name & name); // ok when it is gone already
    status remove_unfinished(const std::string & name);

    // Small texts. Miss: there is none.
    status read_text(const std::string & name, std::string & out);
    status write_text(const std::string & name, const std::string & text);

    status free_space(uint64_t & out) { return e.free_space(root, out); }

private:
    // A file in incoming/ that is counted by everybody.
    struct claim {
        std::unique_ptr<writable_file> file;
        std::string                    path;
        uint64_t                       size = 0;
    };

    status      make_claim(uint64_t size, claim & out);
    void        give_up(claim & own);
    status      claim_one(const shared_copy & copy, claim & out, bool & was_there);
    void        keep_what_fits(uint64_t limit, std::vector<claim> & claims, std::vector<shared_written> & out);
    status      write_claimed(const shared_copy & copy, claim & own, const std::function<bool()> & is_wanted,
                              shared_written & out);
    bool        has(const shared_name & name);
    void        renew(const std::vector<claim> & claims);
    status      explain(const shared_name & name, const std::vector<shared_read> & parts, const status & damaged);
    status      read_once(const std::string & path, uint64_t file_size, const std::vector<shared_read> & parts,
                          const std::atomic<bool> & abandoned);
    status      write_all(writable_file & file, const shared_copy & copy, const std::function<bool()> & is_wanted);
    status      make_folders(const shared_place & place);
    std::string path_of(const shared_name & name) const;

    env &             e;
    const std::string root;
};

} // namespace kvtier

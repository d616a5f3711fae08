// What a server remembers of the shared folder over a restart, in a small file of its own cache: what is to be removed there, and
// which folder it has used. Without it, a removal that the folder refused would be forgotten, and an empty mount point would look
// like a new folder.
//
// It is text, a line each: `llama-run shared folder notes 1`; `folder`, a space, its path; `remove`, the name space, then `all`
// or keys. A line that cannot be read is passed over. Where it cannot be written, what it says holds until the process ends.
//
// Thread safety: all functions may be called at any time. The file is on the server's own disk, and is written under the lock.
#pragma once

#include "kvtier/env.h"
#include "kvtier/keys.h"
#include "kvtier/thread_annotations.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvtier {

// What is about to be removed from the local store, and then from the folder.
struct shared_removal {
    uint64_t      id = 0; // its note
    key           name_space{};
    bool          everything = false; // of it
    std::set<key> runs;               // else these, and what goes on from them
};

class shared_notes {
public:
    // Reads the file, if there is one. The env must outlive it.
    shared_notes(env & e, std::string path);

    // It is noted before anything of it is done, and gets its id.
    void begin(shared_removal & removal);
    void is_due(uint64_t id); // the local store has forgotten it
    void is_done(uint64_t id);

    std::vector<shared_removal> due() const;

    // Whether a removal that is not done yet is about this.
    bool concerns(const key & name_space, const key & run) const;

    bool has_used(const std::string & folder) const;
    void uses(const std::string & folder);

private:
    struct entry {
        shared_removal what;
        bool           is_due = false;
    };

    void read(const std::string & text);
    void write() REQUIRES(mu);

    env &             e;
    const std::string path;

    mutable mutex             mu;
    std::map<uint64_t, entry> removals GUARDED_BY(mu);
    uint64_t                  next_id GUARDED_BY(mu) = 1;
    std::string               folder GUARDED_BY(mu);
};

} // namespace kvtier

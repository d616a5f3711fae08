// What lies in the shared folder, in memory: found by tokens, and in the order in which it would be evicted.
//
// Thread safety: all functions may be called at any time; none touches a file. It may outlive the tier, in a call that hangs.
#pragma once

#include "kvtier/prefix_index.h"
#include "kvtier/search.h"
#include "kvtier/shared/shared_folder.h"
#include "kvtier/thread_annotations.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace kvtier {

// A run in a file of the folder.
struct shared_run {
    key         k{};
    key         parent{};
    uint32_t    p0 = 0;
    uint32_t    p1 = 0;
    uint64_t    offset    = 0;
    uint64_t    size      = 0;
    uint64_t    checksum  = 0;
    bool        is_static = false;
    shared_name file;
    uint64_t    file_size = 0;
};

struct shared_anchor {
    key         k{};
    uint32_t    n_tokens  = 0;
    uint64_t    offset    = 0;
    uint64_t    size      = 0;
    uint64_t    checksum  = 0;
    shared_name file;
    uint64_t    file_size = 0;
};

// What the folder has of a prompt.
struct shared_match {
    size_t                       n_tokens = 0; // of the prompt, that could be restored
    std::vector<token>           tokens;       // of the runs: the last one may go on otherwise than the prompt
    std::vector<shared_run>      runs;         // from the first token on
    std::optional<shared_anchor> anchor;       // of a folded state, at n_tokens
    uint64_t                     conversation = 0; // that asks for it; 0: it is named by its first tokens

    uint64_t bytes() const;

    // Leaves out what ends in these keys, and everything before it: it is stored already.
    void skip_stored(const std::set<key> & stored);
};

class shared_index {
public:
    using clock = std::chrono::steady_clock;

    // Whose files are of use: others are counted, and evicted.
    struct scope {
        key         fingerprint{};
        std::string backend;       // empty: all
        bool        users = false; // beside those of nobody
    };

    explicit shared_index(scope of) : of(std::move(of)) {}

    bool concerns(const shared_name & name) const;

    // Those whose heads are not known yet.
    std::vector<shared_file> unknown(const shared_listing & listing) const;

    // Heads of files; a null one cannot be used, and is not asked for again before the file changes.
    struct news {
        shared_file              file;
        std::shared_ptr<segment> of_segment;
        std::shared_ptr<anchor>  of_anchor;
    };

    // The folder has been listed: what it does not have any more is forgotten.
    void update(const shared_listing & listing, std::vector<news> found, clock::time_point now);

    // They have just been written.
    void add(std::vector<news> found, clock::time_point now);
    void forget(const std::vector<shared_name> & gone);

    shared_match find(const lookup_request & request) const;

    // The file that holds it. False: none does.
    bool file_of(const key & k, shared_name & out) const;
    bool anchor_file(const key & name_space, const key & k, shared_name & out) const;

    // The files that hold one of these runs, or its anchor, or what goes on from it: the same conversation may have gone on at another
    // server. Behind a static prefix others' conversations begin: it goes when nothing is left that goes on from it.
    std::vector<shared_name> files_of(const std::set<key> & keys) const;
    std::vector<shared_name> files_of_name_space(const key & name_space) const;

    struct totals {
        uint64_t n_files = 0; // of all models
        uint64_t bytes   = 0;
        uint64_t n_known = 0; // of use here
    };
    totals count() const;

    // All files in the order in which they go: the longest unused first. A use counts from when it was seen here, by a clock that
    // only counts: some file systems write down the time of whoever uses a file. What was seen in the same minute goes by the time
    // that is written down, and what was used in the same minute by its place in its prompt, ends before beginnings.
    std::vector<shared_file> victims() const;

private:
    struct entry {
        shared_file              file;
        clock::time_point        changed;         // was seen to, or found
        bool                     is_seen = false; // its head was read, or tried
        std::shared_ptr<segment> of_segment;
        std::shared_ptr<anchor>  of_anchor;

        bool is_usable() const { return of_segment != nullptr || of_anchor != nullptr; }
        bool is_static_segment() const;
        bool has_any(const std::set<key> & keys) const; // runs
    };

    void learn(news found) REQUIRES(mu);
    static void see(entry & known, shared_file file, clock::time_point now);
    void link_all() REQUIRES(mu);
    std::set<key> needed_without(const std::set<std::string> & gone) const REQUIRES(mu);

    const scope of;

    mutable mutex                               mu;
    std::map<std::string, entry>                files GUARDED_BY(mu); // by path
    std::map<const segment *, const entry *>    owners GUARDED_BY(mu);
    std::map<std::pair<key, key>, const entry *> anchors GUARDED_BY(mu); // by name space and key
    prefix_index                                runs GUARDED_BY(mu);
    uint64_t                                    claimed GUARDED_BY(mu) = 0; // bytes that are being written
};

} // namespace kvtier

// Which tokens are stored: a tree whose paths are token sequences, and the search in it.
//
// A run is a node: the rows of tokens [p0, p1), stored behind the run that ends at p0. One run per key; whoever saves
// the same prefix meets the same nodes, so conversations share what they have in common. Only nodes whose whole path is
// stored are in the tree ("attached"). Tokens are kept here (4 bytes each, next to kilobytes of state on disk), so a
// search compares them and needs neither hashes nor files: its cost is the length of the prompt.
//
// Ownership: segments own their runs and are shared with whoever is reading from them; the tree points into them. All
// other pointers go up or sideways and are valid while the run is attached.
//
// Thread safety: none; the catalog guards it.
#pragma once

#include "kvtier/codec.h"
#include "kvtier/keys.h"
#include "kvtier/ram_tier.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvtier {

struct segment;
struct conversation;
struct checkpoint;
struct run;

// The folded state at the end of a run.
struct anchor {
    key      k{};
    key      name_space{};
    key      root{};
    uint32_t n_tokens        = 0;
    uint32_t flags           = 0;
    uint64_t file_size       = 0;
    uint64_t payload_offset  = 0;
    uint64_t payload_size    = 0;
    uint64_t checksum        = 0;
    uint64_t tokens_checksum = 0;
    int64_t  last_used_ms    = 0;
    uint64_t last_turn       = 0;
    uint64_t hits            = 0;
    run *    at = nullptr; // null: its run is not stored
    blob     unwritten;    // it is in memory only, until it settles; null: its file has it

    bool is_written() const { return unwritten == nullptr; }
    std::atomic<uint32_t> pins{ 0 };
    std::atomic<uint32_t> n_refused{ 0 }; // reads that the disk has refused
};

// The runs that continue another one, ascending by their tokens. Nearly always there is one: it takes no memory of its
// own then, which spares a search among millions of runs a cache miss per page.
class run_row {
public:
    run * const * begin() const { return many != nullptr ? many->data() : &one; }
    run * const * end()   const { return begin() + size(); }
    size_t        size()  const { return many != nullptr ? many->size() : one != nullptr; }
    bool          empty() const { return size() == 0; }

    void insert(run * const * before, run * r) {
        if (empty() && many == nullptr) {
            one = r;
            return;
        }
        const std::ptrdiff_t at = before - begin();
        if (many == nullptr) {
            many = std::make_unique<std::vector<run *>>(1, one);
        }
        many->insert(many->begin() + at, r);
    }

    void erase(run * const * r) {
        if (many != nullptr) {
            many->erase(many->begin() + (r - begin()));
        } else {
            one = nullptr;
        }
    }

    void clear() {
        many.reset();
        one = nullptr;
    }

private:
    run *                               one = nullptr;
    std::unique_ptr<std::vector<run *>> many; // if it is there, `one` means nothing
};

struct run {
    key             k{};
    key             parent_key{};
    run *           parent = nullptr; // null at the start of a chain
    segment *       owner  = nullptr;
    const token *   tokens = nullptr; // p1 - p0 of them, in owner->tokens
    uint32_t        p0 = 0;
    uint32_t        p1 = 0;
    uint64_t        offset   = 0; // of the payload in the file
    uint64_t        size     = 0;
    uint64_t        checksum = 0;
    bool            attached = false;
    std::shared_ptr<anchor> anchored;
    run_row                 children;
};

// A file of runs that were saved together; the unit of eviction.
struct segment {
    uint64_t           id = 0;
    key                name_space{};
    key                root{};
    uint64_t           file_size = 0;
    uint32_t           flags     = 0;
    std::vector<run>   runs;
    std::vector<token> tokens;

    uint32_t n_attached       = 0;
    uint32_t n_outer_children = 0; // runs of other segments that continue one of ours
    int64_t  last_used_ms     = 0;
    uint64_t last_turn        = 0;
    uint64_t hits             = 0;

    std::unordered_map<const conversation *, uint32_t> users; // conversations with checkpoints through here
    std::vector<checkpoint *>                          ends;  // checkpoints whose last run is here

    // The conversation that it was written for and whose checkpoint is still to come; 0: none, or not known.
    uint64_t awaited_by = 0;

    std::atomic<uint32_t> pins{ 0 };       // being read or built upon: not to be evicted
    std::atomic<uint32_t> n_refused{ 0 };  // reads that the disk has refused
    std::atomic<uint64_t> looked_up{ 0 };  // number of the last search that came through
};

// The segment that a file's head describes, its runs not attached yet.
std::shared_ptr<segment> make_segment(segment_head && head);

// The longest stored prefix of a prompt.
struct walk_result {
    uint32_t           n_common = 0;       // tokens that agree with something stored
    run *              last     = nullptr; // the run that holds token n_common - 1; it may reach further
    run *              anchored = nullptr; // the longest run with an anchor that lies wholly within the prompt
    size_t             n_compared = 0;     // runs that were compared with the prompt
    std::vector<run *> whole;              // every run on the prompt's path that lies wholly within it
};

class prefix_index {
public:
    // Attaches the runs of new segments wherever their parents are, in whatever order the segments come. Runs whose
    // parent is missing or whose key is taken stay out; a segment with none attached is loose.
    void attach(const std::vector<std::shared_ptr<segment>> & segments);

    // Takes runs out of the tree, from the first-th of the segment on, together with all that hangs below them. The
    // runs are appended to `out`.
    void detach(segment & s, std::vector<run *> & out, size_t first = 0);

    run * find(const key & k) const;

    // An anchor beyond `limit` tokens is of no use.
    walk_result walk(const key & name_space, const key & root, const token * tokens, size_t n_tokens, size_t limit) const;

    size_t size() const { return by_key.size(); }

private:
    run_row & siblings(run & r);

    std::unordered_map<key, run *, key_hash> by_key;
    std::map<std::pair<key, key>, run_row>   chains; // their first runs, by name space and root
};

} // namespace kvtier

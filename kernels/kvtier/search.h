// What a search for a stored prefix asks and answers.
//
// A match names files and keeps them from being evicted as long as it lives; it holds no state yet, but what waits to be written. Between lookup (the
// inference thread, memory only) and load (any worker, reads files) it may be moved to another thread. It must not
// outlive its store.
#pragma once

#include "kvtier/buffer.h"
#include "kvtier/keys.h"
#include "kvtier/policy.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvtier {

class  arriving_data; // store.h
struct segment;
struct anchor;
struct run;

struct lookup_request {
    chain_root    root;
    const token * tokens   = nullptr;
    size_t        n_tokens = 0;
    size_t        limit    = 0;     // tokens of use at most; n_tokens - 1 where the last one must be evaluated
    bool          folded   = false; // the model restores at anchors only
    uint64_t      conversation = 0; // it belongs to; 0: that of its first tokens
    bool          counted  = true;  // false: nobody asks for it now, and it is no reason to keep what is found
};

enum class match_source : uint8_t { none, hot, warm, cold };
enum class match_kind   : uint8_t { none, prefix, conversation };

// Says why fewer tokens than the prompt has were found.
enum class miss_reason : uint8_t {
    none,       // all that was asked for
    empty,      // nothing is stored for this model, user and adapters
    diverged,   // the prompt departs from what is stored at n_common
    not_stored, // the prompt goes on where what is stored ends
    no_anchor,  // more is in common, but the model can only restore where an anchor is
};

const char * match_source_name(match_source s);
const char * match_kind_name(match_kind k);
const char * miss_reason_name(miss_reason r);

// Keeps the files of a match from being evicted. It can be moved, not copied.
class lease {
public:
    lease() = default;
    ~lease();
    lease(lease && other) noexcept;
    lease & operator=(lease && other) noexcept;

    void add(std::shared_ptr<segment> s);
    void add(std::shared_ptr<anchor> a);

private:
    void release();

    std::vector<std::shared_ptr<segment>> segments;
    std::vector<std::shared_ptr<anchor>>  anchors;
};

struct matched_run {
    key         k{};
    uint32_t    p0 = 0;
    uint32_t    p1 = 0;
    uint64_t    size = 0;
    const run * node = nullptr; // alive through the lease; null: it waits to be written
    blob        data;           // then
};

struct match {
    size_t       n_tokens = 0; // can be restored; the last run may reach further and has to be cut by the caller
    size_t       n_common = 0; // tokens in common with what is stored: the prompts part here
    match_source source   = match_source::none;
    match_kind   kind     = match_kind::none;
    miss_reason  reason   = miss_reason::empty;
    uint64_t     bytes_ram  = 0; // to be copied from RAM
    uint64_t     bytes_disk = 0; // to be read
    bool         folded     = false;

    key                      name_space{};
    uint64_t                 conversation = 0; // conv_hash of the prompt
    std::vector<matched_run> runs;             // consecutive, from position 0
    std::shared_ptr<anchor>  at;               // folded: the anchor at n_tokens
    std::vector<std::shared_ptr<const arriving_data>> arriving; // what of it waits to be written may not be there yet
    lease                    held;
};

struct loaded_run {
    uint32_t p0 = 0;
    uint32_t p1 = 0;
    blob     data; // rows of [p0, p1) as they were saved
};

// A match with its bytes, all verified. Nothing in it depends on the store any more.
struct loaded_state {
    size_t                  n_tokens = 0; // rows beyond it, if the last run has any, are to be removed
    std::vector<loaded_run> runs;
    blob                    anchor;       // folded: the state at n_tokens, and at no other length
};

} // namespace kvtier

// One conversation on its way from a store to another one, as a stream of bytes: a head, then the files that it needs, as
// docs/formats.md has them.
//
// The source reads what the conversation's newest checkpoint needs, part by part, and keeps it from eviction meanwhile. The same
// checkpoint gives the same bytes, so that a reader who was interrupted goes on at any offset.
//
// The intake believes nothing: every part is decoded and checked as a file of unknown origin, keys are made anew from the tokens,
// and each is saved as a turn of this server would be. What is stored already is passed over: an intake that begins again, in
// another process even, asks for what is missing. The checkpoint is written last, so the conversation is there as a whole or
// only as a beginning that others may share.
//
// What no check can tell is whether state was computed from its tokens. Who may hand over state may put words into the model's
// mouth.
//
// Thread safety: each object belongs to one thread at a time. The store must outlive it.
#pragma once

#include "kvtier/codec.h"
#include "kvtier/search.h"
#include "kvtier/status.h"
#include "kvtier/store.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvtier {

struct run;
struct anchor;

class handover_source {
public:
    // Of a user's conversation, as it is on disk. Miss: there is none; incompatible: it was evaluated with adapters.
    static status open(store & from, const std::string & user, uint64_t conversation, std::unique_ptr<handover_source> & out);

    uint64_t size() const { return starts.back(); } // of the whole stream
    uint64_t id() const;                            // the checksum of its head

    // Bytes from an offset below size() on, so many or fewer. All of them are verified.
    status read(uint64_t offset, size_t at_most, std::string & out);

private:
    struct source_part {
        std::vector<const run *> runs; // of a segment
        std::shared_ptr<anchor>  of_anchor;
    };

    handover_source(store & from, const chain_root & root) : from(from), root(root) {}

    status gather(const conversation_id & id, uint32_t & number);
    status read_checkpoint(const conversation_id & id, uint32_t number);
    void   lay_out(uint64_t conversation);
    status make_part(size_t i, std::vector<uint8_t> & out) const;
    status make_segment(const std::vector<const run *> & runs, std::vector<uint8_t> & out) const;

    store &                               from;
    const chain_root                      root;
    checkpoint_record                     record;
    std::vector<const run *>              chain; // alive through the lease
    std::vector<std::shared_ptr<anchor>>  anchors;
    lease                                 held;
    std::vector<source_part>              parts;   // beside the checkpoint, which comes first
    std::vector<uint8_t>                  head;    // of the stream
    std::vector<uint8_t>                  checkpoint_file;
    std::vector<uint64_t>                 starts;  // where head, checkpoint and parts begin, and where the last one ends
    std::vector<uint8_t>                  current; // the part that was read last
    size_t                                current_index = SIZE_MAX;
};

class handover_intake {
public:
    // From the head of a stream, whole. Incompatible: it is of another model, and the message names what differs. max_part: bytes
    // of a part at most.
    static status begin(store & to, const std::string & user, uint64_t conversation, const std::string & head, uint64_t max_part,
                        std::unique_ptr<handover_intake> & out);

    uint64_t size() const { return starts.back(); }
    uint64_t id() const { return stream_id; }
    uint64_t wanted() const { return is_complete() ? size() : starts[next] + gathered.size(); } // the offset to go on from
    bool     is_complete() const { return complete; }
    size_t   n_tokens() const { return head.tokens.size(); }

    const std::string & backend() const { return head.header.backend; } // that computed the state

    // The bytes from wanted() on, however they were cut. What follows a failure begins a new intake. Once nobody wants it any
    // more, which is a miss, no further part is stored.
    status take(const char * data, size_t size, const std::atomic<bool> & is_unwanted);

private:
    handover_intake(store & to, handover_head && head, const chain_root & root, uint64_t conversation);

    key    key_at(uint32_t n) const;
    bool   is_stored(const handover_part & part, uint32_t from) const;
    void   pass_over_stored();
    status finish_part();
    status check(const file_header & header) const;
    status take_checkpoint();
    status take_segment();
    status take_anchor();
    status save(const save_request & request);
    status save_checkpoint();

    save_request request_for(uint32_t n_tokens) const;

    store &               to;
    const handover_head   head;
    const chain_root      root;
    const uint64_t        conversation;
    const std::vector<key> pages; // keys of the whole pages
    uint64_t              stream_id = 0;
    std::vector<uint64_t> starts;   // where the parts begin, and where the last one ends
    size_t                next = 0; // the part that is wanted
    std::string           gathered; // of it
    checkpoint_record     record;   // once its part is here
    bool                  complete = false;
};

// In words, what differs between the facts of two models; empty: nothing that they tell.
std::string difference_of(const std::string & theirs, const std::string & ours);

// How many bytes the head of a stream has, from its first bytes; 0: too few, or it is none.
size_t handover_head_size(const std::string & begin);

} // namespace kvtier

// Translates between the structures of the store and the bytes of its files (format.h).
//
// Only heads are coded here: payload is opaque and may be gigabytes, so it is written and read by its offset, and
// checked against the checksum that the head holds. Decoding takes any bytes whatever: it checks magic, version, size
// and checksum first, then every count against what is there before anything is allocated, and leaves `out` untouched
// unless it returns ok.
//
// All functions are pure, and safe from any thread.
#pragma once

#include "kvtier/format.h"
#include "kvtier/keys.h"
#include "kvtier/lifetime.h"
#include "kvtier/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvtier {

// What every file says about itself.
struct file_header {
    key         fingerprint{};
    key         name_space{};   // hash of the user's id; zero = anonymous
    key         root{};         // H(-1) of its chain; zero in an index
    int64_t     created_ms = 0;
    uint32_t    page_size  = 0;
    uint32_t    flags      = 0;
    std::string written_by;     // version of llama-run, at most 16 bytes
    std::string backend;        // that computed the state, at most 32 bytes; shown, never compared
};

// The rows of tokens [p0, p1). It never crosses a page boundary; most are one whole page.
struct run_entry {
    key      k{};      // chain hash at p1
    key      parent{}; // chain hash at p0
    uint32_t p0 = 0;
    uint32_t p1 = 0;
    uint64_t payload_offset = 0;
    uint64_t payload_size   = 0;
    uint64_t checksum       = 0;
};

struct segment_head {
    file_header            header;
    uint64_t               id = 0;
    std::vector<run_entry> runs;
    std::vector<token>     tokens;        // of all runs, in their order
    uint64_t               file_size = 0; // set by decoding
};

struct anchor_head {
    file_header        header;
    key                k{};     // chain hash at n_tokens
    key                base{};  // chain hash at the last page boundary
    uint32_t           n_tokens = 0;
    std::vector<token> tail;    // tokens after that boundary
    uint64_t           tokens_checksum = 0; // over all n_tokens tokens: a second opinion beside the key
    uint64_t           payload_offset  = 0; // set by coding
    uint64_t           payload_size    = 0;
    uint64_t           checksum        = 0;
};

struct chain_point {
    key      k{};
    uint32_t n = 0;
};

struct role_mark {
    uint32_t position = 0; // of the first token
    uint32_t role     = 0; // the adapter's business
};

struct checkpoint_record {
    file_header              header;
    uint64_t                 conversation = 0;
    uint64_t                 turn     = 0; // of its name space
    uint32_t                 number   = 0; // N of ckpt-N.bin
    uint32_t                 n_tokens = 0;
    uint32_t                 n_static = 0; // tokens before the first user message
    std::vector<chain_point> runs;         // the whole chain, from the start; the last ends at n_tokens
    std::vector<chain_point> anchors;
    std::vector<role_mark>   roles;
    uint32_t                 n_naming = 0; // tokens that name the conversation; 0: the first ones, see keys.h
    std::string              title;        // the first words of the user

    void cut_to(uint32_t n); // as if the conversation had ended after n tokens, where one of its runs does
};

struct use_entry {
    uint32_t number       = 0;
    uint64_t last_turn    = 0;
    int64_t  last_used_ms = 0;
    uint64_t hits         = 0;
};

struct index_record {
    file_header            header;
    uint64_t               conversation = 0;
    uint64_t               last_turn    = 0;
    int64_t                last_used_ms = 0;
    uint64_t               hits         = 0;
    std::vector<use_entry> entries;
    lifetime               life;
};

// A file that is part of a handover.
struct handover_part {
    uint32_t kind  = 0; // checkpoint, segment or anchor
    uint32_t n     = 0; // tokens that it reaches to
    uint64_t bytes = 0; // of the file
};

// What a conversation that is handed over begins with. The parts follow it without gaps.
struct handover_head {
    file_header                header;
    uint64_t                   conversation = 0;
    std::vector<handover_part> parts;  // the checkpoint, then segments, then anchors
    std::vector<token>         tokens; // of the whole conversation
    std::string                facts;  // what the fingerprint was made of, for people: lines of name=value
};

// These give the bytes to write. encode_segment and encode_anchor lay out the payload: they set the offsets in `head` from
// the sizes given there, and return the head only.
std::vector<uint8_t> encode_segment(segment_head & head);
std::vector<uint8_t> encode_anchor(anchor_head & head);
std::vector<uint8_t> encode_checkpoint(const checkpoint_record & record);
std::vector<uint8_t> encode_index(const index_record & record);
std::vector<uint8_t> encode_handover(const handover_head & head);

// It goes over the whole head but the checksum's own field.
uint64_t head_checksum(const uint8_t * head, size_t size);

// Says how many bytes the head of a file has, from its first format::header_size bytes; the kind must be the expected one
// and the file as long as it says.
status decode_head_size(const uint8_t * data, size_t size, uint16_t kind, uint64_t file_size, size_t & out);

// data is the head, which more may follow; file_size is the size of the file on disk.
status decode_segment(const uint8_t * data, size_t size, uint64_t file_size, segment_head & out);
status decode_anchor(const uint8_t * data, size_t size, uint64_t file_size, anchor_head & out);
status decode_checkpoint(const uint8_t * data, size_t size, uint64_t file_size, checkpoint_record & out);
status decode_index(const uint8_t * data, size_t size, uint64_t file_size, index_record & out);
status decode_handover(const uint8_t * data, size_t size, uint64_t file_size, handover_head & out);

// It goes over tokens as they are stored.
uint64_t tokens_checksum(const token * tokens, size_t n_tokens);

} // namespace kvtier

// Names of things: which conversation a prompt belongs to, and under which key each of its pages is stored.
//
// Everything here is a pure function of its arguments, identical on every machine: keys are file names that
// outlive processes. Integers enter the hashes as little-endian bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvtier {

using token = int32_t; // llama_token

using key = std::array<uint8_t, 16>;

// Which conversation a prompt belongs to decides how it is listed, limited and removed, never what of it may be reused. It has
// the key that its client gives, or goes by its tokens through the end of the user's first message. None of it depends
// on the model, so that the state of a draft model is found under the same name.
uint64_t conversation_of_key(const std::string & key);
uint64_t conversation_through(const token * tokens, size_t n_tokens);

// So many tokens decide where nothing else is known.
constexpr size_t n_conversation_tokens = 1024;

// It is 64-bit FNV-1a over the first n_conversation_tokens tokens, 4 little-endian bytes each.
uint64_t conversation_hash(const token * tokens, size_t n_tokens);

using conversation_id = std::pair<key, uint64_t>; // name space and hash

struct adapter {
    key   content; // hash of the adapter's file
    float scale;
};

// What all pages of a chain have in common. Two chains with different roots share nothing.
struct chain_root {
    key                  fingerprint; // model and everything that shapes its state
    uint32_t             page_size;   // tokens per page
    std::string          user;        // id; empty = anonymous
    std::vector<adapter> adapters;    // active ones, in the order in which they are applied
};

// Gives H(-1).
key root_key(const chain_root & root);

// Gives H(i) = hash(H(i-1), tokens of page i). n_tokens is the page size for full pages, less for the tail of an anchor.
key next_key(const key & previous, const token * tokens, size_t n_tokens);

// Gives H(0) .. H(n-1) for the full pages of a prompt; the rest of the prompt has no key.
std::vector<key> page_keys(const chain_root & root, const token * tokens, size_t n_tokens);

} // namespace kvtier

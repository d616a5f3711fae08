// Between a llama_context's sequences and the store: copies state out of a context to be written, and puts stored state
// back.
//
//   persist:  take_anchor at the lengths that deserve one, then save when the prompt is evaluated and when the turn ends
//   lookup:   find, from memory
//   restore:  read, which reads and verifies every byte, then put, which changes the context
//
// Every kind of memory goes through the same calls; which parts a context's state has (rows, folded, neither) decides what
// is copied. A sequence that cannot be taken apart is stored as one anchor that holds all of it.
//
// Thread safety: take_anchor, save and put touch the context and belong to its thread. find may be called from any thread;
// read too, and is meant for a worker. Ownership: the context must live until close. No exception but for lack of memory.
#pragma once

#include "kvtier/buffer.h"
#include "kvtier/env.h"
#include "kvtier/loading.h"
#include "kvtier/search.h"
#include "kvtier/store.h"
#include "kvtier/writer.h"
#include "llama/anchor_copy.h"

#include "llama.h"

struct llama_state_taking; // state_rows.h

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace llama_run {

// What separates this sequence's chain from those of other users and adapters.
struct sequence_scope {
    std::string                  user;     // empty: anonymous
    std::vector<kvtier::adapter> adapters; // of the request
};

inline bool operator==(const sequence_scope & a, const sequence_scope & b) {
    return a.user == b.user && std::equal(a.adapters.begin(), a.adapters.end(), b.adapters.begin(), b.adapters.end(),
                                          [](const kvtier::adapter & x, const kvtier::adapter & y) {
                                              return x.content == y.content && x.scale == y.scale;
                                          });
}

inline bool operator!=(const sequence_scope & a, const sequence_scope & b) {
    return !(a == b);
}

struct sequence_turn {
    sequence_scope             scope;
    kvtier::conversation_facts conversation;
    std::vector<kvtier::token> tokens;           // what the sequence holds, from position 0
    std::vector<anchor_copy>   anchors;          // taken on the way
    uint32_t                   n_static = 0;     // tokens before the first user message
    uint32_t                   n_prompt = 0;     // tokens before the answer
    std::vector<kvtier::role_mark> roles;
    bool                       complete = true;  // false: the prompt is evaluated, the answer is still to come
    bool                       anchor_end = true; // take an anchor at the end, where the state has a folded part
};

struct sequence_store_options {
    kvtier::store_options store;       // with the fingerprint of the context's model
    uint64_t              queue_bytes = uint64_t(1) << 30;
    std::string           backend;     // shown, never compared
    kvtier::writer::trouble_listener on_trouble;
    std::chrono::milliseconds        settle{ 0 }; // how long a conversation rests before its folded state is written
};

class sequence_store;

// State on its way into a sequence. It belongs to the context's thread.
class arriving_sequence {
public:
    ~arriving_sequence(); // Removes what has not arrived whole.

    arriving_sequence(const arriving_sequence &) = delete;
    arriving_sequence & operator=(const arriving_sequence &) = delete;

    // Takes the next steps; true: it has arrived, or failed. wait: until then.
    bool advance(bool wait);

    // Once it has arrived: as sequence_store::put says it.
    const kvtier::status & result() const { return outcome; }
    size_t                 n_tokens() const { return n_put; }

private:
    friend class sequence_store;
    arriving_sequence(const sequence_store & store, llama_seq_id seq, kvtier::loading & state) : store(store), seq(seq), state(state) {}

    bool finish_copies(bool wait);

    const sequence_store & store;
    const llama_seq_id     seq;
    kvtier::loading &      state;
    size_t                 n_runs_put = 0;
    size_t                 n_put      = 0; // tokens
    std::deque<llama_state_taking *> copies; // of rows that were appended, made in this order
    bool                   over       = false;
    kvtier::status         outcome    = kvtier::status::ok();
};

class sequence_store {
public:
    static kvtier::status open(kvtier::env & e, llama_context * ctx, const sequence_store_options & options,
                               std::unique_ptr<sequence_store> & out);
    ~sequence_store() { close(); }

    // Waits until all that was saved is on disk, and has no use for the context afterwards.
    void close();

    // Whether state is restored at anchors only.
    bool folded() const;

    // Takes the state that only holds at this length, as save does. The sequence must hold exactly n_tokens tokens. Miss when there is
    // no such part: rows alone do.
    kvtier::status take_anchor(llama_seq_id seq, uint32_t n_tokens, anchor_copy & out) const;

    // Takes what is not stored yet and queues it for the writer. It is copied while the context goes on evaluating. Miss when the
    // sequence does not hold these tokens, no_space when the queue is full. Serving goes on either way. n_same: of its tokens, as many
    // have the very rows that are stored, and more once this is.
    kvtier::status save(llama_seq_id seq, const sequence_turn & turn, size_t & n_same);

    kvtier::status save(llama_seq_id seq, const sequence_turn & turn) {
        size_t n_same = 0;
        return save(seq, turn, n_same);
    }

    // limit: tokens of use at most; one less than the prompt where the last token must be evaluated for its logits. conversation:
    // which one it belongs to; 0: that of its first tokens.
    kvtier::match find(const sequence_scope & scope, const std::vector<kvtier::token> & tokens, size_t limit,
                       uint64_t conversation = 0) const;

    // What find asks of the store, for others to ask. The tokens must outlive it.
    kvtier::lookup_request question(const sequence_scope & scope, const std::vector<kvtier::token> & tokens, size_t limit,
                                    uint64_t conversation) const;

    // Whether the state of a sequence's first n_tokens can be had back without the disk, unless the writer fails to write it.
    bool is_in_ram(const sequence_scope & scope, const std::vector<kvtier::token> & tokens, size_t n_tokens, uint64_t conversation) const;

    kvtier::status read(const kvtier::match & m, const std::vector<kvtier::token> & tokens, kvtier::loaded_state & out);

    // The same, read while the caller goes on. The match must outlive it.
    kvtier::status begin_read(const kvtier::match & m, const std::vector<kvtier::token> & tokens,
                              std::unique_ptr<kvtier::loading> & out);

    // Replaces what the sequence holds. Anything but ok: the sequence is empty, and the message says why.
    kvtier::status put(llama_seq_id seq, const kvtier::loaded_state & state) const;

    // The same while it is being read: what has come is copied, then the next. Where reading fails, ok all the same if what
    // came before is of use: n_tokens is what the sequence holds.
    kvtier::status put(llama_seq_id seq, kvtier::loading & state, size_t & n_tokens) const;

    // The same, copied while the context goes on evaluating other sequences, where its devices can do that. The sequence must not be used
    // until it has arrived; what is read must outlive the result.
    // n_same: of the match's tokens, the sequence has as many already, whose rows are those that are stored: they stay.
    std::unique_ptr<arriving_sequence> begin_put(llama_seq_id seq, kvtier::loading & state, const kvtier::match & m,
                                                 size_t n_same) const;

    // Replaces what a sequence holds by the first n_tokens of another one, in the same cells: nothing is copied but folded state, which
    // the anchor has. Anything but ok: the sequence is empty. Only for contexts whose K/V is unified, where rows are part of the state.
    kvtier::status share(llama_seq_id from, llama_seq_id to, size_t n_tokens, const anchor_copy & anchor) const;

    // Takes a sequence back to the length at which the anchor was taken from it: its rows so far stay. Anything but ok: the sequence is
    // empty.
    kvtier::status go_back(llama_seq_id seq, size_t n_tokens, const anchor_copy & anchor) const;

    // Counts a restore that succeeded: what it used becomes hot.
    void used(const kvtier::match & m);

    // Waits until all that was saved is on disk.
    void flush();

    // Whether the context goes on evaluating while its devices' state is copied; in host memory it always does.
    bool takes_beside() const;

    // Whether begin_put is more than put: state goes to a device that evaluates meanwhile.
    bool puts_beside() const;

    // How long batches have waited for cells that were being copied, and for room for folded state.
    double waited_ms() const;

    kvtier::store &  store() { return *store_; }
    kvtier::writer & queue() { return *writer_; }

private:
    friend class arriving_sequence;
    sequence_store(llama_context * ctx, const sequence_store_options & options);

    void               prepare();
    kvtier::chain_root root(const sequence_scope & scope) const;
    uint64_t           estimate(const std::vector<kvtier::save_run> & runs) const; // bytes of their rows
    kvtier::status     take_rows(llama_seq_id seq, kvtier::save_request & request) const;
    kvtier::status     put_rest(llama_seq_id seq, kvtier::loading & state, size_t n_tokens) const;
    kvtier::status     put_anchor(llama_seq_id seq, const kvtier::blob & anchor, size_t n_tokens) const;

    using memory_at_hand = std::unique_ptr<kvtier::buffer_stock>;

    llama_context *                 ctx;
    const sequence_store_options    options;
    const uint32_t                  parts;   // of llama_state_part; 0 = one piece
    std::vector<memory_at_hand>     stocks;  // for anchors and pages
    std::unique_ptr<kvtier::store>  store_;
    std::unique_ptr<kvtier::writer> writer_; // after store_: it must go first
    std::atomic<bool>               closed{ false };
    std::atomic<double>             waited_before{ 0 }; // waited_ms when it was closed
};

} // namespace llama_run

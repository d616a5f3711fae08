// The cache while it is open: the stores of a model and its draft model, what each slot holds, and what was measured.
// Behind state_cache.h, which says who calls what.
#pragma once

#include "server/request_log.h"
#include "server/slot_offer.h"
#include "server/state_cache.h"

#include "kvtier/budget.h"
#include "llama/sequence_store.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace llama_run {

// Requests of these kinds have a prompt whose state is worth keeping.
inline bool is_cached_kind(server_task_type type) {
    return type == SERVER_TASK_TYPE_COMPLETION || type == SERVER_TASK_TYPE_INFILL;
}

inline std::vector<kvtier::token> tokens_of(const server_tokens & from, size_t n) {
    std::vector<kvtier::token> out(n);
    for (size_t i = 0; i < n; i++) {
        out[i] = from[i];
    }
    return out;
}

inline bool has_media(const std::vector<kvtier::token> & tokens) {
    return std::find(tokens.begin(), tokens.end(), LLAMA_TOKEN_NULL) != tokens.end();
}

// One context's part of a restore.
struct stored_part {
    kvtier::match                    match;
    std::unique_ptr<kvtier::loading> coming; // begun; what is left of it will have come when it is needed

    void clear() {
        coming.reset(); // first: it uses the match
        match = {};
    }

    size_t n_tokens() const { return coming ? coming->n_tokens() : 0; }
};

// What was found and read for a request. Travels with its task; emptied by restore.
class cache_ticket {
public:
    explicit cache_ticket(const std::string & user) { scope.name_space = user; }
    ~cache_ticket() { clear(); }
    void clear();

    std::shared_ptr<cache_core> core; // first: a match must not outlive its store
    sequence_scope              scope;
    std::vector<kvtier::token>  tokens;
    stored_part                 target;
    stored_part                 draft;
    cache_miss                  failure = cache_miss::none; // why nothing is read, or what went wrong
    double                      read_ms   = 0;
    uint32_t                    n_reads   = 0;
    bool                        waited    = false;          // for the writer
    size_t                      n_in_slot = 0;              // of the slot it waits for: tokens it can use
    uint64_t                    in_flight = 0;              // bytes it holds beyond the RAM tier
    uint8_t                     stable    = 0;              // what of its prompt was made stable
    std::atomic<bool>           reading{ false };
    std::atomic<bool>           removed{ false };           // its conversation or user was, while it waited
};

// Whose slot it is when a request was in it that brings no ticket: one of the answers of n > 1, an embedding. Not an id that a
// client can have.
inline constexpr const char * nobody = "\n";

// What somebody asked to remove: all of a user, or one conversation.
struct removal {
    std::string user;
    bool        everything = false;
    uint64_t    hash       = 0;
    size_t      n_tokens   = 0; // of the conversation, as far as they name it; 0: not known

    // Whether state of these tokens is part of it, or goes on from it.
    bool concerns(const sequence_scope & scope, const std::vector<kvtier::token> & tokens) const {
        return scope.name_space == nobody ||
               (scope.name_space == user && (everything || names(tokens, tokens.size()) || names(tokens, n_tokens)));
    }

private:
    bool names(const std::vector<kvtier::token> & tokens, size_t n) const {
        return n > 0 && n <= tokens.size() && kvtier::conversation_hash(tokens.data(), n) == hash;
    }
};

struct request_counts {
    uint64_t n           = 0;
    uint64_t n_reused    = 0; // tokens
    uint64_t n_evaluated = 0;
    std::array<uint64_t, 5> by_source{};
    std::array<uint64_t, static_cast<size_t>(cache_miss::n_kinds)> by_miss{};

    void add(const cache_report & report, const server_slot_stats & stats) {
        n++;
        n_reused    += stats.n_prompt_cached;
        n_evaluated += stats.n_prompt_processed;
        by_source[static_cast<size_t>(report.source_of(stats.n_prompt_cached))]++;
        by_miss[static_cast<size_t>(report.miss)]++;
    }
};

// A moving average of what was measured; 0: nothing yet.
class speed {
public:
    void   add(double amount, double seconds);
    void   doubt(); // what is not used is not measured: it may be faster by now
    double get() const { return value.load(); }

private:
    std::atomic<double> value{ 0 };
};

class cache_core : public std::enable_shared_from_this<cache_core> {
public:
    static kvtier::status open(const common_params & params, llama_context * target, llama_context * draft,
                               server_queue & queue, std::atomic<bool> & stopping, std::shared_ptr<cache_core> & out);
    ~cache_core();

    void         arrive(server_task & task, const admission & from);
    int          choose(const std::vector<slot_candidate> & slots, const server_task & task) const;
    bool         ready(const slot_view & slot, server_task & task);
    void         deferred();
    cache_report restore(const slot_view & slot, server_prompt & prompt, const server_task & task,
                         const std::function<bool()> & make_room);
    bool         anchor(const slot_view & slot, uint32_t n_tokens);
    void         evaluated(const slot_view & slot);
    void         ending(const slot_view & slot);
    void         released(const slot_view & slot);
    void         interrupted(const slot_view & slot);
    void         replaced(const slot_view & slot);

    common_json describe() const;
    common_json describe_user(const std::string & user) const;
    common_json conversations(const std::string & user) const;
    common_json requests(const std::string & user) const { return finished.describe(user); }
    std::string metrics() const;
    void        flush(); // what was answered before the call is on disk afterwards
    bool        remove_conversation(const std::string & user, uint64_t hash, uint64_t & bytes_freed);
    bool        remove_user(const std::string & user, uint64_t & bytes_freed);

    // Flushes and ends the threads.
    void close();

private:
    friend class cache_ticket;

    // What a slot holds and what became of its request.
    struct slot_record {
        sequence_scope             scope;
        std::vector<kvtier::token> prompt;        // of the request, as far as it names its conversation
        std::vector<kvtier::token> tokens;        // held when last seen
        bool                       exact = true;  // held by plain evaluation or an exact restore: may be stored
        bool                       store = false; // this request may be stored
        size_t                     n_reusable = 0; // more than that reused: tokens were moved, which is not exact
        size_t                     n_restored = 0; // tokens, from the store
        size_t                     n_saved    = 0; // tokens handed over
        size_t                     n_refused  = 0; // tokens that the writer had no room for, last time
        bool                       prompt_saved = false;
        std::vector<anchor_copy>   anchors;       // taken, not handed over
        uint32_t                   n_static = 0;
        uint32_t                   last_user = 0;
        std::vector<kvtier::role_mark> roles;
        cache_report               report;
        parting                    parted;
    };

    // A server with one of these does not fall asleep: the reader offers the request again, which takes the queue.
    struct pending_read {
        std::shared_ptr<cache_ticket> ticket;
        std::shared_ptr<void>         awake;
    };

    // What HTTP workers may know of a slot.
    struct slot_notice {
        bool           idle = true;
        bool           forget = false; // its conversation was removed
        bool           handing_over = false; // the client may have its answer, the store does not have it yet
        std::vector<kvtier::token> prompt; // as far as it names its conversation
        sequence_scope scope;
        slot_offer     offer;
    };

    cache_core(const common_params & params, llama_context * target, llama_context * draft, server_queue & queue,
               std::atomic<bool> & stopping);
    kvtier::status open_stores(const common_params & params);
    kvtier::status open_store(const common_params & params, llama_context * ctx, const std::string & model_path,
                              ggml_type type_k, ggml_type type_v, std::unique_ptr<sequence_store> & out);

    bool           scope_of(const std::string & user, const std::vector<common_adapter_lora_info> & lora,
                            sequence_scope & out) const;
    sequence_scope scope_of_request(const std::string & user, const task_params & params) const;
    slot_offer     offer_of(const slot_view & slot) const;
    size_t         best_idle_offer(const cache_ticket & ticket) const;

    std::shared_ptr<cache_ticket> make_ticket(const server_task & task, const std::string & user);
    void look(cache_ticket & ticket) const;
    bool worth_reading(cache_ticket & ticket, size_t n_in_slot) const;
    kvtier::writer::promise promised(const cache_ticket & ticket, size_t n_in_slot) const;
    void wait_for_writer(cache_ticket & ticket, size_t n_in_slot) const;
    void read(cache_ticket & ticket);
    bool read_part(sequence_store & from, stored_part & part, cache_ticket & ticket);
    size_t put(const slot_view & slot, cache_ticket & ticket, const std::function<bool()> & make_room);
    cache_report report_of(const cache_ticket & ticket, const slot_offer & offer, size_t n_in_slot, size_t n_restored) const;
    void log(const slot_view & slot, const cache_ticket & ticket, const slot_record & rec, size_t n_reused) const;
    parting parting_of(const cache_ticket & ticket, const cache_report & report, uint32_t n_static) const;

    size_t chunk_tokens(const slot_view & slot);
    void note_use(const slot_view & slot, slot_record & rec);
    void save(const slot_view & slot, slot_record & rec, size_t n_tokens, bool complete, bool anchor_end);
    void publish(const slot_view & slot, const slot_record & rec, bool idle);
    void flush_stores();
    void run_reader();
    bool hand_over(int id_slot, bool begins);
    bool reserve(cache_ticket & ticket, bool always);
    void give_up_batches_when_stopping();
    void forget(const removal & what);
    uint64_t remove(const removal & what, const std::function<kvtier::status(kvtier::store &, uint64_t &)> & from, bool & done);

    llama_context * const       target_ctx;
    llama_context * const       draft_ctx;
    server_queue &              queue;
    std::atomic<bool> &         server_stops;
    const int32_t               n_swa;
    const bool                  checkpoints_exact; // upstream's; see llama_state_has_window
    const bool                  metadata_users; // whether metadata.user_id tells users apart
    const float                 min_similarity; // of a slot's tokens to a prompt, for it to be worth choosing
    std::string                 root_dir;
    size_t                      n_chunk_tokens = 0; // 0: not known yet

    std::unique_ptr<sequence_store>    target;
    std::unique_ptr<sequence_store>    draft;        // null: none, or one whose state does not travel
    std::map<std::string, kvtier::key> adapter_keys; // by path
    std::set<uint64_t>                 elsewhere;    // conversations of other fingerprints

    std::vector<slot_record> records; // by slot; inference thread only

    mutable std::mutex                    notice_mu;
    std::condition_variable               notice_changed;
    std::vector<slot_notice>              notices;  // by slot
    std::vector<std::weak_ptr<cache_ticket>> waiting; // tickets of requests that have no slot yet
    std::vector<common_adapter_lora_info> defaults; // adapters of requests that name none

    speed disk_speed; // bytes per second
    speed copy_speed;
    speed eval_speed; // tokens per second

    std::atomic<uint64_t> in_flight{ 0 };

    std::mutex                                reader_mu;
    std::condition_variable                   reader_changed;
    std::deque<pending_read>                  reads;
    bool                                      stopping = false;
    std::atomic<uint64_t>                     n_reads_done{ 0 };
    uint64_t                                  n_reads_seen = 0; // by ready; inference thread only
    std::thread                               reader;

    request_counts                        all_requests; // finished ones
    std::map<std::string, request_counts> user_requests;
    mutable std::mutex                    requests_mu;
    request_log                           finished;
};

} // namespace llama_run

// The SSD cache as llama-server sees it: the functions that the patches call, in the order of a request.
//
//   admit     HTTP worker    counts the user's requests
//   arrive    HTTP worker    looks the prompt up, reads its files
//   choose    inference      picks a slot
//   prepare   inference      looks again; false: files are still being read, try again when told
//   restore   inference      puts what was read into the slot, before upstream looks at what the slot holds
//   is_arriving inference    says whether a slot must be left out of the next batch: what was read is still being copied
//   takes_anchors inference  says whether upstream may leave its own checkpoints
//   is_cut    inference      says where a batch ends: state that only holds at this length is copied, others wait for it, or answer
//   evaluated inference      copies that state, and hands the prompt's pages to the writer
//   ending    inference      the answer's last part is about to be sent: a flush waits for what follows
//   released  inference      hands over the rest of the turn
//   failed    inference      a batch failed, or was given up because the server stops: hands over what it had before
//
// Without --cache-ssd, or when the folder cannot be opened, every function returns at once and the server is upstream's.
//
// Thread safety: stop may be called from a signal's handler. arrive and everything that reports or removes may be called from
// any thread, the rest from the inference thread. open and close belong to the thread that loads the model. No exception but for lack of memory.
#pragma once

#include "server/cache/sweeper.h"
#include "server/cache_report.h"
#include "server/conversation.h"
#include "server/experts/expert_view.h"
#include "server/live/live_view.h"
#include "server/overflow/context_overflow.h"
#include "server/plan/request_planner.h"
#include "server/power/power_state.h"
#include "server/stable_prompts.h"
#include "server/user_id.h"

#include "kvtier/thread_annotations.h"

#include "common.h"
#include "server-http.h"
#include "server-queue.h"
#include "server-task.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace llama_run {

class cache_core;
class handover_desk;
class warmer;
struct errand;
struct removal_result; // cache/removal.h

// What the hooks may know of a slot. server_slot itself is private to server-context.cpp.
struct slot_view {
    int                                           id;
    const server_prompt &                         prompt;
    const server_slot_stats &                     stats;
    const std::vector<common_adapter_lora_info> & lora;
    const server_task *                           task;    // null: idle
    int32_t                                       n_ctx;
    bool                                          full;    // of tokens: they have been moved by a context shift, if that is on
};

struct slot_candidate {
    slot_view view;
    bool      busy;
    int64_t   last_used; // microseconds
};

// What waiting clients are told when the server stops.
inline constexpr const char * stopping_message = "the server is stopping";

// A request that was let in: whose it is, and its place among the user's requests for as long as this lives.
struct admission {
    std::string           user;
    std::shared_ptr<void> place;
    std::shared_ptr<request_line::place> in_line; // null: it uses idle time
    uint8_t               stable = 0; // what was made stable: stable_prompts.h
    conversation_request  conversation;
    context_dropped       dropped;    // from its messages: overflow/context_overflow.h
    std::shared_ptr<void> under_way;  // nothing is evaluated ahead meanwhile

    // For APIs whose answers have no timings.
    void tell(http_headers & answer) const;
};

class state_cache {
public:
    state_cache();
    ~state_cache();

    // Turns upstream's prompt cache off when it succeeds. Requests that wait for files are deferred in the queue, which
    // must outlive this.
    void open(common_params & params, llama_context * target, llama_context * draft, server_queue & queue);

    // Everything is on disk afterwards, also what the slots were busy with. A server that sleeps has closed its cache;
    // metrics then says what it last said.
    template <typename Slots>
    void close(const Slots & slots) {
        for (const auto & slot : slots) {
            released(slot.view());
        }
        close();
    }

    // Null when the user has as many requests as allowed. Throws std::invalid_argument for what user_id.h and conversation.h
    // refuse. api: which fields of the body are upstream's and ours, and which a client wrote.
    std::shared_ptr<admission> admit(const server_http_req & req, const common_json & body, task_response_type api,
                                     const cache_options & options);

    void arrive(server_task & task, const admission & from) const;

    // The slot for a request. Null: upstream chooses (the cache is off, the request names its slot, or none is free).
    template <typename Slots>
    auto choose(Slots & slots, const server_task & task) const -> decltype(&slots[0]) {
        std::vector<slot_candidate> candidates;
        for (const auto & slot : slots) {
            candidates.push_back({ slot.view(), slot.is_processing(), slot.t_last_used });
        }
        const int i = choose_among(candidates, task);
        return i < 0 ? nullptr : &slots[static_cast<size_t>(i)];
    }

    bool prepare(const slot_view & slot, server_task & task) const;
    void deferred() const; // the request for which prepare said no is in the line by now

    // make_room: frees cells of idle slots; false when there are none. slots: of all, those that are idle and in the way are cleared.
    template <typename Slots>
    cache_report restore(const slot_view & slot, server_prompt & prompt, const server_task & task,
                         const std::function<bool()> & make_room, Slots & slots) const {
        for (auto & other : slots) {
            if (other.id != slot.id && !other.is_processing() && is_in_the_way(other.view(), slot, task)) {
                other.prompt_clear();
                cleared(other.view(), task);
            }
        }
        return restore(slot, prompt, task, make_room);
    }

    // Whether the slot's state is still on its way, while others go on: without them, it is waited for. n_beside: tokens of theirs in the
    // next batch. report: what restore could not tell yet.
    bool is_arriving(const slot_view & slot, server_prompt & prompt, cache_report & report, int32_t n_beside) const;

    // Whether folded state is copied on the way, in place of upstream's context checkpoints.
    bool takes_anchors(const slot_view & slot) const;

    // Whether a batch of the slot's prompt ends at this length.
    bool is_cut(int id_slot, int64_t n_tokens) const;

    // Whether there is room for the answer to go on; false where slots share their cells and none is left.
    bool may_grow(const slot_view & slot) const;
    void evaluated(const slot_view & slot) const;
    void ending(const slot_view & slot) const;
    void released(const slot_view & slot);

    // From now on batches are given up half-way, where that costs nothing but the batch.
    void stop() { stopping = true; }

    // After a batch that failed (below 0), found no room (1), or was given up (2). error: for those who wait.
    template <typename Slots>
    void failed(const Slots & slots, int how, std::string & error) const {
        error = how == 2 ? stopping_message : error;
        for (const auto & slot : slots) {
            if (how == 2 || (how == 1 && !error.empty())) {
                interrupted(slot.view());
            } else if (how < 0) {
                distrust(slot.view());
            }
        }
    }

    // Somebody put other state into a slot: it is reused as upstream would, by those who name no user, and never stored.
    void replaced(const slot_view & slot) const;

    // Wakes a server that sleeps and keeps it awake while the result lives: its store is closed meanwhile, and what is in it
    // nobody knows.
    std::shared_ptr<void> wake() const;

    // Empty while it is on. For those who have woken the server first.
    std::string off_because() const;

    common_json describe() const;
    common_json describe_user(const std::string & user) const;
    common_json conversations(const std::string & user) const;
    common_json requests(const std::string & user) const;
    common_json saved(const std::string & user) const; // over restarts
    common_json disk() const;
    std::string metrics() const;

    // What POST /cache/plan answers for a prompt that was looked at.
    common_json plan(const errand & looked) const;

    // Warming, behind every request. They are there from serve_warm on, which belongs to whoever adds routes.
    void     serve_warm(const server_http_context & http, const std::string & file);
    warmer & warming() const { return *warming_; }
    bool     wait_until_idle(const std::function<bool()> & stop) const;
    bool     is_idle() const;
    bool     is_stopping() const { return stopping; }
    void     cancel(int id_task) const;

    // What POST /cache/power was told. While the battery is low nothing is written, warmed or read ahead.
    void set_power(bool mains, int battery);
    void set_disk(uint64_t n_written, uint64_t n_rated) { power.set_disk(n_written, n_rated); }
    bool saves_power() const { return power.is_low(); }

    void flush() const;
    kvtier::status remove_conversation(const std::string & user, uint64_t hash, removal_result & out); // miss: there is none
    kvtier::status remove_user(const std::string & user, removal_result & out);

    // What concerns all users at once, for who has the key of the cache folder: see owner/owner_key.h.
    bool        is_owner(const std::string & key) const;
    common_json all_conversations() const;
    kvtier::status remove_everything(removal_result & out);
    kvtier::status collect(uint64_t & bytes_freed); // what has expired, and what nothing can use
    kvtier::status verify(const std::function<bool()> & is_over, common_json & out) const; // every byte

    // Says how long a conversation is kept, and gives it as `conversations` lists it then. Miss: there is none.
    kvtier::status keep(const std::string & user, uint64_t hash, const kvtier::lifetime_change & change, common_json & out) const;

    // Reads it into RAM, likewise.
    kvtier::status warm(const std::string & user, uint64_t hash, common_json & out) const;

    // Conversations on their way to or from other servers; the cache stays open while the result lives. Null: it is off.
    std::shared_ptr<handover_desk> handovers() const;

    // What happens now. It outlives the listeners that it has.
    const std::shared_ptr<live_view> live = std::make_shared<live_view>();

    context_overflow overflow; // with or without --cache-ssd
    expert_view      experts;  // with or without --cache-ssd: it opens and closes with the contexts, as the cache does

private:
    void                        close();
    void                        interrupted(const slot_view & slot) const;
    void                        distrust(const slot_view & slot) const;
    bool                        is_in_the_way(const slot_view & idle, const slot_view & slot, const server_task & task) const;
    void                        cleared(const slot_view & slot, const server_task & task) const;
    cache_report                restore(const slot_view & slot, server_prompt & prompt, const server_task & task,
                                        const std::function<bool()> & make_room) const;
    int                         choose_among(const std::vector<slot_candidate> & slots, const server_task & task) const;
    std::shared_ptr<cache_core> core() const;
    void                        say_model(const common_json & body);
    void                        sweep();
    void                        forget_expired(cache_core & from);

    server_queue * known_queue() const;
    void           offer_again() const;
    void           warm_for_vendor(const server_http_req & req, const common_json & body, task_response_type api);

    const std::unique_ptr<request_planner> planner;
    power_state                 power;
    std::unique_ptr<warmer>     warming_;
    user_gate                   gate;
    tool_watch                  tools;
    std::atomic<uint64_t>       n_made_stable{ 0 }; // prompts
    std::atomic<bool>           said_model{ false };
    mutable kvtier::mutex       mu;
    std::set<std::string>       model_names GUARDED_BY(mu);     // of the one model that is served, whatever clients call it
    std::shared_ptr<cache_core> open_ GUARDED_BY(mu);
    server_queue *              queue GUARDED_BY(mu) = nullptr; // of the server that asked for a cache
    std::string                 last_metrics GUARDED_BY(mu);    // of the cache that was closed
    long                        held_by GUARDED_BY(mu) = 0;     // the process that has the store open, where that is why
    std::string                 path GUARDED_BY(mu);            // of the cache's folder then
    std::string                 why_off GUARDED_BY(mu) = "not asked for: start the server with --cache-ssd PATH";
    std::atomic<bool>           stopping{ false };
    std::unique_ptr<sweeper>    sweeping; // once a cache was opened; it uses all of the above, and goes first
};

// The error that goes with status 429.
common_json too_many_requests(const cache_options & options);

} // namespace llama_run

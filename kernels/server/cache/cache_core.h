// The cache while it is open: the order of a request. Behind state_cache.h, which says who calls what.
//
// What it works with has rooms of its own: the stores (cache_stores), what slots hold (slot_board), requests on their way to one
// (prompt_reader, cache_ticket), status and removals (cache_admin). What is left is the turn that each slot is at.
//
// Thread safety: arrive and admin may be called from any thread, the hooks from the inference thread.
#pragma once

#include "server/cache/adapter_scopes.h"
#include "server/cache/cache_admin.h"
#include "server/cache/cache_stores.h"
#include "server/cache/cache_ticket.h"
#include "server/cache/prompt_reader.h"
#include "server/cache/reading_ahead.h"
#include "server/cache/shared_prefixes.h"
#include "server/cache/slot_board.h"
#include "server/cache/speeds.h"
#include "server/cache/waited.h"
#include "server/handover/handover_desk.h"
#include "server/state_cache.h"

#include "llama/sequence_store.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace llama_run {

class cache_core : public std::enable_shared_from_this<cache_core> {
public:
    static kvtier::status open(const common_params & params, llama_context * target, llama_context * draft,
                               server_queue & queue, std::atomic<bool> & stopping, std::shared_ptr<cache_core> & out);
    ~cache_core() { close(); }

    // Flushes and ends the threads.
    void close();

    void         arrive(server_task & task, const admission & from);
    size_t       stored(const server_task & task, const std::string & user); // tokens of its prompt
    int          choose(const std::vector<slot_candidate> & slots, const server_task & task) const;
    bool         prepare(const slot_view & slot, server_task & task);
    void         deferred() { reader->deferred(); }
    cache_report restore(const slot_view & slot, server_prompt & prompt, const server_task & task,
                         const std::function<bool()> & make_room);
    bool         is_in_the_way(const slot_view & idle, const slot_view & slot, const server_task & task) const;
    void         cleared(const slot_view & slot, const server_task & task);
    bool         is_arriving(const slot_view & slot, server_prompt & prompt, cache_report & report, size_t n_beside);
    bool         takes_anchors(const slot_view & slot);
    bool         ends_batch(int id_slot, size_t n_tokens) const;
    void         evaluated(const slot_view & slot);
    void         ending(const slot_view & slot);
    void         released(const slot_view & slot, const request_times & took);
    void         interrupted(const slot_view & slot);
    void         distrust(const slot_view & slot);
    void         replaced(const slot_view & slot);

    // What would become of a request: of one that has arrived, or of one that only might (plan/look_ahead.cpp).
    foreseen foresee(const cache_ticket & ticket) const;
    foreseen look_ahead(const server_task & task, const admission & from, bool all);

    std::string speeds_file() const; // of this model

    // Writes what was handed over. Slots are left alone: whoever evaluates for them may never come back.
    void write_taken() { stores.flush(); }

    // Nothing is written while they are held, but for flush and close.
    void        hold_writes(bool on);
    common_json written(const power_state & power) const; // what was: today, this week, in all; what that does to the disk

    cache_admin &   admin() { return *admin_; }
    handover_desk & handovers() { return *handovers_; }

private:
    // How a request comes into its slot.
    struct placing {
        sequence_scope scope;
        bool           scope_known = false;
        bool           known       = false; // what the slot held is exact
        slot_offer     offer;
        size_t         n_kept      = 0;     // tokens, in the slot
        size_t         n_restored  = 0;     // tokens, from the store or another slot
        bool           shared      = false;
        bool           went_back   = false; // to an anchor, in the slot
        double         put_ms      = 0;
    };

    // State that is on its way into a slot while others are evaluated.
    struct arrival {
        std::shared_ptr<cache_ticket>      ticket; // has what is copied
        placing                            place;
        std::function<bool()>              make_room;
        stopwatch                          since;
        std::unique_ptr<arriving_sequence> state;
        bool                               whole = false; // it is there, since the last batch
    };

    // What becomes of the request in a slot, and of the state that it leaves there. Inference thread only.
    struct turn {
        std::unique_ptr<arrival>   arriving;       // null: what it restores is there
        std::vector<kvtier::token> tokens;        // what the slot held when last seen
        bool                       exact = true;  // it does by plain evaluation or an exact restore: it may be stored
        bool                       store = false; // the request's state may be stored
        size_t                     n_reusable = 0; // tokens; where more are reused, they were moved, which is not exact
        size_t                     n_restored = 0; // tokens, from the store
        size_t                     n_saved    = 0; // tokens handed over
        size_t                     n_same     = 0; // tokens whose rows are those that are stored, bit by bit
        size_t                     n_refused  = 0; // tokens that the writer had no room for, last time
        bool                       in_prompt    = false; // nothing is answered yet
        bool                       by_token     = false; // what is left of its prompt is evaluated so
        bool                       prompt_saved = false;
        bool                       shares_cells = false; // perhaps, with another slot
        stopwatch                  idle_since;     // of the slot
        std::vector<anchor_copy>   anchors;        // taken, not handed over
        std::vector<uint32_t>      cuts;           // where they are taken: lengths of the prompt
        uint32_t                   shared_cut = 0; // another one, for those who part there as well; 0: there is none
        uint32_t                   n_anchored = 0; // tokens; where the last one was
        uint32_t                   n_static  = 0;
        uint32_t                   last_user = 0;  // where the user's last message begins
        std::vector<kvtier::role_mark> roles;
        kvtier::conversation_facts conversation;
        warming                    warms = warming::no;
        cache_report               report;
        parting                    parted;
    };

    cache_core(const common_params & params, llama_context * target, llama_context * draft, server_queue & queue,
               std::atomic<bool> & stopping);

    std::shared_ptr<cache_ticket> make_ticket(const server_task & task, const std::string & user,
                                              const conversation_request & asked);
    void give_up_batches_when_stopping();
    turn & turn_of(const slot_view & slot) { return turns[static_cast<size_t>(slot.id)]; }

    // lookup
    bool waits_for_prefix(const slot_view & slot, const std::shared_ptr<cache_ticket> & ticket, size_t n_in_slot);
    void serve_waiting(const slot_view & slot, turn & t);

    // restore
    slot_offer   offer_of(const slot_view & slot) const;
    size_t       share(const slot_view & slot, const cache_ticket & ticket);
    bool         advance_arrival(const slot_view & slot, server_prompt & prompt, cache_report & report, bool others_go_on);
    bool         goes_by_token(const slot_view & slot, size_t n_beside) const;
    void         give_up_arrival(const slot_view & slot);
    static void  note_messages(const server_task & task, turn & t);
    cache_report restore_unnamed(const slot_view & slot, server_prompt & prompt, const server_task & task);
    size_t       put(const slot_view & slot, cache_ticket & ticket, const std::function<bool()> & make_room);
    size_t       note_put(const slot_view & slot, cache_ticket & ticket, const kvtier::status & s, size_t n_tokens, double ms);
    cache_report finish_restore(const slot_view & slot, server_prompt & prompt, const server_task & task, placing & place);
    void         put_draft(const slot_view & slot, cache_ticket & ticket, size_t n_tokens);
    size_t       go_back(const slot_view & slot, server_prompt & prompt, size_t n_tokens);

    // persist
    size_t chunk_tokens(const slot_view & slot);
    bool   is_cut(int id_slot, size_t n_tokens) const;
    bool   is_shared_cut(int id_slot, size_t n_tokens) const;
    void   take_anchor(const slot_view & slot, turn & t);
    void   note_use(const slot_view & slot, turn & t);
    void   hand_over(const slot_view & slot, turn & t);
    void   save(const slot_view & slot, turn & t, size_t n_tokens, bool complete, bool anchor_end);
    void   count(const slot_view & slot, const turn & t, const request_times & took, bool removed);

    llama_context * const target_ctx;
    llama_context * const draft_ctx;
    std::atomic<bool> &   server_stops;
    const int32_t         n_swa;
    const bool            checkpoints_exact;  // upstream's; see llama_state_has_window
    const bool            anchors_shelved;    // of each slot: they are far smaller than its whole state, and upstream keeps none
    const bool            shifts;             // tokens are moved when a context is full
    const double          copies_after_ms;    // how long an answer may go on before the end of its prompt is handed over
    const float           min_similarity;     // of a slot's tokens to a prompt, for it to be worth choosing
    const bool            cells_unified;      // all slots' cells lie in one cache
    const bool            rests_by_token;     // see goes_token_by_token
    const bool            cells_shareable;    // between slots: they lie in one cache, and nobody moves them
    server_queue &        queue;
    size_t                n_chunk_tokens = 0; // 0 while it is not known

    adapter_scopes                 scopes;
    speeds                         measured;
    mutable waited                 times;
    cache_stores                   stores;
    reading_ahead                  ahead;  // uses the stores
    slot_board                     board;
    std::unique_ptr<shared_prefixes> prefixes; // there once the stores are open
    std::unique_ptr<prompt_reader> reader; // uses the stores; there once they are open
    std::unique_ptr<cache_admin>   admin_;
    std::unique_ptr<handover_desk> handovers_;
    std::vector<turn>              turns;  // by slot
};

} // namespace llama_run

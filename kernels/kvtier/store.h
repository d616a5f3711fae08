// The store: state of one model on disk, with its RAM tier in front.
//
// A request goes through lookup -> load -> touch when its prompt arrives, and through plan -> save when it has been evaluated
// (by the writer, see writer.h). How the files look is in docs/formats.md, what is inside the store in store_rooms.h.
//
// Thread safety: all functions may be called from any thread. lookup and plan touch memory only and are meant for the
// inference thread; they wait for other threads only for the moment an entry of the catalog changes, never for a file. load
// reads files and is meant for the worker that has the request; several may run at once. save, gc and the removals
// write files one at a time and are meant for the writer thread or an idle store. No exception leaves this interface
// except for lack of memory.
#pragma once

#include "kvtier/budget.h"
#include "kvtier/buffer.h"
#include "kvtier/codec.h"
#include "kvtier/counters.h"
#include "kvtier/env.h"
#include "kvtier/keys.h"
#include "kvtier/lifetime.h"
#include "kvtier/policy.h"
#include "kvtier/search.h"
#include "kvtier/status.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvtier {

class write_budget;

struct store_options {
    std::string  root_dir;            // made if missing; its parent must exist
    key          fingerprint{};
    uint32_t     page_size = 256;
    std::string  facts;               // what the fingerprint was made of, for people: lines of name=value
    std::string  written_by;          // version of llama-run, recorded in files
    uint64_t     max_bytes = uint64_t(64) << 30;
    std::shared_ptr<disk_budget> budget; // shared with other stores of the process; null: one of max_bytes
    std::shared_ptr<write_budget> writes; // likewise; null: writes are not counted
    uint64_t     ram_bytes         = 0;
    uint32_t     max_checkpoints   = 64;  // per conversation, oldest go
    uint32_t     max_cold          = 32;  // of them cold
    uint32_t     max_conversations = 256; // per name space
    uint32_t     max_anchors       = 16;  // per conversation
    uint64_t     protected_bytes   = uint64_t(32) << 30; // at most, of what lifetimes keep from eviction
    int64_t      expire_ms         = 0;   // conversations that were unused for so long are expired; 0: never
    uint64_t     segment_bytes     = uint64_t(64) << 20; // larger saves are split into several files
    uint32_t     n_read_threads    = 8;   // of one load: enough for a fast disk, and sixteen were slower on a virtual one
    tier_windows windows;
    bool         inspect = false;     // change nothing: damaged files are counted where they are
};

// These rows are to be stored. plan() fills in everything but the data.
struct save_run {
    uint32_t p0 = 0;
    uint32_t p1 = 0;
    key      k{};
    key      parent{};
    blob     data;
};

struct save_anchor {
    uint32_t n_tokens = 0;
    key      k{};
    blob     data;
    bool     is_shared = false; // Other conversations go on from it, too: a later turn of this one does not make it needless.
};

// Bytes that are still on their way from a device. It keeps the memory that they go to, and its destructor waits for them.
class arriving_data {
public:
    virtual ~arriving_data() = default;

    // False: they could not be had. Any thread may wait, more than once.
    virtual bool wait() const = 0;

    // Whether wait would return at once.
    virtual bool is_there() const = 0;
};

// Which conversation a sequence belongs to, and what its client says of it.
struct conversation_facts {
    uint64_t        hash     = 0; // 0: that of its first tokens
    uint32_t        n_naming = 0; // tokens that belong to no other; 0: likewise
    std::string     title;        // the first one that is given stays
    lifetime_change change;
};

struct save_request {
    chain_root               root;
    conversation_facts       conversation;
    std::vector<token>       tokens;  // the whole sequence from position 0
    std::vector<save_run>    runs;    // what is not stored yet
    std::vector<save_anchor> anchors;
    bool                     checkpoint = true;  // false: pages of a prompt whose answer is still being generated
    bool                     folded     = false;
    uint32_t                 n_static   = 0;     // tokens before the first user message
    uint32_t                 n_prompt   = 0;     // tokens before the answer; 0: not known
    std::vector<role_mark>   roles;
    std::string              backend;
    std::vector<std::shared_ptr<const arriving_data>> arriving; // what of its data may not be there yet

    uint64_t bytes() const; // of data it holds

    uint64_t conversation_name() const; // what it was said to be, else what its first tokens say

    void cut_to(size_t n); // as if the conversation had ended after n tokens; its runs must

    // Whether all of its data is there.
    bool wait_for_data() const {
        return std::all_of(arriving.begin(), arriving.end(), [](const auto & data) { return data->wait(); });
    }
};

struct plan_request {
    chain_root            root;
    const token *         tokens   = nullptr;
    size_t                n_tokens = 0;
    uint32_t              n_static = 0;  // a good place to cut: what follows is another conversation's own
    std::vector<uint32_t> anchors;       // lengths at which folded state will be given
};

struct conversation_info {
    key      name_space{};
    uint64_t hash          = 0;
    uint64_t turns         = 0; // checkpoints it has
    uint32_t n_tokens      = 0; // of the newest
    uint64_t bytes_own     = 0; // that nobody else uses: freed by removing it
    uint64_t bytes_shared  = 0;
    uint64_t hits          = 0;
    tier     where         = tier::cold;
    int64_t  created_ms    = 0; // of its oldest checkpoint
    int64_t  last_used_ms  = 0;
    std::string backend;
    std::string title;
    lifetime    life;
    bool        is_protected = false; // from eviction, now
};

struct damage_note {
    std::string path;
    status      problem = status::ok();
};

struct verify_report {
    uint64_t                 n_files = 0;
    uint64_t                 n_bytes = 0;
    std::vector<damage_note> damaged;
};

struct store_stats {
    counter_values values;
    uint64_t disk_bytes  = 0; // of the whole budget, other models included
    uint64_t disk_limit  = 0;
    uint64_t protected_bytes = 0; // by lifetimes
    uint64_t protected_limit = 0;
    uint64_t ram_bytes   = 0;
    uint64_t ram_limit   = 0;
    uint64_t index_bytes = 0; // RAM that the index takes, about
    uint64_t n_runs      = 0;
    uint64_t n_segments  = 0;
    uint64_t n_anchors   = 0;
    uint64_t n_conversations = 0;
    uint64_t n_checkpoints   = 0;
};

struct store_rooms;
struct shared_options; // shared/shared_tier.h
class  shared_tier;
class  loading;        // loading.h

class store {
public:
    // Takes the lock, removes unfinished files, sets damaged ones aside and learns what is there. It is busy
    // when another process has it. The env must outlive the store.
    static status open(env & e, const store_options & options, std::unique_ptr<store> & out);

    // Writes when things were last used, and gives the lock back. No call may be in progress.
    ~store();

    // lookup finds the longest stored prefix that is of use.
    match lookup(const lookup_request & request) const;

    // The rows up to this run's end, whose tokens the caller knows. No tokens: it is not stored.
    match chain(const key & name_space, const key & end) const;

    // restore reads all bytes of a match and verifies them. Anything but ok means that none of it may be used. A damaged file
    // is set aside first, so that the next lookup finds what is left.
    status load(const match & m, const token * tokens, size_t n_tokens, loaded_state & out);

    // This reads the same with threads of its own while the caller goes on. The match must outlive it.
    status begin_load(const match & m, const token * tokens, size_t n_tokens, std::unique_ptr<loading> & out);

    // Tells the kernel to read ahead what load will want.
    void prefetch(const match & m);

    // Reads into RAM what was used last, most recent first, until half of the RAM is taken. It returns when that is done or `over`
    // says so.
    void read_ahead(const std::atomic<bool> & over);

    // Reads into RAM what a request would restore that goes on from the conversation, and waits for it. Miss: there is none.
    status warm(const key & name_space, uint64_t hash, uint64_t & bytes_read);

    // Counts a restore that was used: its objects become hot.
    void touch(const match & m);

    // persist begins with what of a sequence is not stored yet, cut where it has to be. `queued` names keys on their way to disk.
    save_request plan(const plan_request & request, const std::vector<save_run> & queued = {}) const;

    // Writes runs, then anchors, then the checkpoint; each is durable before the next. On failure nothing that was
    // stored before is lost, and what was written so far of the request stays. n_tokens: so many are stored, where the day's
    // write budget has cut it.
    status save(const save_request & request, size_t & n_tokens);
    status save(const save_request & request) {
        size_t n_tokens = 0;
        return save(request, n_tokens);
    }

    // Anchors that will be saved later, of runs that are stored: until then lookups find them in memory. give_up: they will not be.
    void keep_unwritten(const save_request & request);
    void give_up_unwritten(const save_request & request);

    // Removals hold after a power cut, too, once they return ok. Where the disk refuses to remove a file they say which, and why:
    // what was removed is not found any more, and the next writer tries again, but until then a restart would find it.
    status remove_conversation(const key & name_space, uint64_t hash, uint64_t & bytes_freed);
    status remove_name_space(const key & name_space, uint64_t & bytes_freed);

    // How long a conversation is kept. It holds after a power cut, too, once this returns ok.
    status set_lifetime(const key & name_space, uint64_t hash, const lifetime_change & change);

    // The conversations that have expired, less those that somebody reads. A use in the future, by a clock that has been set back
    // since, counts as one now.
    std::vector<conversation_id> expired();

    // Removes those of them that nobody has used since, with what belongs to no conversation and is as old.
    status remove_expired(const std::vector<conversation_id> & ids, uint64_t & bytes_freed);

    // Removes what has expired and what nothing can use: quarantine, runs without a past, anchors without a run.
    // Enforces all limits. Where slots and requests may still hold what has expired, it is removed through them instead.
    status gc(uint64_t & bytes_freed, bool with_expired = true);

    // Puts a folder behind it that other stores of this model share. The store must outlive it; see shared/shared_tier.h for the env.
    std::unique_ptr<shared_tier> share(env & e, shared_options options);

    // Reads every byte and changes nothing.
    status verify(verify_report & out);

    // The same while requests are served: nothing waits for it, and what was found damaged and set aside before is not told again.
    // is_over: whether to give up; then it is a miss.
    status verify_beside(const std::function<bool()> & is_over, verify_report & out);

    std::vector<conversation_info> list() const;
    std::vector<damage_note>       damaged() const; // found since opening
    store_stats                    stats() const;
    counters &                     count();
    const store_options &          options() const;

private:
    friend class handover_source; // handover.h
    friend class handover_intake;

    explicit store(std::unique_ptr<store_rooms> rooms);

    std::unique_ptr<store_rooms> rooms;
};

// Gives the fingerprints that have a folder under root_dir.
status list_models(env & e, const std::string & root_dir, std::vector<key> & out);

// Removes all that is stored of a model. It is busy when a process has it open. bytes_freed grows by what was freed.
status remove_model(env & e, const std::string & root_dir, const key & fingerprint, uint64_t & bytes_freed);

} // namespace kvtier

// A folder that several servers share, behind the store of each: what one has evaluated, the others need not.
//
//   publish   what was saved or used here is copied into the folder, in the background, if it is not there
//   find      the longest prefix that the folder has, from memory
//   fetch     reads it, checks every byte, and saves it in the local store as if it had been evaluated here
//   evict     one server at a time keeps the folder within its limit
//
// The folder may hang, fill up, lose files and hold anybody's: none of that is more than a miss. Every call on it is made by threads
// that nobody waits for without an end (folder_threads.h); when one takes longer than the time-out, the tier is off until it has
// returned and a while has passed.
//
// Ownership: the store must outlive the tier; the env must outlive the process's last call on the folder. Thread safety: all functions may be
// called from any thread, but none from the inference thread: find may wait for a moment, the rest for as long as it is told.
#pragma once

#include "kvtier/shared/eviction_lease.h"
#include "kvtier/shared/folder_threads.h"
#include "kvtier/shared/shared_folder.h"
#include "kvtier/shared/shared_index.h"
#include "kvtier/shared/shared_notes.h"
#include "kvtier/shared/unfinished_watch.h"
#include "kvtier/shared/watched_env.h"
#include "kvtier/store.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvtier {

struct folder_look;

struct shared_options {
    using ms = std::chrono::milliseconds;

    std::string dir;
    std::string backend;              // that computes the state here
    bool        all_backends = false; // whether what others have computed is used
    bool        users        = false; // whether named users share, beside those without a name
    uint64_t    limit        = 0;     // bytes of the whole folder; 0: a fifth of its disk's free space, at most 64 GiB
    ms          timeout{ 5000 };      // of one call
    ms          off_for{ 30000 };     // after trouble
    ms          refresh{ 2000 };      // between two looks at the folder while somebody asks
    ms          idle_refresh{ 30000 };
    ms          longest_look{ 200 };  // so long a prompt waits for the folder to be looked at
    ms          term{ 60000 };        // of the lease
    ms          unfinished{ 600000 }; // a file that nobody has gone on writing for so long is nobody's
    ms          touch{ 60000 };       // a use is told to the folder that often
    // The tier's thread calls them. Off, and why; empty: on again. What could not be read, when that begins.
    std::function<void(const std::string & why)> on_change;
    std::function<void(const std::string & what)> on_unreadable;
};

struct shared_stats {
    bool        is_on = false;
    std::string why;               // it is off, or nothing is published
    bool        evicts = false;    // this server does
    uint64_t    n_files = 0;       // in the folder, of all models
    uint64_t    bytes = 0;
    uint64_t    limit = 0;
    uint64_t    n_usable = 0;      // files
    uint64_t    published = 0;     // files, since the start
    uint64_t    bytes_published = 0;
    uint64_t    fetches = 0;
    uint64_t    tokens_fetched = 0;
    uint64_t    bytes_fetched = 0;
    uint64_t    failed_fetches = 0;
    uint64_t    evicted = 0;       // files
    uint64_t    damaged = 0;       // files
    uint64_t    unreadable = 0;    // files and folders, when last looked at
    uint64_t    stalls = 0;        // calls that took longer than the time-out
    uint64_t    unpublished = 0;   // segments and anchors to be, when last looked at
};

class shared_tier {
public:
    using clock = std::chrono::steady_clock;

    shared_tier(env & e, store & target, store_rooms & rooms, shared_options options);
    ~shared_tier(); // close()

    // Ends the thread, at once. Nothing is fetched afterwards.
    void close();

    // Whether this user's state is shared.
    bool serves(const std::string & user) const { return user.empty() || options.users; }

    // What the folder has beyond what `local` has. It looks into the folder first if that was not done just now, for a moment at most.
    shared_match find(const lookup_request & request, const match & local);

    // Saves it in the local store: look it up there afterwards. n_bytes: so many were read, whatever came of it.
    status fetch(const chain_root & root, const shared_match & what, clock::duration at_most, uint64_t & n_bytes);

    // Publishes what is to be, and says whether all of it is.
    bool publish(clock::duration at_most);

    // Nothing is published from now on, until it is allowed again.
    void hold(bool on);

    // The first before the local store forgets it, the second afterwards: of a user everything, or conversations. From the
    // first on nothing of it is fetched. False: some is still there, or may be, and is removed as soon as that can be, after a
    // restart even.
    shared_removal begin_removal(const key & name_space);
    shared_removal begin_removal(const key & name_space, const std::vector<uint64_t> & conversations);
    bool           finish_removal(const shared_removal & removal, clock::duration at_most, uint64_t & n_files);

    shared_stats stats() const;

private:
    // What calls on the folder need, and keep if they hang.
    struct core {
        core(env & e, const shared_options & options, shared_index::scope scope)
            : e(e, watch), folder(this->e, options.dir), index(std::move(scope)) {}

        const std::shared_ptr<call_watch> watch = std::make_shared<call_watch>();
        watched_env                       e;
        shared_folder                     folder;
        shared_index                      index;
        std::atomic<uint64_t>             n_removals{ 0 };
    };

    struct folder_job {
        mutex             mu;
        condition         changed;
        bool              done GUARDED_BY(mu)   = false;
        status            result GUARDED_BY(mu) = status::ok();
        std::atomic<bool> abandoned{ false };
    };
    using job_pointer = std::shared_ptr<folder_job>;
    using folder_work = std::function<status(core & own, const std::atomic<bool> & abandoned)>;

    // A segment or an anchor of the local store that is in use.
    struct local_object {
        key                      name_space{};
        bool                     is_anchor = false;
        uint64_t                 segment   = 0; // its number
        uint32_t                 at        = 0; // where it begins
        int64_t                  used_ms   = 0;
        std::set<key>            missing;       // in the folder: runs, or the anchor
        std::vector<shared_name> there;         // files that have the rest
    };

    // A round of publishing: what is written next, with one look at what the folder has.
    struct publishing {
        uint64_t                          removals_before = 0;
        uint64_t                          n_left          = 0; // objects
        std::vector<shared_copy>          copies;
        uint64_t                          bytes = 0; // of them
        std::vector<const local_object *> whole;     // objects that are there when these copies are
        std::vector<shared_name>          fresh;     // what was written
    };

    // the folder's threads
    job_pointer start(folder_work work, bool urgent = false);
    status      wait_for(const job_pointer & job, clock::time_point until);
    status      call(folder_work work);
    status      write(folder_work work);

    // whether it is on
    bool is_usable();
    bool hangs() const;
    status no_answer() const;
    void note_trouble(const status & problem);
    void tell_change();
    void tell_unreadable(const folder_look & found);

    // the keeper, one after the other
    void keep();
    void wait_for_work(uint64_t n_saved);
    clock::duration look_interval() const;
    bool is_look_due() const;
    void look_after();
    bool refresh();
    void renew_lease(const std::string & found);
    void evict(double high, double low);
    void remove_unfinished(std::vector<std::string> names);
    void remove_pending();
    bool may_write() const;
    void publish_all();
    status publish_object(const local_object & object, publishing & now);
    status add_copy(shared_copy copy, publishing & now);
    status write_copies(publishing & now);
    void   note_published(const std::vector<shared_copy> & copies, const std::vector<shared_written> & written,
                          std::vector<shared_name> & fresh);
    std::map<key, int64_t> & published(const local_object & object) { return object.is_anchor ? published_anchors : published_runs; }
    void touch_used(const std::vector<local_object> & used, const std::vector<shared_name> & fresh);

    std::vector<local_object> objects_in_use() const;
    std::vector<local_object> compare();
    std::set<key>             stored_keys(const key & name_space) const;
    status                    copies_of(const local_object & object, const std::function<status(shared_copy)> & each) const;

    // fetching
    struct batch;
    void   start_batch(const shared_match & what, size_t & next, batch & out);
    status save_batch(const chain_root & root, const shared_match & what, const batch & got, uint64_t removals_before);
    void   note_lost(const status & why, const shared_name & file);
    void   note_refused(const status & by_store);
    void   note_fetched(const status & saved, const shared_match & what, const batch & got);

    bool           is_being_removed(const key & name_space, const shared_match & what) const;
    shared_removal note_removal(shared_removal removal);
    status         remove_files(std::vector<shared_removal> removals, clock::time_point until, uint64_t & n_files);

    store &               target;
    store_rooms &         rooms;
    const shared_options  options;
    const std::shared_ptr<core> own;
    folder_threads        threads;
    shared_notes          notes;

    shared_mutex          saving;   // a removal is not followed by what was fetched before it
    std::atomic<bool>     stopping{ false };

    mutable mutex      mu;
    mutable condition  changed;
    clock::time_point  off_until GUARDED_BY(mu);
    std::string        why_off GUARDED_BY(mu);
    std::string        why_unpublished GUARDED_BY(mu);
    std::string        why_unreadable GUARDED_BY(mu);
    clock::time_point  fetch_after GUARDED_BY(mu);       // the local store has refused
    std::set<std::pair<bool, key>> fetched GUARDED_BY(mu); // since the keeper last compared: whether it is an anchor, and its key
    bool               is_busy GUARDED_BY(mu)   = false; // the keeper, with something else than a look
    bool               told_off GUARDED_BY(mu)  = false;
    bool               is_off GUARDED_BY(mu)    = false;
    bool               is_seen GUARDED_BY(mu)   = false; // the folder was, once
    clock::time_point  refreshed_at GUARDED_BY(mu);
    bool               wanted GUARDED_BY(mu)    = false; // somebody asks for a look
    bool               held GUARDED_BY(mu)      = false;
    uint64_t           n_begun GUARDED_BY(mu)   = 0; // rounds of the keeper
    uint64_t           n_ended GUARDED_BY(mu)   = 0;
    uint64_t           n_asked GUARDED_BY(mu)   = 0; // a round that somebody waits for
    shared_stats       counted GUARDED_BY(mu);

    // the keeper's own
    int64_t                            since_ms; // what was used before is not published
    eviction_lease                     lease;
    clock::duration                    refresh_took{};
    int64_t                            looked_ms = 0; // when the last look began, by the clock that uses are noted by
    uint64_t                           limit = 0;
    bool                               needs_room = false;
    clock::time_point                  publish_after;
    unfinished_watch                   unfinished;
    std::map<key, int64_t>             published_runs; // by anybody, with when they were last used here then
    std::map<key, int64_t>             published_anchors; // likewise; one has the key of the run that it follows
    std::map<std::string, int64_t>     touched; // files, likewise

    std::thread keeper;
};

} // namespace kvtier

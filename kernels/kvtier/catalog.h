// What is stored, for everybody to ask: the room of memory. It knows no file system.
//
// It looks up and plans, learns what was written, and forgets. Forgetting gives the files that thereby have no use, for
// object_files to remove: the catalog forgets first, files go afterwards.
//
// Thread safety: all functions may be called at any time, and none of them waits for more than memory. A reader that meets
// damage makes the catalog forget at any moment, so a writer asks again after each file operation.
#pragma once

#include "kvtier/counters.h"
#include "kvtier/object_graph.h"
#include "kvtier/store.h"
#include "kvtier/thread_annotations.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace kvtier {

// A turn leaves so much folded state: before its question, before its answer, and at its end.
inline constexpr size_t anchors_of_turn = 3;

// What would be evicted next: one of both, or nothing.
struct eviction {
    std::shared_ptr<segment> of_segment;
    std::shared_ptr<anchor>  of_anchor;
    double                   worth = std::numeric_limits<double>::infinity();

    bool is_empty() const { return of_segment == nullptr && of_anchor == nullptr; }
};

// What of a segment nobody needs any more, and has been forgotten.
struct cut_result {
    std::shared_ptr<segment> of; // null: there is nothing to cut, or it must wait
    size_t                   n_kept        = 0; // runs, from the first on
    bool                     is_being_read = false;
};

// Of a save whose anchors are not written, or not yet.
std::shared_ptr<anchor> make_unwritten(const save_request & request, const save_anchor & from, int64_t now_ms);

class catalog {
public:
    // All of them must outlive it.
    catalog(const store_options & options, const file_layout & layout, ram_tier & ram, counters & count);

    // Starts with what opening has found.
    void begin(object_graph && found);

    // Reads the graph while nobody changes it; what is read of it must be copied.
    template <typename Function>
    auto read(const Function & function) const {
        shared_lock guard(mu);
        return function(graph);
    }

    uint64_t turn_of(const key & name_space) const;

    // catalog.cpp: searching
    match        lookup(const lookup_request & request) const;

    // The runs that end with this one, if it is there.
    match        chain(const key & name_space, const key & end) const;

    // What is likely to be restored next of a conversation: to go on with it, to ask or answer its last question again, or to begin
    // another one as it began. The longest first, each shorter than `below`; rows alone are one. No tokens: there is no more.
    match                        next_restore(const conversation_id & id, size_t below) const;
    std::vector<conversation_id> by_last_use() const; // the last used first

    void         touch(const match & m, int64_t now_ms);
    save_request plan(const plan_request & request, const std::vector<save_run> & queued) const;

    // catalog_learn.cpp: what is written. What a request builds upon and what it writes is kept from eviction by a lease.
    lease    hold(const save_request & request) const;
    status   missing_runs(const save_request & request, std::vector<const save_run *> & out) const;
    uint64_t new_segment();
    void     learn(const std::vector<std::shared_ptr<segment>> & written, const std::vector<const save_run *> & runs,
                   lease & held);
    status   misses_anchor(const save_request & request, const save_anchor & a, bool & out);
    void     learn(const std::vector<std::shared_ptr<anchor>> & written, const save_request & request);

    // Anchors of a request that are not written yet: from now on they are found, and read from memory. Forgetting leaves alone those that
    // have been written since.
    void learn_unwritten(const save_request & request, int64_t now_ms);
    void forget_unwritten(const save_request & request);

    // Fills in what the checkpoint names, and its number and turn; is_new: the conversation has no folder yet.
    status begin_checkpoint(const key & end, checkpoint_record & out, bool & is_new);

    // Miss when a reader has found its pages damaged in the meantime.
    status learn(const checkpoint_record & record, uint64_t file_size);

    // For index.bin, which says when a conversation was used. False: there is no such conversation any more.
    bool uses_of(const conversation_id & id, index_record & out) const;
    bool uses_are_written(const conversation_id & id, bool written, uint64_t file_size);

    // False: nothing is another by it, or there is no such conversation.
    bool change_lifetime(const conversation_id & id, const lifetime_change & change);

    // catalog_forget.cpp: what goes
    bool         forget_conversation(const conversation_id & id, doomed_files & out, std::vector<uint64_t> & left);
    void         forget_name_space(const key & name_space, doomed_files & out);
    // What hangs in the air: it does not tell whose it is. What is being read is left. Where a checkpoint could not be read, the next
    // opening may make it usable; only `all_of` loses it nevertheless.
    void         forget_unusable(const key * all_of, doomed_files & out, std::vector<uint64_t> & left);
    void         forget_surplus(const key & name_space, const conversation_id * changed, int64_t now_ms, doomed_files & out,
                                std::vector<uint64_t> & left); // null: all
    std::vector<conversation_id> expired(int64_t now_ms);
    void         forget_expired(const std::vector<conversation_id> & ids, int64_t now_ms, doomed_files & out,
                                std::vector<uint64_t> & left);

    // trimming.cpp writes the file anew, if there is something to cut, and says so then. left, above: segments that may
    // have some.
    cut_result   cut_unneeded(uint64_t segment, doomed_files & out);
    void         is_cut(uint64_t segment, size_t n_kept);
    eviction     next_eviction(int64_t now_ms) const;
    doomed_files evict(const eviction & next, std::vector<uint64_t> & left);

    // What could not be read, if it is still the same that was read: a new one may be in its place. False: it stays. Its files
    // are given up while nobody else can ask: a save that finds it missing writes a new file of that name, and must find the
    // old one given up already, or the new one would go in its place.
    using give_up_files = std::function<void(const doomed_files & files)>;
    bool forget_lost(const segment * lost, const status & why, const give_up_files & give_up);
    bool forget_lost(const std::shared_ptr<anchor> & lost, const status & why, const give_up_files & give_up);

private:
    void gather(match & out, const run * last) const REQUIRES_SHARED(mu);

    const store_options &         options;
    ram_tier &                    ram;
    counters &                    count;
    mutable std::atomic<uint64_t> n_lookups{ 0 };

    mutable shared_mutex mu; // is taken before those of the RAM tier, the ledger and deferred files
    object_graph         graph GUARDED_BY(mu);
    clock_watch          clock GUARDED_BY(mu); // of the sweeps
};

} // namespace kvtier

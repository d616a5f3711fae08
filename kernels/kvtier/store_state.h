// Inside of the store, shared by store*.cpp and by nobody else.
//
// Two locks. write_mu: held for the whole of a save, a removal or a gc, so that one thread at a time changes files.
// mu: guards everything in memory; held only for moments, never across a file operation (opening excepted, when nobody
// else has the store yet). Order: write_mu before mu. A reader that meets damage takes objects out of the index under mu
// alone, so what a writer found there must be looked up again after each file operation. Stores that share a budget evict
// for each other; one that is asked tries its write_mu and never waits for it, since the other holds its own.
#pragma once

#include "kvtier/file_names.h"
#include "kvtier/prefix_index.h"
#include "kvtier/ram_tier.h"
#include "kvtier/store.h"

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvtier {

struct checkpoint {
    conversation * owner = nullptr;
    uint32_t       number     = 0;
    uint64_t       turn       = 0;
    uint32_t       n_tokens   = 0;
    uint32_t       n_static   = 0;
    uint64_t       file_size  = 0;
    int64_t        created_ms = 0;
    uint64_t       last_turn  = 0;
    int64_t        last_used_ms = 0;
    uint64_t       hits       = 0;
    std::string    backend;
    run *                  end = nullptr;
    std::vector<segment *> segments; // that its chain goes through, each once
    std::vector<key>       anchors;
};

struct conversation {
    key      name_space{};
    uint64_t hash         = 0;
    uint64_t last_turn    = 0;
    int64_t  last_used_ms = 0;
    uint64_t hits         = 0;
    uint64_t index_size   = 0;     // of index.bin; 0 = none
    bool     index_stale  = false;
    std::map<uint32_t, std::unique_ptr<checkpoint>> checkpoints;
    uint32_t next_number  = 1;
};

// A file to be removed once the index has forgotten it.
struct doomed_file {
    std::string folder;
    std::string name;
    uint64_t    size      = 0;
    bool        sync      = false; // before anything after it goes: a checkpoint must not outlive its pages
    bool        is_folder = false; // removed if empty
    bool        aside     = false; // not removed but set aside
};

using doomed_files = std::vector<doomed_file>;
using conversation_id = std::pair<key, uint64_t>;

struct name_space_state {
    uint64_t turn        = 0;
    bool     has_folders = false; // pages/ and anchors/
};

using learn_head = std::function<status(const std::vector<uint8_t> & head, uint64_t file_size)>;

// What would be evicted next: one of both, or nothing.
struct eviction {
    std::shared_ptr<segment> of_segment;
    std::shared_ptr<anchor>  of_anchor;
    double                   worth = std::numeric_limits<double>::infinity();
};

struct store_state : budget_member {
    store_state(env & e, const store_options & o);

    env &               e;
    store_options       options;
    std::string         model_dir;
    std::shared_ptr<disk_budget> budget;
    ram_tier            ram;
    mutable counters    count;
    std::unique_ptr<file_lock> lock;

    std::mutex                write_mu;
    uint64_t                  next_temp = 1;
    uint64_t                  next_segment = 1;
    uint64_t                  own_bytes = 0;      // what this store has in the budget
    std::map<std::string, uint64_t> leftovers;    // files of no use that stay where they are: what each is counted for
    std::set<std::string>     unsynced;           // folders with names that a power cut may take
    bool                      has_quarantine = false;
    uint64_t                  quarantine_bytes = 0; // without the folder itself
    uint64_t                  next_quarantine  = 1;

    mutable std::shared_mutex mu;
    prefix_index              index;
    std::unordered_map<uint64_t, std::shared_ptr<segment>>       segments; // by id
    std::map<std::pair<key, key>, std::shared_ptr<anchor>>       anchors;  // by namespace and key
    std::map<conversation_id, std::unique_ptr<conversation>>     conversations;
    std::map<key, name_space_state>                              name_spaces;
    std::vector<damage_note>                                     notes;
    std::map<std::string, uint64_t>                              folders;  // what each is counted for, by path
    doomed_files                                                 deferred; // found by readers, left to the next writer
    mutable std::atomic<uint64_t>                                n_lookups{ 0 };

    status take_lock();

    // store_recover.cpp: opening
    status recover();
    status scan_name_space(const key & name_space, struct scan_result & found);
    status list_finished(const std::string & folder, std::vector<dir_entry> & out);
    bool   scan_file(const std::string & folder, const dir_entry & entry, uint16_t kind, const learn_head & learn);
    void   scan_segment(const key & name_space, const std::string & folder, const dir_entry & entry, struct scan_result & found);
    void   scan_anchor(const key & name_space, const std::string & folder, const dir_entry & entry, struct scan_result & found);
    void   scan_conversation(const key & name_space, uint64_t hash);
    void   scan_checkpoint(conversation & c, const std::string & folder, const dir_entry & entry);
    void   scan_index(conversation & c, const std::string & folder, const dir_entry & entry);
    bool   is_own(const file_header & header, const key & name_space) const;
    void   refuse(const std::string & folder, const dir_entry & entry, const status & why);
    void   remove_unfinished(const std::string & folder, const dir_entry & entry);
    status read_head(const std::string & path, uint16_t kind, uint64_t & file_size, std::vector<uint8_t> & out) const;

    // store_models.cpp: what other models take
    void   count_foreign();
    void   count_removed(const std::string & name);

    // store_save.cpp: writing
    std::string folder_of(const key & name_space) const;
    status sync_folder(const std::string & path);
    status sync_before_checkpoint(const key & name_space);
    status make_folder(const std::string & parent, const std::string & name);
    status write_file(const std::string & folder, const std::string & name, const const_span * parts, size_t n_parts,
                      bool durable);
    void   forget_replaced(const std::string & folder, const std::string & name);
    status write_index(const conversation_id & id); // write_mu held
    status save(const save_request & request);
    status save_runs(const save_request & request, const key & name_space, lease & held);
    status save_anchors(const save_request & request, const key & name_space);
    status save_checkpoint(const save_request & request, const key & name_space);
    void   register_checkpoint(std::unique_ptr<checkpoint> c); // mu held
    void   flush_indexes();

    // store_evict.cpp: making room, write_mu held
    bool   make_room(uint64_t bytes);                  // reserves them
    bool   free_room(uint64_t bytes);
    bool   evict_one();
    bool   evict(const eviction & next);
    eviction next_eviction() const;
    uint64_t evictable_bytes() const override;         // by any thread, as evict_below
    bool   evict_below(double worth) override;

    // store_retain.cpp: removing
    void   forget_segment(segment & s, doomed_files & out);       // mu held
    void   forget_anchor(const std::shared_ptr<anchor> & a, doomed_files & out);
    void   forget_checkpoint(checkpoint & c, doomed_files & out);
    void   forget_checkpoints_at(const run * at, doomed_files & out);
    void   forget_conversation(conversation & c, doomed_files & out);
    void   apply_limits(const key & name_space, const conversation * changed); // null: any may have
    void   set_aside(const std::string & folder, const std::string & name, uint64_t size);
    void   note(const std::string & path, const status & why); // mu held
    void   finish_deferred();                                  // write_mu held
    uint64_t remove_files(const doomed_files & files, std::set<std::string> * changed = nullptr);
    status sync_removals(const std::set<std::string> & changed);
    uint64_t empty_quarantine();
    void   charge(uint64_t bytes);
    void   discharge(uint64_t bytes);
    void   recount_folder(const std::string & path);
    uint64_t discharge_folder(const std::string & path);
    void   leave(const std::string & path, uint64_t bytes); // that are counted
    void   remove_or_leave(const std::string & path, uint64_t bytes);
    void   discharge_gone(const std::string & tree);
    uint64_t turn_of(const key & name_space) const;               // mu held
};

} // namespace kvtier

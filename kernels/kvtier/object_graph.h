// What is stored, and how it hangs together: segments, anchors, conversations with their checkpoints, and the tree of tokens
// that leads to them.
//
// What forgets an object also names the files that thereby have no use, checkpoints before the state they name: whoever
// removes them in this order never leaves a checkpoint without its state.
//
// Ownership: the graph owns all objects; segments and anchors are shared with whoever reads from them. Thread safety: none;
// the catalog guards it. Members may be read at will and are changed by the functions alone.
#pragma once

#include "kvtier/file_names.h"
#include "kvtier/prefix_index.h"
#include "kvtier/ram_tier.h"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
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
    uint32_t       n_naming   = 0;
    uint64_t       file_size  = 0;
    int64_t        created_ms = 0;
    uint64_t       last_turn  = 0;
    int64_t        last_used_ms = 0;
    uint64_t       hits       = 0;
    std::string    backend;
    run *                  end = nullptr;
    std::vector<segment *> segments; // that its chain goes through, each once
};

struct conversation {
    explicit conversation(const conversation_id & id) : name_space(id.first), hash(id.second) {}

    const key      name_space;
    const uint64_t hash;
    uint64_t       last_turn    = 0;
    int64_t        last_used_ms = 0;
    uint64_t       hits         = 0;
    uint64_t       index_size   = 0;     // of index.bin; 0 = none
    bool           index_stale  = false;
    std::string    title;
    lifetime       life;
    std::map<uint32_t, std::unique_ptr<checkpoint>> checkpoints;
    uint32_t       next_number  = 1;
    std::vector<std::string> unread; // names of its files that could not be used at opening, but may be at the next one

    conversation_id id() const { return { name_space, hash }; }
};

// A file that has no use any more.
struct doomed_file {
    enum class fate : uint8_t {
        remove,
        remove_and_sync, // before anything after it goes: a checkpoint must not outlive its pages
        remove_folder,   // if it is empty
        set_aside,       // for somebody to look at
    };

    std::string folder;
    std::string name;
    fate        what = fate::remove;
    status      why  = status::ok(); // that it is still there: the disk has refused

    std::string path() const { return names::join(folder, name); }
    bool        is_folder() const { return what == fate::remove_folder; }
};

using doomed_files = std::vector<doomed_file>;

// The objects that a file's head describes. Saving and recovery make them alike.
std::shared_ptr<anchor>     make_anchor(const anchor_head & head);
std::unique_ptr<checkpoint> make_checkpoint(const checkpoint_record & record, uint64_t file_size);

class object_graph {
public:
    // Both must outlive it. What is forgotten here is forgotten in RAM, too.
    object_graph(const file_layout & layout, ram_tier & ram) : layout(&layout), ram(&ram) {}

    prefix_index                                             index;
    std::unordered_map<uint64_t, std::shared_ptr<segment>>   segments; // by id
    std::map<std::pair<key, key>, std::shared_ptr<anchor>>   anchors;  // by name space and key
    std::map<conversation_id, std::unique_ptr<conversation>> conversations;
    std::map<conversation_id, std::unique_ptr<conversation>> unread;   // have no checkpoint but such: they are not listed
    std::map<key, uint64_t>                                  turns;    // of every name space that was used
    uint64_t                                                 next_segment = 1;

    uint64_t       turn_of(const key & name_space) const;
    conversation * find(const conversation_id & id) const; // null: there is none

    void           add(const std::vector<std::shared_ptr<segment>> & segments);
    void           add(const std::shared_ptr<anchor> & a);
    conversation & add(const conversation_id & id); // the one that is there, listed or not, or a new one

    // The end of its chain must be stored.
    void add(std::unique_ptr<checkpoint> c, conversation & owner, run & end);

    // An anchor at the end of a run, if the run is stored; true when it is linked to it.
    bool link(const std::shared_ptr<anchor> & a);

    // Before a damaged segment is forgotten: conversations that have no checkpoint but through it keep the newest, up to there,
    // if that is more than a static prefix. What is left of them can be listed and removed by name, and expires. The file stays
    // as it is: the next opening makes a shorter one of it.
    void shorten_those_through(const segment & lost);

    void forget_segment(segment & s, doomed_files & out);
    void forget_anchor(const std::shared_ptr<anchor> & a, doomed_files & out);
    void forget_checkpoint(checkpoint & c, doomed_files & out);
    void forget_checkpoints_at(const run * at, doomed_files & out); // which is about to lose its state, or its anchor

    // For one of several of a conversation. Its state stays: another prompt may well begin the same way. But it goes where no other
    // checkpoint begins with the same naming tokens (the history was compacted, say): whoever removes the conversation later
    // would not find it. left grows by the segments of it that are still there. False: somebody reads that now, and all is as it was.
    bool retire(checkpoint & c, doomed_files & out, std::vector<uint64_t> & left);

    // With everything that only it uses, file by file. Gives the segments that it was in and that are still there.
    std::vector<uint64_t> forget_conversation(conversation & c, doomed_files & out, bool with_static = true);

    bool forget_unread(const conversation_id & id, doomed_files & out); // False: there is none.

    // Conversations that have no checkpoint but those at this run of the segment (null: at any of it), which is about to be evicted:
    // once they are not listed, nobody could remove the rest of their words, and it would never expire. A static prefix stays:
    // others begin with it. So does the rest of one that somebody reads or that is about to go on, as it will be listed again.
    void forget_ending(const segment & s, const run * at, doomed_files & out, std::vector<uint64_t> & left);

    // What was written for a conversation whose checkpoint is still to come, as far as nobody else uses it. Gives the segments
    // of it that are still there.
    std::vector<uint64_t> forget_awaited(const conversation_id & id, doomed_files & out, bool & found);

    // Counts the first runs of a segment that a checkpoint or another segment needs; nobody needs the rest.
    size_t n_needed(const segment & s) const;

    // Forgets those from the first-th on. The segment stays.
    void forget_runs(segment & s, size_t first, doomed_files & out);

    void forget_unneeded(std::vector<uint64_t> ids, doomed_files & out); // of these segments, what no conversation needs

private:
    void link(checkpoint & c, run & end);
    void unlink(checkpoint & c);
    void doom_folder(const conversation & c, doomed_files & out) const; // with all in it but checkpoints that were read

    const file_layout * layout;
    ram_tier *          ram;
};

// Whether somebody reads what would go with the conversation.
bool is_being_read(const conversation & c);

// The runs that may go with these: those of their segments that no other conversation's checkpoint needs.
std::set<key> own_runs(const std::set<const conversation *> & gone);

} // namespace kvtier

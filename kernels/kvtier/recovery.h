// Opening: learn what is there from the files themselves, and believe none of them unchecked.
//
// There is no list of files that could be stale or lost. Heads of segments and anchors and all checkpoints are read; payload
// is not, it is checked when it is used.
#pragma once

#include "kvtier/store_rooms.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace kvtier {

class recovery {
public:
    explicit recovery(store_rooms & rooms) : rooms(rooms), found(rooms.layout, rooms.ram) {}

    // Fills the catalog. Nobody else has the store yet.
    status recover();

private:
    using incomplete_checkpoints = std::map<uint32_t, std::pair<dir_entry, checkpoint_record>>; // by number
    using learn_head = std::function<status(const std::vector<uint8_t> & head, uint64_t file_size)>;

    status scan_name_space(const key & name_space) REQUIRES(rooms.files.writing);
    bool   scan_known_folder(const key & name_space, const dir_entry & entry) REQUIRES(rooms.files.writing);
    void   scan_objects(const key & name_space, const std::string & folder, bool are_pages) REQUIRES(rooms.files.writing);
    void   scan_segment(const key & name_space, const std::string & folder, const dir_entry & entry)
        REQUIRES(rooms.files.writing);
    void   scan_anchor(const key & name_space, const std::string & folder, const dir_entry & entry)
        REQUIRES(rooms.files.writing);
    void   scan_conversation(const conversation_id & id) REQUIRES(rooms.files.writing);
    void   scan_checkpoint(conversation & c, const std::string & folder, const dir_entry & entry,
                           incomplete_checkpoints & incomplete) REQUIRES(rooms.files.writing);
    void   keep_shorter(conversation & c, const std::string & folder, checkpoint_record & record) REQUIRES(rooms.files.writing);
    void   scan_uses(conversation & c, const std::string & folder, const dir_entry & entry) REQUIRES(rooms.files.writing);
    bool   scan_file(const std::string & folder, const dir_entry & entry, uint16_t kind, const learn_head & learn)
        REQUIRES(rooms.files.writing);
    void   join_ages();

    status list_finished(const std::string & folder, std::vector<dir_entry> & out) REQUIRES(rooms.files.writing);
    void   remove_unfinished(const std::string & folder, const dir_entry & entry) REQUIRES(rooms.files.writing);
    void   refuse(const std::string & folder, const dir_entry & entry, const status & why) REQUIRES(rooms.files.writing);
    bool   is_own(const file_header & header, const key & name_space) const;

    store_rooms &                         rooms;
    object_graph                          found;
    std::vector<std::shared_ptr<segment>> segments;
    std::vector<std::shared_ptr<anchor>>  anchors;
    std::vector<conversation_id>          conversations;
    std::unordered_set<uint64_t>          ids; // of the segments
    std::map<std::string, std::vector<std::string>> unread; // by folder: its files that could not be read; none: it could not be
};

} // namespace kvtier

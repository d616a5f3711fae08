// Saving: runs, then anchors, then the checkpoint that names them, each durable before the next begins.
//
// The catalog learns of an object only after its file is safe, so that nobody can find what might not be there after a power
// cut. Thread safety: both functions may be called at any time; one at a time changes files.
#pragma once

#include "kvtier/store_rooms.h"

#include <string>
#include <vector>

namespace kvtier {

class saver {
public:
    explicit saver(store_rooms & rooms) : rooms(rooms) {}

    // n_tokens: of the request's, so many are stored; the day's write budget may have cut it.
    status save(const save_request & request, size_t & n_tokens);

    // Writes when conversations were last used, where that has changed.
    void write_uses();

    status set_lifetime(const conversation_id & id, const lifetime_change & change);

private:
    status save_runs(const save_request & request, const key & name_space, lease & held) REQUIRES(rooms.files.writing);
    status save_anchors(const save_request & request, const key & name_space) REQUIRES(rooms.files.writing);
    status save_checkpoint(const save_request & request, const key & name_space) REQUIRES(rooms.files.writing);
    status write_checkpoint(const checkpoint_record & record, const std::vector<uint8_t> & bytes, bool is_new)
        REQUIRES(rooms.files.writing);
    status write_uses_of(const conversation_id & id, bool durable = false) REQUIRES(rooms.files.writing);

    save_request affordable(const save_request & request) const;

    status save_within_budget(const save_request & request) REQUIRES(rooms.files.writing);
    status save_held(const save_request & request, const key & name_space) REQUIRES(rooms.files.writing);
    status make_folders(const key & name_space) REQUIRES(rooms.files.writing);
    status make_folder(const std::string & parent, const std::string & name) REQUIRES(rooms.files.writing);
    status write_file(const std::string & folder, const std::string & name, const std::vector<const_span> & parts,
                      bool durable = true) REQUIRES(rooms.files.writing);

    file_header header(const save_request & request, const key & name_space, uint32_t flags) const;

    store_rooms & rooms;
};

} // namespace kvtier

// What was used last is in RAM again before somebody asks for it: a restart should feel like none. So is what somebody names.
#include "kvtier/loading.h"
#include "kvtier/store_rooms.h"

#include <chrono>

namespace kvtier {

// Whoever says that it is over waits so long at most for the disk to be free.
static constexpr std::chrono::milliseconds patience{ 5 };

void store::read_ahead(const std::atomic<bool> & over) {
    const uint64_t most = rooms->ram.budget() / 2; // The other half is for what comes.
    for (const conversation_id & id : rooms->known.by_last_use()) {
        match m = rooms->known.next_restore(id, SIZE_MAX);
        for (; m.n_tokens > 0; m = rooms->known.next_restore(id, m.n_tokens)) {
            if (m.bytes_disk == 0 || rooms->ram.bytes() + m.bytes_disk > most) {
                continue; // It is there already, or a smaller one may fit.
            }
            std::unique_ptr<loading> reading; // It ends before the match that it reads.
            if (over || !begin_loading(*rooms, m, reading_for::nobody_yet, reading).is_ok()) {
                return;
            }
            while (!over && !reading->wait_at_most(patience)) {
            }
        }
    }
}

status store::warm(const key & name_space, uint64_t hash, uint64_t & bytes_read) {
    for (;;) {
        const match m = rooms->known.next_restore({ name_space, hash }, SIZE_MAX);
        bytes_read    = m.bytes_disk;
        if (m.n_tokens == 0) {
            return status::miss("no conversation " + hex(hash));
        }
        if (m.bytes_disk == 0) {
            return status::ok();
        }
        std::unique_ptr<loading> reading; // It ends before the match that it reads.
        const status begun = begin_loading(*rooms, m, reading_for::nobody_yet, reading);
        const status read  = begun.is_ok() ? reading->wait() : begun;
        const match  left  = rooms->known.next_restore({ name_space, hash }, SIZE_MAX);
        if (read.is_ok() || left.n_tokens == m.n_tokens) {
            return read;
        }
        // A file of it was lost, and is forgotten by now: what is left of the conversation is read instead.
    }
}

} // namespace kvtier

// The inside of a store: its rooms, each of which owns what it holds, shared by store*.cpp and by nobody else.
//
//   ledger        what is on disk, in bytes, against the budget      its own lock
//   catalog       what is stored, in memory                          its own lock
//   object_files  the files                                          `writing`, and one for what readers leave to it
//   evictor       gives room to others, over the three               none
//   ram_tier      pages and anchors in RAM                           its own lock
//
// Locks are taken in this order: object_files::writing, the catalog's, those of the RAM tier and the ledger, the budget's. All
// but `writing` are held for moments only, never across a file operation.
#pragma once

#include "kvtier/catalog.h"
#include "kvtier/evictor.h"
#include "kvtier/ledger.h"
#include "kvtier/object_files.h"
#include "kvtier/ram_tier.h"
#include "kvtier/store.h"

#include <memory>
#include <set>

namespace kvtier {

struct store_rooms {
    store_rooms(env & e, const store_options & o)
        : e(e), options(o), layout(o.root_dir, o.fingerprint), ram(o.ram_bytes, o.windows),
          bytes(o.budget != nullptr ? o.budget : std::make_shared<disk_budget>(o.max_bytes), hex(o.fingerprint)),
          known(options, layout, ram, count), files(e, layout, bytes, count, o.inspect),
          room(*this) {}

    env &                      e;
    std::unique_ptr<file_lock> lock; // of the model's folder; it is given back last
    const store_options        options;
    const file_layout          layout;
    counters                   count;
    ram_tier                   ram;
    ledger                     bytes;
    catalog                    known;
    object_files               files;
    evictor                    room;
    std::set<uint64_t>         untrimmed GUARDED_BY(files.writing); // segments with words of conversations that were removed
};

// Making room: what is worth least goes, of all stores that share the budget. It evicts until so many bytes fit, or not at
// all: when other files alone take too much, throwing away what is stored would help nobody.
bool free_room(store_rooms & rooms, uint64_t n_bytes) REQUIRES(rooms.files.writing);
bool make_room(store_rooms & rooms, uint64_t n_bytes, reservation & out) REQUIRES(rooms.files.writing); // and reserves them

// Removes what exceeds the limits of a name space. changed: the only conversation that may have grown; null: any.
void apply_limits(store_rooms & rooms, const key & name_space, const conversation_id * changed) REQUIRES(rooms.files.writing);

// Counts what other models take now. Where so many bytes do not fit and the others take too much, the longest unused ones go.
void count_other_models(store_rooms & rooms, uint64_t n_bytes);

} // namespace kvtier

// What the store did, in numbers. Everything that was dropped, skipped or refused is in here: a cache that fails
// quietly looks like one that works.
//
// Thread safety: counting is atomic; a snapshot is not a single instant, which is good enough for statistics.
#pragma once

#include "kvtier/status.h"

#include <array>
#include <atomic>
#include <cstdint>

namespace kvtier {

// This is the single list of counters, each with its meaning.
#define KVTIER_COUNTERS(X)                                                              \
    X(lookups,             "searches for a stored prefix")                              \
    X(hits,                "of them with at least one token found")                     \
    X(tokens_found,        "tokens found by searches")                                  \
    X(loads,               "restores read and verified")                                \
    X(load_failures,       "restores given up")                                         \
    X(bytes_read,          "bytes read from disk for restores")                         \
    X(bytes_from_ram,      "bytes of restores found in RAM")                            \
    X(bytes_read_ahead,    "bytes read into RAM before anybody asked for them")         \
    X(saves,               "save requests written")                                     \
    X(runs_written,        "pages and parts of pages written")                          \
    X(runs_shared,         "pages of a save that were stored already")                  \
    X(anchors_written,     "anchors written")                                           \
    X(anchors_superseded,  "anchors never written, because another turn followed")      \
    X(checkpoints_written, "checkpoints written")                                       \
    X(bytes_written,       "bytes written to disk, all files")                          \
    X(payload_written,     "of them state")                                             \
    X(syncs,               "fsync calls")                                               \
    X(skipped_queue_full,  "saves skipped because the writer was behind")               \
    X(skipped_budget,      "saves skipped because nothing could be evicted for them")   \
    X(skipped_no_space,    "saves skipped because the disk is full")                    \
    X(skipped_exhausted,   "saves skipped because memory or file handles ran out")      \
    X(skipped_io_error,    "saves skipped because the disk failed or is read-only")     \
    X(skipped_parent,      "saves skipped because what they continue was evicted")      \
    X(evicted_segments,    "segments removed to make room")                             \
    X(evicted_anchors,     "anchors removed to make room")                              \
    X(evicted_bytes,       "bytes removed to make room")                                \
    X(thinned_anchors,     "anchors removed because their conversation has enough")     \
    X(retired_checkpoints, "checkpoints removed by the limits per conversation")        \
    X(retired_conversations, "conversations removed by their limit")                    \
    X(expired_conversations, "conversations removed because nobody used them for so long") \
    X(temporary_removed,   "unfinished files found and removed")                        \
    X(loose_segments,      "segments found whose past is missing")                      \
    X(read_errors,         "reads that the disk refused")

struct counter_values {
#define KVTIER_FIELD(name, meaning) uint64_t name = 0;
    KVTIER_COUNTERS(KVTIER_FIELD)
#undef KVTIER_FIELD
    std::array<uint64_t, static_cast<size_t>(damage::n_kinds)> damaged{}; // files set aside, by reason

    uint64_t damaged_total() const {
        uint64_t n = 0;
        for (uint64_t d : damaged) {
            n += d;
        }
        return n;
    }
};

struct counters {
#define KVTIER_FIELD(name, meaning) std::atomic<uint64_t> name{ 0 };
    KVTIER_COUNTERS(KVTIER_FIELD)
#undef KVTIER_FIELD
    std::array<std::atomic<uint64_t>, static_cast<size_t>(damage::n_kinds)> damaged{};

    void count_damage(damage reason) { damaged[static_cast<size_t>(reason)]++; }

    counter_values snapshot() const {
        counter_values out;
#define KVTIER_FIELD(name, meaning) out.name = name.load();
        KVTIER_COUNTERS(KVTIER_FIELD)
#undef KVTIER_FIELD
        for (size_t i = 0; i < damaged.size(); i++) {
            out.damaged[i] = damaged[i].load();
        }
        return out;
    }
};

} // namespace kvtier

// What to keep, demote, thin out, restore or recompute: pure functions over facts.
//
// Nothing here reads a clock or a file, so every decision can be tested as a table, and shown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvtier {

enum class tier : uint8_t { hot, warm, cold };

const char * tier_name(tier t);

struct tier_windows {
    uint32_t hot  = 2; // turns
    uint32_t warm = 4;
};

// idle_turns counts the turns of the name space since the last use; 0 means that it was used in the current one.
tier tier_of(uint64_t idle_turns, bool in_ram, const tier_windows & windows);

// This is known of an object that could be evicted.
struct object_facts {
    uint64_t bytes           = 0;
    int64_t  age_ms          = 0; // since the last use
    uint64_t idle_turns      = 0;
    uint64_t hits            = 0;
    uint32_t n_conversations = 0; // that need it
    bool     static_prefix   = false;
    bool     being_served    = false; // lies on the path of the prompt now in hand
    bool     lapsed          = false; // only conversations need it whose ttl has passed
};

// What scores higher is kept longer. Objects that several conversations share, static prefixes and what the current prompt needs
// form a class above everything else, whatever the rest says, and what has lapsed one below; within a class, recent,
// often hit and small ones win.
double keep_score(const object_facts & facts);

struct anchor_facts {
    uint32_t n_tokens      = 0;
    bool     static_prefix = false;
};

// Says which anchors of one conversation to drop so that max_anchors stay, as indices into `anchors` (ascending by
// n_tokens). The static-prefix one and the newest two stay; the rest is thinned so that gaps grow with age.
std::vector<size_t> thin_anchors(const std::vector<anchor_facts> & anchors, size_t max_anchors);

struct restore_facts {
    uint64_t bytes_ram        = 0;
    uint64_t bytes_disk       = 0;
    size_t   n_tokens         = 0; // that need not be evaluated after a restore
    double   ram_bytes_per_s  = 0; // measured; 0 = unknown
    double   disk_bytes_per_s = 0;
    double   tokens_per_s     = 0; // of prompt evaluation
};

struct restore_decision {
    bool   restore    = false;
    double restore_ms = 0; // estimates; 0 = unknown
    double eval_ms    = 0;
};

// It chooses the faster of the two. What is unknown is taken to be fast enough: the first restore is how it gets measured.
restore_decision restore_or_recompute(const restore_facts & facts);

} // namespace kvtier

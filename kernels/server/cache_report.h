// What the cache did for one request, as its answer says it. Small: upstream copies it into every partial result.
#pragma once

#include "json.h"

#include <cstdint>

namespace llama_run {

class cache_ticket; // state that travels with a request: cache/cache_ticket.h
class state_cache;  // state_cache.h

enum class cache_source : uint8_t {
    none,
    slot,
    hot,
    warm,
    cold,
    shared_folder, // at least a part of it
    n_kinds,
};
enum class cache_match  : uint8_t {
    none,
    slot,
    conversation,
    prefix,
    shared, // evaluated for another request, which has it still
};

// Why tokens of a prompt had to be evaluated.
enum class cache_miss : uint8_t {
    none,
    new_tokens,        // the prompt goes on where everything known ends
    parted,            // it departs from what is known
    nothing_stored,    // no prompt that begins like this is known
    other_fingerprint, // it is known for this model with other settings, or for another model
    no_anchor,         // more is in common, but the model can only go back to where an anchor is
    recompute_faster,  // reading it would take longer than evaluating it
    corrupt,           // a file was damaged and has been set aside
    io_error,          // the disk refused
    no_room,           // the context had no room for it, or refused it
    off,               // the request says cache_prompt: false, or is of a kind that is not stored
    media,             // images and audio are not stored
    n_kinds,
};

const char * cache_source_name(cache_source s);
const char * cache_match_name(cache_match m);
const char * cache_miss_name(cache_miss m);

// What was left out of a request's messages, because they no longer fit.
struct context_dropped {
    uint32_t n_messages = 0;
    uint32_t n_tokens   = 0;
};

struct cache_report {
    bool         shown  = false; // the cache is on
    cache_source source = cache_source::none;
    cache_match  match  = cache_match::none;
    cache_miss   miss   = cache_miss::none;
    uint32_t     at     = 0;     // where the prompts part
    float        restore_ms = 0; // reading, verifying and copying into the context
    float        waited_ms  = 0; // for another request that evaluated the beginning
    uint8_t      stable = 0;     // what of the prompt was made stable: bits of stable_prompts.h
    context_dropped dropped;     // with or without the cache

    // Tokens that nobody restored were in the slot.
    cache_source source_of(uint64_t n_cached) const {
        return n_cached == 0 ? cache_source::none : source == cache_source::none ? cache_source::slot : source;
    }

    int32_t      window_from = -1; // where the window of what was restored begins

    // Whether the window has what the next token looks at: it has lost nothing of its sequence yet, or is as it was restored. Upstream
    // wants one row more than that, takes a prompt without it for one that lacks what it needs, and evaluates it again. That row may have
    // come along, and gone since: upstream gives cells that no token looks at any more to other sequences.
    bool is_whole(int32_t pos_min) const {
        return shown && (pos_min == 0 || (window_from >= 0 && (pos_min == window_from || pos_min == window_from + 1)));
    }

    // Adds its fields to upstream's timings. n_cached, n_evaluated: tokens of the prompt.
    void add_to(common_json & timings, uint64_t n_cached, uint64_t n_evaluated) const;
};

} // namespace llama_run

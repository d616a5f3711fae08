#include "server/cache_report.h"

#include "server/stable_prompts.h"

namespace llama_run {

const char * cache_source_name(cache_source s) {
    switch (s) {
        case cache_source::none: return "none";
        case cache_source::slot: return "slot";
        case cache_source::hot:  return "hot";
        case cache_source::warm: return "warm";
        case cache_source::cold: return "cold";
        case cache_source::shared_folder: return "shared_folder";
        case cache_source::n_kinds:       break;
    }
    return "unknown";
}

const char * cache_match_name(cache_match m) {
    switch (m) {
        case cache_match::none:         return "none";
        case cache_match::slot:         return "slot";
        case cache_match::conversation: return "conversation";
        case cache_match::prefix:       return "prefix";
        case cache_match::shared:       return "shared";
    }
    return "unknown";
}

const char * cache_miss_name(cache_miss m) {
    switch (m) {
        case cache_miss::none:              return "none";
        case cache_miss::new_tokens:        return "new_tokens";
        case cache_miss::parted:            return "parted";
        case cache_miss::nothing_stored:    return "nothing_stored";
        case cache_miss::other_fingerprint: return "other_fingerprint";
        case cache_miss::no_anchor:         return "no_anchor";
        case cache_miss::recompute_faster:  return "recompute_faster";
        case cache_miss::corrupt:           return "corrupt";
        case cache_miss::io_error:          return "io_error";
        case cache_miss::no_room:           return "no_room";
        case cache_miss::off:               return "off";
        case cache_miss::media:             return "media";
        case cache_miss::n_kinds:           break;
    }
    return "unknown";
}

void cache_report::add_to(common_json & timings, uint64_t n_cached, uint64_t n_evaluated) const {
    if (dropped.n_messages > 0) {
        timings["context_dropped"] = common_json{ { "messages", dropped.n_messages }, { "tokens", dropped.n_tokens } };
    }
    if (!shown) {
        return;
    }
    const cache_source from = source_of(n_cached);
    timings["cache_source"] = cache_source_name(from);
    const bool in_own_slot = from == cache_source::slot && match != cache_match::shared;
    timings["cache_match"]  = cache_match_name(from == cache_source::none ? cache_match::none : in_own_slot ? cache_match::slot : match);
    timings["restore_ms"]   = restore_ms;
    if (waited_ms > 0) {
        timings["shared_wait_ms"] = waited_ms;
    }
    if (stable != 0) {
        timings["stable_prompt"] = stable_names(stable);
    }
    // The last token of a prompt is always evaluated: its logits are the answer's beginning.
    if (miss != cache_miss::none && n_evaluated > 1) {
        timings["cache_miss"] = common_json{ { "reason", cache_miss_name(miss) }, { "at", at } };
    }
}

} // namespace llama_run

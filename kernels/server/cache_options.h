// What the --cache-ssd flags say. Part of upstream's common_params, so that they travel with the rest of the settings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llama_run {

struct shared_folder_options {
    std::string path;                 // empty: there is none
    uint64_t    max_bytes    = 0;     // in it; 0: a fifth of the free space, at most 64 GiB
    double      timeout_s    = 5;     // of a call on it
    bool        users        = false; // named ones share, too
    bool        all_backends = false; // state is used that other kinds of backend have computed
};

struct cache_options {
    std::string path;                      // empty: no SSD cache, the server is upstream's
    uint32_t    page_size         = 256;   // tokens
    uint32_t    max_checkpoints   = 64;    // per conversation
    uint32_t    hot_window        = 2;     // turns
    uint32_t    warm_window       = 64;    // of a user: agents take turns
    uint32_t    max_cold          = 32;    // cold checkpoints per conversation
    uint32_t    max_conversations = 256;
    uint64_t    max_bytes         = 0;     // on disk; 0: a fifth of the free space, at most 64 GiB
    uint64_t    write_bytes_per_day = 0;   // to disk; 0: no limit
    double      settle_seconds    = 5;     // that a conversation rests before its folded state is written
    uint64_t    ram_bytes         = 0;     // hot and warm; 0: an eighth of the machine's
    bool        read_ahead        = true;  // what was used last, into RAM after the start
    uint32_t    expire_days       = 0;     // without use, until a conversation is removed; 0: never
    uint32_t    sweep_seconds     = 300;   // between two looks for such conversations
    uint32_t    max_concurrent_per_user = 0; // requests; 0: no limit
    int32_t     max_queue         = -1;    // requests that wait for a slot; -1: no limit
    double      queue_timeout_s   = 0;     // how long they may; 0: for ever
    std::string warm_file;                 // bodies that are prepared at the start, one per line
    std::string user_header;               // names the user; empty: bodies do
    bool        metadata_users    = true;  // metadata.user_id of the Anthropic API separates
    bool        stable_prompts    = true;  // see stable_prompts.h
    bool        stable_tools      = false;
    bool        evict             = false; // old messages leave a history that no longer fits: overflow/
    std::string spool;                     // where they go; empty: nowhere
    shared_folder_options    shared;        // a folder that servers share
    std::vector<std::string> allowed_hosts; // names under which the server is reached, beside those it listens on
};

} // namespace llama_run

// What the cache says about itself, and what people ask of it: JSON for the routes, text for /metrics, flush and removals.
//
// Thread safety: all functions may be called from any thread, but flush and the removals not from the inference thread: they wait
// for it.
#pragma once

#include "server/cache/cache_stores.h"
#include "server/cache/prompt_reader.h"
#include "server/cache/reading_ahead.h"
#include "server/cache/removal.h"
#include "server/cache/request_log.h"
#include "server/cache/request_totals.h"
#include "server/cache/slot_board.h"
#include "server/cache/speeds.h"
#include "server/cache/waited.h"
#include "server/live/day_totals.h"

#include "server-queue.h"

#include <cstdint>
#include <functional>
#include <string>

namespace llama_run {

class cache_admin {
public:
    cache_admin(cache_stores & stores, slot_board & board, prompt_reader & reader, server_queue & queue, const speeds & measured_speeds,
                const waited & times, reading_ahead & ahead, bool metadata_users) :
        stores(stores), board(board), reader(reader), queue(queue), measured_speeds(measured_speeds), times(times), ahead(ahead),
        metadata_users(metadata_users),
        days(kvtier::posix_env(), days_path(stores), [&stores] { return bytes_so_far(stores); }) {}

    request_totals totals;   // of finished requests
    request_log    finished; // the last of them

    common_json describe() const;
    common_json describe_user(const std::string & user) const;
    common_json conversations(const std::string & user) const;
    std::string metrics() const;

    // What was answered before the call is on disk afterwards, and in the shared folder, if that does not take too long.
    void flush();

    // Removals say what is still on a disk that refused. Miss: there is no such conversation.
    kvtier::status remove_conversation(const std::string & user, uint64_t hash, removal_result & out);
    kvtier::status remove_user(const std::string & user, removal_result & out);

    // What concerns all users at once. collect: removes what nothing can use, but for what has expired. verify: reads every byte.
    bool        is_owner(const std::string & key) const;
    common_json all_conversations() const;
    kvtier::status remove_everything(removal_result & out);
    kvtier::status collect(uint64_t & bytes_freed);
    kvtier::status verify(const std::function<bool()> & is_over, common_json & out);

    // Removes what has expired, as if somebody had asked for it.
    std::vector<kvtier::conversation_id> sweep(); // those that are gone

    // Called with what somebody has asked to remove, before the stores do. Set once, before anybody asks.
    std::function<void(const removal & what)> on_removal = [](const removal &) {};

    // Says how long a conversation is kept, and gives it as it is listed then. Miss: there is none.
    kvtier::status keep(const std::string & user, uint64_t hash, const kvtier::lifetime_change & change, common_json & out);

    // Reads what a conversation would be restored from into RAM. Miss: there is none.
    kvtier::status warm(const std::string & user, uint64_t hash, common_json & out);

    common_json saved(const std::string & user); // by the cache, day by day; the empty user: everybody together
    common_json disk() const;                    // where the bytes on disk are

private:
    static std::string       days_path(const cache_stores & stores);
    static day_totals::bytes bytes_so_far(const cache_stores & stores);

    common_json conversation(const std::string & user, uint64_t hash) const; // as it is listed
    void     forget(const removal & what);
    void     write_all();
    kvtier::status remove_name_space(const kvtier::key & name_space, removal_result & out);
    kvtier::status remove(const removal & what, const std::function<kvtier::status(kvtier::store &, uint64_t &)> & from,
                          removal_result & out);

    cache_stores &  stores;
    slot_board &    board;
    prompt_reader & reader;
    server_queue &  queue;
    const speeds &  measured_speeds;
    const waited &  times;
    reading_ahead & ahead;
    const bool      metadata_users; // whether metadata.user_id tells users apart

public:
    day_totals days; // of finished requests, over restarts; it asks the stores until it is closed
};

} // namespace llama_run

// Conversations that are handed to another server, or come from one. kvtier/handover.h has the stream; here is who holds it
// between requests.
//
// A stream that comes is cut into bodies of any size, one request each. Its intake waits here for the next one; when the server
// restarts or the sender stays away, the part that was under way is lost, and what came before it is stored.
//
// Thread safety: all functions may be called from any thread, but not from the inference thread: they wait for it.
#pragma once

#include "server/answers.h"
#include "server/cache/cache_admin.h"
#include "server/cache/cache_stores.h"

#include "kvtier/handover.h"
#include "kvtier/thread_annotations.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace llama_run {

// An answer to bytes, or to a question for some, that are not those of this place in a stream: go on from that one.
server_http_res_ptr wrong_offset(uint64_t offset, const std::string & message);

class handover_desk {
public:
    handover_desk(cache_stores & stores, cache_admin & admin) : stores(stores), admin(admin) {}

    // A conversation as it was when everything answered so far was on disk.
    kvtier::status open(const std::string & user, uint64_t hash, std::unique_ptr<kvtier::handover_source> & out);

    // The bytes of a stream from this offset on. id: which stream, where it is not its beginning.
    server_http_res_ptr take(const std::string & user, uint64_t hash, uint64_t offset, uint64_t id, const std::string & bytes);

private:
    using clock = std::chrono::steady_clock;

    struct arrival {
        std::unique_ptr<kvtier::handover_intake> intake; // null: a request works on it
        clock::time_point                        last_heard;
    };

    // What a request works on; it goes back when this does. Null: it is over.
    struct work {
        handover_desk &                          desk;
        const kvtier::conversation_id            id;
        std::unique_ptr<kvtier::handover_intake> intake;

        ~work() { desk.put_back(id, std::move(intake)); }
    };

    server_http_res_ptr begin(const std::string & user, uint64_t hash, const std::string & bytes);
    server_http_res_ptr go_on(const kvtier::conversation_id & id, uint64_t offset, uint64_t stream, const std::string & bytes);
    server_http_res_ptr feed(work & on, const char * bytes, size_t size) const;

    bool                                     make_place(const kvtier::conversation_id & id);
    std::unique_ptr<kvtier::handover_intake> fetch(const kvtier::conversation_id & id);
    void put_back(const kvtier::conversation_id & id, std::unique_ptr<kvtier::handover_intake> intake);

    cache_stores & stores;
    cache_admin &  admin;

    kvtier::mutex                              mu;
    std::map<kvtier::conversation_id, arrival> arrivals GUARDED_BY(mu);
};

} // namespace llama_run

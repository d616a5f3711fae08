// Conversations that are handed to another server, or come from one. kvtier/handover.h has the stream; here is who holds it
// between requests.
//
// A stream that comes is cut into bodies of any size, one request each. Its intake waits in arrivals.h for the next one; when the
// server restarts or the sender stays away, the part that was under way is lost, and what came before it is stored.
//
// Thread safety: all functions may be called from any thread, but not from the inference thread: they wait for it.
#pragma once

#include "server/answers.h"
#include "server/cache/cache_admin.h"
#include "server/cache/cache_stores.h"
#include "server/cache/removal.h"
#include "server/handover/arrivals.h"

#include "kvtier/handover.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace llama_run {

// An answer to bytes, or to a question for some, that are not those of this place in a stream: go on from that one.
server_http_res_ptr wrong_offset(uint64_t offset, const std::string & message);

// An answer where too many conversations are on their way: ask again in a while.
server_http_res_ptr busy();

class handover_desk {
public:
    handover_desk(cache_stores & stores, cache_admin & admin) : stores(stores), admin(admin) {}

    // A place among those that are sent, which each hold a part of their stream and keep all of it from eviction. Null: there is
    // none. The desk must outlive it.
    std::shared_ptr<void> begin_sending();

    // A conversation as it was when everything answered so far was on disk.
    kvtier::status open(const std::string & user, uint64_t hash, std::unique_ptr<kvtier::handover_source> & out);

    // The bytes of a stream from this offset on. id: which stream, where it is not its beginning.
    server_http_res_ptr take(const std::string & user, uint64_t hash, uint64_t offset, uint64_t id, const std::string & bytes);

    // Conversations that somebody removes do not arrive.
    void remove(const removal & what);

    // Gives up those whose senders are silent.
    void forget_silent() { coming.forget_silent(); }

private:
    server_http_res_ptr begin(const std::string & user, uint64_t hash, const std::string & bytes);
    server_http_res_ptr go_on(const kvtier::conversation_id & id, uint64_t offset, uint64_t stream, const std::string & bytes);
    server_http_res_ptr feed(arrivals::work & on, const char * bytes, size_t size) const;

    cache_stores & stores;
    cache_admin &  admin;

    arrivals         coming;
    std::atomic<int> n_sent{ 0 }; // at the moment
};

} // namespace llama_run

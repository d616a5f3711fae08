// Finds what is stored of a prompt and reads it, before the request has a slot or while it waits for one.
//
// Most reading is done by the HTTP worker that has the request. Where only the chosen slot shows that there is something to
// read, the request is put off: its task goes back to the line, the reader's thread reads for it, and then offers the whole
// line again. cache_ticket.h says whose a ticket is at each moment.
//
// Thread safety: expect, arrive and remove may be called from any thread; note_reads, prepare and deferred belong to the inference
// thread; stop to whoever closes the cache.
#pragma once

#include "server/cache/cache_stores.h"
#include "server/cache/cache_ticket.h"
#include "server/cache/fetch_line.h"
#include "server/cache/removal.h"
#include "server/cache/speeds.h"

#include "kvtier/thread_annotations.h"

#include "server-queue.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

namespace llama_run {

class prompt_reader {
public:
    prompt_reader(cache_stores & stores, speeds & measured, server_queue & queue);
    ~prompt_reader() { stop(); }

    // Ends the thread. Requests that were put off stay where they are.
    void stop();

    // Removals find the request from now on, wherever it waits.
    void expect(const std::shared_ptr<cache_ticket> & ticket);

    // Looks the prompt up and reads what is worth it. n_in_slot: tokens that an idle slot could give.
    void arrive(cache_ticket & ticket, size_t n_in_slot);

    // A request has come up in the line, and it is about to be seen whether it is still being read for.
    void note_reads() { n_seen = n_done; }

    // True: all is read that is worth it, the request may begin in the slot that gives n_in_slot tokens. False: the request is put
    // off until the reader's thread offers it again.
    bool prepare(const std::shared_ptr<cache_ticket> & ticket, size_t n_in_slot);

    // How many tokens of the prompt are stored by now, or about to be.
    size_t n_stored(const cache_ticket & ticket) const;

    // The request that was put off is in the line by now: the read may have been faster than that.
    void deferred();

    // Requests that wait restore nothing of it and leave nothing behind.
    void remove(const removal & what);

private:
    enum class verdict { nothing_more, recompute, read };

    // A server with one of these does not fall asleep: the reader offers the request again, which takes the queue.
    struct pending_read {
        std::shared_ptr<cache_ticket> ticket;
        std::shared_ptr<void>         awake;
    };

    void    look(cache_ticket & ticket) const;
    void    fetch(cache_ticket & ticket, size_t n_in_slot);
    verdict judge(const cache_ticket & ticket, size_t n_in_slot) const;
    bool    is_slower(kvtier::restore_facts facts) const;
    bool    reserve(cache_ticket & ticket, bool always);
    void    read(cache_ticket & ticket);
    bool    read_part(sequence_store & from, stored_part & part, cache_ticket & ticket);
    void    run();

    cache_stores &          stores;
    speeds &                measured;
    server_queue &          queue;
    const held_bytes::total in_flight = std::make_shared<std::atomic<uint64_t>>(0);

    fetch_line fetching;

    kvtier::mutex                            waiting_mu;
    std::vector<std::weak_ptr<cache_ticket>> waiting GUARDED_BY(waiting_mu); // tickets of requests that have no slot yet

    kvtier::mutex            mu;
    kvtier::condition        changed;
    std::deque<pending_read> reads GUARDED_BY(mu);
    bool                     stopping GUARDED_BY(mu) = false;
    std::atomic<uint64_t>    n_done{ 0 }; // reads
    uint64_t                 n_seen = 0;  // of them, by note_reads and deferred; inference thread only
    std::thread              thread;
};

} // namespace llama_run

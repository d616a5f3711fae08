// Requests from their arrival to the end of their answers: who waits, who is served, and how long that will last.
//
// It limits how many may wait (--max-queue) and for how long (--queue-timeout), compares what was predicted for each with what
// happened, and tells those that only use idle time (warming) when there is some.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "server/plan/forecast.h"

#include "kvtier/thread_annotations.h"

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace llama_run {

// Milliseconds from a request's arrival; below 0: not known.
struct request_times {
    double planned_ms = -1; // to its first token, as it was predicted
    double first_ms   = -1; // to its first token
    double queue_ms   = -1; // until its prompt was evaluated or read from the cache: without the time that restoring took
};

class request_line {
public:
    using clock = std::chrono::steady_clock;

    explicit request_line(forecaster & speeds) : speeds(speeds) {}

    // A request that was let in, for as long as it is under way.
    class place {
    public:
        place(request_line & line, std::chrono::milliseconds timeout) : line(line), timeout(timeout) {}
        ~place() { line.leave(*this); }

        place(const place &) = delete;
        place & operator=(const place &) = delete;

    private:
        friend class request_line;

        request_line &                  line;
        const clock::time_point         entered = clock::now();
        const std::chrono::milliseconds timeout; // how long its tasks may wait for a slot; 0: for ever
        std::vector<int>                tasks;   // that may still wait
        bool                            begun = false; // one of them has a slot: the request is being served
    };

    void open(size_t n_slots);

    // Null: as many wait as may. cells_are_short: slots that are free do not help.
    std::shared_ptr<place> enter(std::optional<size_t> max_waiting, std::chrono::milliseconds timeout, bool cells_are_short);

    // Its task is complete and goes to the queue.
    void arrived(place & of, int id_task, const prompt_facts & prompt, const forecast & said);

    // It has a slot; then what is stored of it has been restored, which may be told more than once.
    void placed(int id_task, int id_slot);

    // One of its further answers has a slot, too.
    void placed_further(int id_slot);
    void began(int id_slot, double restore_ms);

    // n_reused: tokens of its prompt that were not evaluated in the end.
    void first_token(int id_slot, size_t n_reused);
    void released(int id_slot);

    // What was said of the request in a slot, and what happened.
    request_times times_of(int id_slot) const;

    // How long a request that comes now would wait for a slot.
    double wait_ms() const;

    size_t n_waiting() const; // requests without a slot
    size_t n_served() const;  // slots that are busy

    // Waits until nobody is under way; false when `stop` says so first, which is asked once a second.
    bool wait_until_idle(const std::function<bool()> & stop);
    bool is_idle() const;

private:
    struct request {
        int               id_task = -1;
        place *           of      = nullptr; // while it waits
        prompt_facts      prompt;
        forecast          said;
        clock::time_point arrived;
        clock::time_point placed;
        clock::time_point began; // What was found for it is in the slot, and its prompt is evaluated.
        double            restore_ms = 0;
        bool              begun     = false;
        bool              alone     = true;
        bool              answering = false;
        bool              further   = false; // another answer to the prompt of one that is served
        double            first_ms  = -1;    // from its arrival to its first token
    };

    void   leave(const place & gone);
    size_t waiting_now() const REQUIRES(mu);

    forecaster &           speeds;
    mutable kvtier::mutex  mu;
    kvtier::condition      changed;
    size_t                 n_slots GUARDED_BY(mu)     = 1;
    size_t                 n_under_way GUARDED_BY(mu) = 0; // requests that were let in
    size_t                 n_begun GUARDED_BY(mu)     = 0; // of them with a slot, or done with it
    std::map<int, request> waiting GUARDED_BY(mu);         // by task
    std::map<int, request> served GUARDED_BY(mu);          // by slot
};

} // namespace llama_run

// Conversations that come from another server, between the requests that bring their bytes.
//
// Each holds at most one part of its stream in memory. One whose sender was not heard of for a while is given up, and one that
// somebody removes here ends: its sender is told as often as he asks, for an answer may get lost, and does not bring
// back what was removed.
//
// Thread safety: all functions may be called from any thread; a work belongs to one. It must outlive all works.
#pragma once

#include "kvtier/handover.h"
#include "kvtier/keys.h"
#include "kvtier/thread_annotations.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>

namespace llama_run {

class arrivals {
public:
    using clock = std::chrono::steady_clock;

    static constexpr int  max_at_once = 4;
    static constexpr auto patience    = std::chrono::minutes(10);

    // What a request works on; it goes back when this does. A null intake: it is over.
    struct work {
        work(arrivals & all, const kvtier::conversation_id & id, std::unique_ptr<kvtier::handover_intake> intake,
             std::shared_ptr<const std::atomic<bool>> is_removed)
            : id(id), intake(std::move(intake)), is_removed(std::move(is_removed)), all(all) {}
        ~work() { all.put_back(*this); }
        work(const work &) = delete;
        work & operator=(const work &) = delete;

        const kvtier::conversation_id                  id;
        std::unique_ptr<kvtier::handover_intake>       intake;
        const std::shared_ptr<const std::atomic<bool>> is_removed; // by somebody, meanwhile

    private:
        arrivals & all;
    };

    // Null: too many come at once, or a request works on this one.
    std::unique_ptr<work> begin(const kvtier::conversation_id & id, clock::time_point now = clock::now());

    // Null: it is not on its way, or a request works on it. It may have been removed.
    std::unique_ptr<work> go_on(const kvtier::conversation_id & id);

    // Whether a request works on it.
    bool is_worked_on(const kvtier::conversation_id & id);

    // Those that this says yes to end. When it returns nothing more of them is being stored.
    void remove(const std::function<bool(const kvtier::conversation_id & id)> & concerns);

    void forget_silent(clock::time_point now = clock::now());

private:
    struct arrival {
        std::unique_ptr<kvtier::handover_intake> intake;
        bool                                     is_busy = true; // A request works on it.
        std::shared_ptr<std::atomic<bool>>       is_removed = std::make_shared<std::atomic<bool>>(false);
        clock::time_point                        last_heard;
    };

    void put_back(work & done);
    void drop_silent(clock::time_point now) REQUIRES(mu);

    kvtier::mutex                              mu;
    kvtier::condition                          changed;
    std::map<kvtier::conversation_id, arrival> known GUARDED_BY(mu);
};

} // namespace llama_run

// What every slot is doing now, and who waits for one.
//
// The inference thread says what its slots do, after each batch; whoever asks gets a copy. A request that waits is in the line as
// long as somebody holds its place.
//
// Thread safety: all functions may be called from any thread. The lock is held for moments.
#pragma once

#include "kvtier/thread_annotations.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace llama_run {

enum class slot_phase : uint8_t { idle, restoring, evaluating, answering };

const char * slot_phase_name(slot_phase phase);

enum class wait_reason : uint8_t {
    slot,   // all are busy
    files,  // its state is being read
    prefix, // another request evaluates the same beginning
};

const char * wait_reason_name(wait_reason reason);

using watch_clock = std::chrono::steady_clock;

struct watched_slot {
    slot_phase              phase = slot_phase::idle;
    std::string             user;
    uint64_t                n_prompt    = 0; // tokens
    uint64_t                n_reused    = 0;
    uint64_t                n_evaluated = 0; // so far
    uint64_t                n_answered  = 0; // so far
    watch_clock::time_point since{};         // it is in this phase

    // Of evaluating or answering, tokens per second; 0 while nothing is known.
    double speed(watch_clock::time_point now) const;

    // Until the prompt is evaluated, in milliseconds; below 0: nothing is known.
    double ms_left(watch_clock::time_point now) const;
};

struct watched_request {
    std::string             user;
    uint64_t                n_prompt = 0;
    wait_reason             reason   = wait_reason::slot;
    watch_clock::time_point since{};
};

class slot_watch {
public:
    // A request's place in the line: it leaves when this is let go.
    class place {
    public:
        void waits_for(wait_reason what) { reason = what; }

    private:
        friend class slot_watch;

        std::string              user;
        uint64_t                 n_prompt = 0;
        watch_clock::time_point  since{};
        std::atomic<wait_reason> reason{ wait_reason::slot };
    };

    void open(size_t n_slots);

    std::shared_ptr<place> enter(const std::string & user, uint64_t n_prompt);

    void begin(int slot, const std::string & user, uint64_t n_prompt); // It restores, or looks for what to restore.

    // What it restores is there: n_reused tokens of its prompt. The first batch can take minutes.
    bool is_restoring(int slot) const;
    void restored(int slot, uint64_t n_reused);

    // After a batch. in_phase: how long it has been evaluating, or answering once n_answered is above 0.
    void advance(int slot, uint64_t n_reused, uint64_t n_evaluated, uint64_t n_answered, std::chrono::microseconds in_phase);
    void end(int slot);

    std::vector<watched_slot>    slots() const;
    std::vector<watched_request> line() const; // in the order of arrival

    // It grows with every change.
    uint64_t changes() const { return n_changes; }

private:
    mutable kvtier::mutex                   mu;
    std::vector<watched_slot>               slots_ GUARDED_BY(mu);
    mutable std::list<std::weak_ptr<place>> line_ GUARDED_BY(mu);
    std::atomic<uint64_t>                   n_changes{ 0 };
};

} // namespace llama_run

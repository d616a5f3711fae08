#include "server/live/slot_watch.h"

namespace llama_run {

const char * slot_phase_name(slot_phase phase) {
    switch (phase) {
        case slot_phase::idle:       return "idle";
        case slot_phase::restoring:  return "restoring";
        case slot_phase::evaluating: return "evaluating";
        case slot_phase::answering:  return "answering";
    }
    return "unknown";
}

const char * wait_reason_name(wait_reason reason) {
    switch (reason) {
        case wait_reason::slot:   return "slot";
        case wait_reason::files:  return "files";
        case wait_reason::prefix: return "prefix";
    }
    return "unknown";
}

double watched_slot::speed(watch_clock::time_point now) const {
    const double   seconds = std::chrono::duration<double>(now - since).count();
    // The first token of an answer comes with the end of its prompt.
    const uint64_t n = phase == slot_phase::evaluating ? n_evaluated : phase == slot_phase::answering ? n_answered - 1 : 0;
    return n == 0 || seconds <= 0 ? 0 : static_cast<double>(n) / seconds;
}

double watched_slot::ms_left(watch_clock::time_point now) const {
    const double fast = speed(now);
    if (phase != slot_phase::evaluating || fast <= 0 || n_reused + n_evaluated > n_prompt) {
        return -1;
    }
    return 1000 * static_cast<double>(n_prompt - n_reused - n_evaluated) / fast;
}

void slot_watch::open(size_t n_slots) {
    kvtier::mutex_lock guard(mu);
    slots_.assign(n_slots, watched_slot());
    n_changes++;
}

std::shared_ptr<slot_watch::place> slot_watch::enter(const std::string & user, uint64_t n_prompt) {
    const auto made = std::make_shared<place>();
    made->user     = user;
    made->n_prompt = n_prompt;
    made->since    = watch_clock::now();
    kvtier::mutex_lock guard(mu);
    line_.remove_if([](const std::weak_ptr<place> & p) { return p.expired(); });
    line_.push_back(made);
    n_changes++;
    return made;
}

void slot_watch::begin(int slot, const std::string & user, uint64_t n_prompt) {
    kvtier::mutex_lock guard(mu);
    if (static_cast<size_t>(slot) >= slots_.size()) {
        return;
    }
    watched_slot & s = slots_[static_cast<size_t>(slot)];
    s          = watched_slot();
    s.phase    = slot_phase::restoring;
    s.user     = user;
    s.n_prompt = n_prompt;
    s.since    = watch_clock::now();
    n_changes++;
}

bool slot_watch::is_restoring(int slot) const {
    kvtier::mutex_lock guard(mu);
    return static_cast<size_t>(slot) < slots_.size() && slots_[static_cast<size_t>(slot)].phase == slot_phase::restoring;
}

void slot_watch::restored(int slot, uint64_t n_reused) {
    kvtier::mutex_lock guard(mu);
    watched_slot & s = slots_[static_cast<size_t>(slot)];
    s.phase    = slot_phase::evaluating;
    s.n_reused = n_reused;
    s.since    = watch_clock::now();
    n_changes++;
}

void slot_watch::advance(int slot, uint64_t n_reused, uint64_t n_evaluated, uint64_t n_answered,
                         std::chrono::microseconds in_phase) {
    kvtier::mutex_lock guard(mu);
    if (static_cast<size_t>(slot) >= slots_.size()) {
        return;
    }
    watched_slot &   s    = slots_[static_cast<size_t>(slot)];
    const slot_phase next = n_answered > 0 ? slot_phase::answering : slot_phase::evaluating;
    if (s.phase == slot_phase::idle || n_evaluated + n_answered == 0) {
        return; // It was not seen to begin, or the batch was that of others.
    }
    if (s.phase == next && s.n_evaluated == n_evaluated && s.n_answered == n_answered && s.n_reused == n_reused) {
        return;
    }
    if (s.phase != next) {
        s.phase = next;
        s.since = watch_clock::now() - in_phase;
    }
    s.n_reused    = n_reused;
    s.n_evaluated = n_evaluated;
    s.n_answered  = n_answered;
    n_changes++;
}

void slot_watch::end(int slot) {
    kvtier::mutex_lock guard(mu);
    if (static_cast<size_t>(slot) < slots_.size()) {
        slots_[static_cast<size_t>(slot)] = watched_slot();
        n_changes++;
    }
}

std::vector<watched_slot> slot_watch::slots() const {
    kvtier::mutex_lock guard(mu);
    return slots_;
}

std::vector<watched_request> slot_watch::line() const {
    kvtier::mutex_lock guard(mu);
    std::vector<watched_request> out;
    for (auto it = line_.begin(); it != line_.end();) {
        if (const auto p = it->lock()) {
            out.push_back({ p->user, p->n_prompt, p->reason, p->since });
            ++it;
        } else {
            it = line_.erase(it);
        }
    }
    return out;
}

} // namespace llama_run

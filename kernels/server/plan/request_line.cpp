#include "server/plan/request_line.h"

#include "server/plan/queue_deadlines.h"

#include <algorithm>

namespace llama_run {

using std::chrono::milliseconds;

static double ms_between(request_line::clock::time_point from, request_line::clock::time_point to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
}

void request_line::open(size_t n) {
    kvtier::mutex_lock guard(mu);
    n_slots = std::max<size_t>(n, 1);
}

// Requests that were let in and have no slot, whether their tasks have been posted or not.
size_t request_line::waiting_now() const {
    return n_under_way - n_begun;
}

std::shared_ptr<request_line::place> request_line::enter(std::optional<size_t> max_waiting, milliseconds timeout,
                                                         bool cells_are_short) {
    kvtier::mutex_lock guard(mu);
    const size_t n_free = cells_are_short ? 0 : n_slots - std::min(n_slots, served.size());
    if (max_waiting && waiting_now() >= *max_waiting + n_free) {
        return nullptr;
    }
    n_under_way++;
    return std::make_shared<place>(*this, timeout);
}

void request_line::leave(const place & gone) {
    kvtier::mutex_lock guard(mu);
    for (const int id : gone.tasks) {
        waiting.erase(id);
        waiting_deadlines.forget(id);
    }
    n_under_way--;
    n_begun -= gone.begun;
    changed.notify_all();
}

void request_line::arrived(place & of, int id_task, const prompt_facts & prompt, const forecast & said) {
    kvtier::mutex_lock guard(mu);
    if (of.timeout.count() > 0 && !of.begun) {
        waiting_deadlines.set(id_task, clock::now() + of.timeout);
    }
    const bool alone = served.empty() && waiting.empty();
    of.tasks.push_back(id_task);
    request & r = waiting[id_task];
    r.alone   = alone;
    r.id_task = id_task;
    r.of      = &of;
    r.prompt  = prompt;
    r.said    = said;
    r.arrived = of.entered;
}

void request_line::placed(int id_task, int id_slot) {
    kvtier::mutex_lock guard(mu);
    const auto known = waiting.find(id_task);
    if (known == waiting.end()) {
        return;
    }
    request r = known->second;
    n_begun += !r.of->begun;
    r.of->begun = true;
    for (const int id : r.of->tasks) { // A request of several prompts does not wait any more when one of them is served.
        waiting_deadlines.forget(id);
    }
    r.of = nullptr;
    r.placed = clock::now();
    waiting.erase(known);
    r.alone = r.alone && served.empty();
    for (auto & [id, other] : served) {
        other.alone = false;
    }
    served[id_slot] = r;
}

void request_line::placed_further(int id_slot) {
    kvtier::mutex_lock guard(mu);
    request & r = served[id_slot];
    r           = request();
    r.placed    = clock::now();
    r.further   = true;
}

void request_line::began(int id_slot, double restore_ms) {
    prompt_facts prompt;
    {
        kvtier::mutex_lock guard(mu);
        const auto known = served.find(id_slot);
        if (known == served.end() || known->second.begun || known->second.further) {
            return;
        }
        known->second.begun      = true;
        known->second.began      = clock::now();
        known->second.restore_ms = restore_ms;
        prompt = known->second.prompt;
    }
    if (restore_ms > 0) {
        speeds.restored(prompt, restore_ms);
    }
}

void request_line::first_token(int id_slot, size_t n_reused) {
    request r;
    {
        kvtier::mutex_lock guard(mu);
        const auto known = served.find(id_slot);
        if (known == served.end() || known->second.answering || known->second.further) {
            return;
        }
        known->second.answering = true;
        known->second.first_ms  = ms_between(known->second.arrived, clock::now());
        r = known->second;
    }
    r.prompt.n_reused = std::min(n_reused, r.prompt.n_tokens);
    // What is neither restoring nor evaluating (tokenising, handing over) grows with the prompt, too, and counts here; but not
    // where the request has waited for others.
    speeds.evaluated(r.prompt, r.first_ms - r.restore_ms, r.alone);
    speeds.happened(r.said, r.first_ms);
}

request_times request_line::times_of(int id_slot) const {
    kvtier::mutex_lock guard(mu);
    request_times      out;
    const auto         known = served.find(id_slot);
    if (known != served.end() && !known->second.further) {
        const request & r = known->second;
        out.planned_ms = r.said.known ? r.said.first_token_ms() : -1;
        out.first_ms   = r.first_ms;
        // Files are read while the request waits for its slot: that is restoring, and counts once.
        out.queue_ms   = r.begun ? std::max(0.0, ms_between(r.arrived, r.began) - r.restore_ms) : ms_between(r.arrived, r.placed);
    }
    return out;
}

void request_line::released(int id_slot) {
    kvtier::mutex_lock guard(mu);
    const auto known = served.find(id_slot);
    if (known == served.end()) {
        return;
    }
    if (!known->second.further) {
        speeds.served(ms_between(known->second.placed, clock::now()));
    }
    served.erase(known);
}

// Slots become free one after the other, as far as can be told from how long requests last; those who wait take them in turn.
double request_line::wait_ms() const {
    const double mean = speeds.mean_service_ms();
    kvtier::mutex_lock guard(mu);
    std::vector<double> free_in(n_slots, 0);
    size_t              slot = 0;
    for (const auto & [id, r] : served) {
        if (slot < n_slots) {
            // One that lasts longer than usual is taken to last some more.
            free_in[slot++] = std::max(0.2 * mean, mean - ms_between(r.placed, clock::now()));
        }
    }
    for (size_t i = 0; i < waiting_now(); i++) {
        *std::min_element(free_in.begin(), free_in.end()) += mean;
    }
    return *std::min_element(free_in.begin(), free_in.end());
}

size_t request_line::n_waiting() const {
    kvtier::mutex_lock guard(mu);
    return waiting_now();
}

size_t request_line::n_served() const {
    kvtier::mutex_lock guard(mu);
    return served.size();
}

bool request_line::is_idle() const {
    kvtier::mutex_lock guard(mu);
    return n_under_way == 0;
}

bool request_line::wait_until_idle(const std::function<bool()> & stop) {
    while (!stop()) {
        kvtier::mutex_lock guard(mu);
        if (n_under_way == 0) {
            return true;
        }
        (void) changed.wait_until(guard, clock::now() + std::chrono::seconds(1));
    }
    return false;
}

} // namespace llama_run

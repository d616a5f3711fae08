#include "server/live/live_view.h"

#include "server/cache/request_log.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace llama_run {

static constexpr auto beat_every  = std::chrono::milliseconds(250); // how old a slot's progress may be
static constexpr auto quiet_after = std::chrono::seconds(5);  // then a listener hears of the slots again, as a sign of life

static watch_clock::time_point next_beat(watch_clock::time_point now) {
    const auto since = now.time_since_epoch();
    return now + (beat_every - since % beat_every);
}

static std::string event(const char * name, const common_json & data) {
    return std::string("event: ") + name + "\ndata: " + data.dump_safe() + "\n\n";
}

static double ms_since(watch_clock::time_point then, watch_clock::time_point now) {
    return std::chrono::duration<double, std::milli>(now - then).count();
}

static common_json describe_slot(size_t id, const watched_slot & s, watch_clock::time_point now) {
    common_json out = { { "id", id }, { "phase", slot_phase_name(s.phase) } };
    if (s.phase == slot_phase::idle) {
        return out;
    }
    out["for_ms"]           = ms_since(s.since, now);
    out["tokens"]           = s.n_prompt;
    out["tokens_reused"]    = s.n_reused;
    out["tokens_evaluated"] = s.n_evaluated;
    out["tokens_answered"]  = s.n_answered;
    out["tokens_per_s"]     = s.speed(now);
    if (const double left = s.ms_left(now); left >= 0) {
        out["left_ms"] = left;
    }
    return out;
}

common_json live_view::describe(const std::string & user) const {
    const auto  now = watch_clock::now();
    common_json all = common_json::array();
    const std::vector<watched_slot> seen = slots.slots();
    for (size_t i = 0; i < seen.size(); i++) {
        const bool told = user.empty() || seen[i].user == user || seen[i].phase == slot_phase::idle;
        all.push_back(told ? describe_slot(i, seen[i], now) : common_json{ { "id", i }, { "phase", "busy" } });
    }
    common_json line = common_json::array();
    for (const watched_request & r : slots.line()) {
        if (user.empty() || r.user == user) {
            line.push_back({
                { "tokens",    r.n_prompt },
                { "waits_for", wait_reason_name(r.reason) },
                { "for_ms",    ms_since(r.since, now) },
            });
        }
    }
    return { { "slots", all }, { "waiting", line } };
}

common_json live_view::load() const {
    const std::vector<watched_slot> seen = slots.slots();
    const auto n_idle = std::count_if(seen.begin(), seen.end(), [](const watched_slot & slot) {
        return slot.phase == slot_phase::idle;
    });
    return {
        { "slots",   seen.size() },
        { "busy",    seen.size() - static_cast<size_t>(n_idle) },
        { "waiting", slots.line().size() },
    };
}

void live_view::finished(const finished_request & request) {
    events.tell(request.user, [&] { return event("request", describe_request(request)); });
}

live_view::slots_event live_view::slots_now(const std::string & user) const {
    const uint64_t n_changes = slots.changes(); // What changes meanwhile is told again with the next one.
    return { event("slots", describe(user)), n_changes };
}

// Whoever of a user's listeners comes first makes it.
std::shared_ptr<const live_view::slots_event> live_view::slots_at(watch_clock::time_point beat, const std::string & user) {
    kvtier::mutex_lock guard(mu);
    if (made_at < beat) {
        made_at = beat;
        made.clear();
    }
    std::shared_ptr<const slots_event> & of_user = made[user];
    if (!of_user) {
        of_user = std::make_shared<const slots_event>(slots_now(user));
    }
    return of_user;
}

std::shared_ptr<live_view::stream> live_view::listen(const std::shared_ptr<live_view> & of, const std::string & user) {
    auto from = of->events.listen(user);
    return from ? std::make_shared<stream>(of, std::move(from), user) : nullptr;
}

live_view::stream::stream(std::shared_ptr<live_view> of, std::shared_ptr<event_hub::listener> from, std::string user) :
    of(std::move(of)), from(std::move(from)), user(std::move(user)) {}

std::string live_view::stream::next() {
    auto now = watch_clock::now();
    if (last_sent == watch_clock::time_point::min()) {
        last_sent = now;
        const slots_event first = of->slots_now(user);
        n_seen = first.n_changes;
        return event("hello", { { "started_ms", of->started_ms } }) + first.text;
    }
    const auto beat = next_beat(now);
    std::this_thread::sleep_until(beat);
    now = watch_clock::now();
    std::string out;
    const event_hub::heard heard = from->take();
    if (heard.n_lost > 0) {
        out += event("lost", { { "events", heard.n_lost } });
    }
    if (n_seen != of->slots.changes() || now - last_sent > quiet_after) {
        const auto seen = of->slots_at(beat, user);
        n_seen = seen->n_changes;
        out += seen->text;
    }
    for (const auto & one : heard.events) {
        out += *one;
    }
    last_sent = out.empty() ? last_sent : now;
    return out;
}

static common_json describe_day(const day_counts & c) {
    return {
        { "requests",         c.n_requests },
        { "tokens_reused",    c.n_reused },
        { "tokens_evaluated", c.n_evaluated },
        { "tokens_answered",  c.n_answered },
        { "saved_ms",         c.saved_ms },
        { "bytes_written",    c.bytes_written },
        { "bytes_read",       c.bytes_read },
    };
}

common_json describe_saved(const day_totals::history & history, int64_t since_ms) {
    static constexpr int64_t day_ms = 24 * 60 * 60 * 1000;
    common_json days = common_json::array();
    for (const auto & [number, counts] : history.days) {
        common_json day = describe_day(counts);
        day["day_ms"] = number * day_ms;
        days.push_back(day);
    }
    return { { "since_ms", since_ms }, { "ever", describe_day(history.ever) }, { "days", days } };
}

} // namespace llama_run

#include "server/live/day_totals.h"

#include "kvtier/file_names.h"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <utility>

namespace llama_run {

static constexpr char     magic[]     = "llama-run-days-1";
static constexpr char     everyone[]  = "*";
static constexpr char     ever[]      = "ever";
static constexpr int64_t  day_ms      = 24 * 60 * 60 * 1000;
static constexpr auto     store_after = std::chrono::seconds(60);
static constexpr uint64_t max_file    = uint64_t(4) << 20; // more than all lines take

void day_counts::add(const day_counts & other) {
    n_requests    += other.n_requests;
    n_reused      += other.n_reused;
    n_evaluated   += other.n_evaluated;
    n_answered    += other.n_answered;
    saved_ms      += other.saved_ms;
    bytes_written += other.bytes_written;
    bytes_read    += other.bytes_read;
}

static std::string who_is(const std::string & user) {
    return kvtier::hex(kvtier::user_key(user));
}

day_totals::day_totals(kvtier::env & e, std::string path, std::function<bytes()> so_far) :
    e(e), path(std::move(path)), so_far(std::move(so_far)) {
    read();
    keeper = std::thread([this] { keep(); });
}

void day_totals::close() {
    {
        kvtier::mutex_lock guard(mu);
        if (!so_far) {
            return;
        }
        count_bytes();
        so_far = nullptr;
        ending.notify_all();
    }
    keeper.join();
    store();
}

void day_totals::keep() {
    kvtier::mutex_lock guard(mu);
    while (so_far) {
        if (!ending.wait_until(guard, std::chrono::steady_clock::now() + store_after) && so_far) {
            count_bytes();
            guard.unlock();
            store();
            guard.lock();
        }
    }
}

void day_totals::read() {
    kvtier::mutex_lock guard(mu);
    since = e.now_ms();
    std::unique_ptr<kvtier::readable_file> file;
    if (!e.open_file(path, file).is_ok() || file->size() > max_file) {
        return;
    }
    std::string        text(static_cast<size_t>(file->size()), '\0');
    const kvtier::span part = { text.data(), text.size() };
    if (!file->read(0, &part, 1).is_ok()) {
        return;
    }
    std::istringstream in(text);
    std::string        first;
    int64_t            began    = 0;
    double             measured = 0;
    if (!(in >> first >> began >> measured) || first != magic) {
        return;
    }
    since = began;
    speed = measured;
    std::string who;
    std::string day;
    day_counts  c;
    while (in >> who >> day >> c.n_requests >> c.n_reused >> c.n_evaluated >> c.n_answered >> c.saved_ms >> c.bytes_written >>
           c.bytes_read) {
        if (by_who.size() > max_users && by_who.count(who) == 0) {
            continue;
        }
        if (day == ever) {
            by_who[who].ever = c;
            continue;
        }
        const int64_t number = std::strtoll(day.c_str(), nullptr, 10);
        if (number > e.now_ms() / day_ms - n_days) {
            by_who[who].days[number] = c;
        }
    }
}

void day_totals::count(const std::string & who, const day_counts & what) {
    if (by_who.size() > max_users && by_who.count(who) == 0) {
        return;
    }
    const int64_t today = e.now_ms() / day_ms;
    history &     h     = by_who[who];
    h.days[today].add(what);
    h.ever.add(what);
    h.days.erase(h.days.begin(), h.days.upper_bound(today - n_days));
    changed = true;
}

void day_totals::count_bytes() {
    const bytes now = so_far ? so_far() : counted;
    day_counts  more;
    more.bytes_written = now.written - counted.written;
    more.bytes_read    = now.read - counted.read;
    counted = now;
    if (more.bytes_written > 0 || more.bytes_read > 0) {
        count(everyone, more);
    }
}

void day_totals::add(const std::string & user, uint64_t n_reused, uint64_t n_evaluated, uint64_t n_answered, double restore_ms,
                     double tokens_per_s) {
    kvtier::mutex_lock guard(mu);
    speed = tokens_per_s > 0 ? tokens_per_s : speed;
    day_counts one;
    one.n_requests  = 1;
    one.n_reused    = n_reused;
    one.n_evaluated = n_evaluated;
    one.n_answered  = n_answered;
    one.saved_ms    = speed > 0 ? static_cast<int64_t>(1000 * static_cast<double>(n_reused) / speed - restore_ms) : 0;
    count(everyone, one);
    count(who_is(user), one);
}

day_totals::history day_totals::all() {
    kvtier::mutex_lock guard(mu);
    count_bytes();
    const auto known = by_who.find(everyone);
    return known == by_who.end() ? history() : known->second;
}

day_totals::history day_totals::of(const std::string & user) const {
    kvtier::mutex_lock guard(mu);
    const auto known = by_who.find(who_is(user));
    return known == by_who.end() ? history() : known->second;
}

int64_t day_totals::since_ms() const {
    kvtier::mutex_lock guard(mu);
    return since;
}

void day_totals::forget(const std::string & user) {
    {
        kvtier::mutex_lock guard(mu);
        by_who.erase(who_is(user));
        changed = true;
    }
    store();
}

void day_totals::forget_users() {
    {
        kvtier::mutex_lock guard(mu);
        const history together = by_who[everyone];
        by_who = { { everyone, together } };
        changed = true;
    }
    store();
}

static void write(std::ostringstream & out, const std::string & who, const std::string & day, const day_counts & c) {
    out << who << ' ' << day << ' ' << c.n_requests << ' ' << c.n_reused << ' ' << c.n_evaluated << ' ' << c.n_answered << ' '
        << c.saved_ms << ' ' << c.bytes_written << ' ' << c.bytes_read << '\n';
}

std::string day_totals::text() const {
    std::ostringstream out;
    out << magic << ' ' << since << ' ' << speed << '\n';
    for (const auto & [who, h] : by_who) {
        write(out, who, ever, h.ever);
        for (const auto & [day, c] : h.days) {
            write(out, who, std::to_string(day), c);
        }
    }
    return out.str();
}

// It replaces the file at once, and is not synced: that it counts is not worth a flush of the disk. Whoever counts meanwhile does
// not wait for it.
void day_totals::store() {
    kvtier::mutex_lock alone(writing);
    std::string now;
    {
        kvtier::mutex_lock guard(mu);
        if (!changed) {
            return;
        }
        now     = text();
        changed = false;
    }
    const kvtier::const_span part = { now.data(), now.size() };
    const std::string        next = path + ".tmp";
    (void) e.remove_file(next);
    std::unique_ptr<kvtier::writable_file> file;
    if (!e.create_file(next, file).is_ok() || !file->append(&part, 1).is_ok() || !file->close().is_ok() ||
        !e.rename(next, path).is_ok()) {
        kvtier::mutex_lock guard(mu);
        changed = true;
    }
}

} // namespace llama_run

#include "kvtier/write_budget.h"

#include "kvtier/file_names.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace kvtier {

static constexpr int64_t day_ms    = 24 * 60 * 60 * 1000;
static constexpr int64_t minute_ms = 60 * 1000;
static constexpr int64_t n_days    = 7;

// The heads of files, and checkpoints, come on top of a page's bytes.
static constexpr uint64_t overhead(uint64_t n_bytes) {
    return n_bytes / 64 + (uint64_t(16) << 10);
}

static void keep_last_days(std::map<int64_t, uint64_t> & days, int64_t today) {
    days.erase(days.upper_bound(today), days.end()); // The clock was set back.
    while (days.size() > static_cast<size_t>(n_days)) {
        days.erase(days.begin());
    }
}

write_budget::write_budget(env & e, const std::string & folder, uint64_t per_day) :
    e(e), path(names::join(folder, file_name)), per_day(per_day) {
    mutex_lock guard(mu);
    known.since_ms = e.now_ms();
    (void) read(known);
}

write_budget::~write_budget() {
    mutex_lock guard(mu);
    if (!unstored.empty()) {
        store();
    }
}

int64_t write_budget::today() const {
    return e.now_ms() / day_ms;
}

// A file that is not there, or that somebody has broken, begins anew: it only counts.
bool write_budget::read(record & out) const {
    std::unique_ptr<readable_file> file;
    if (!e.open_file(path, file).is_ok() || file->size() > 4096) {
        return false;
    }
    std::string text(static_cast<size_t>(file->size()), '\0');
    const span  part = { text.data(), text.size() };
    if (!file->read(0, &part, 1).is_ok()) {
        return false;
    }
    std::istringstream in(text);
    std::string        magic;
    record             found;
    if (!(in >> magic >> found.ever >> found.since_ms) || magic != "llama-run-written-1") {
        return false;
    }
    int64_t  day   = 0;
    uint64_t bytes = 0;
    while (found.days.size() < static_cast<size_t>(n_days) && in >> day >> bytes) {
        found.days[day] = bytes;
    }
    out = std::move(found);
    return true;
}

// It replaces the file at once, and is not synced: that it counts is not worth a flush of the disk.
void write_budget::store() {
    if (read(known)) { // Where it is gone or broken, it gets all that is known here.
        for (const auto & [day, bytes] : unstored) {
            known.days[day] += bytes;
            known.ever      += bytes;
        }
        keep_last_days(known.days, today());
    }
    std::ostringstream out;
    out << "llama-run-written-1 " << known.ever << " " << known.since_ms << "\n";
    for (const auto & [day, bytes] : known.days) {
        out << day << " " << bytes << "\n";
    }
    const std::string text = out.str();
    const const_span  part = { text.data(), text.size() };
    const std::string next = path + ".tmp";
    (void) e.remove_file(next);
    std::unique_ptr<writable_file> file;
    if (e.create_file(next, file).is_ok() && file->append(&part, 1).is_ok() && file->close().is_ok() &&
        e.rename(next, path).is_ok()) {
        unstored.clear();
    }
    stored_ms = e.now_ms();
}

bool write_budget::admits(const key & page, uint64_t n_bytes, uint64_t n_before) {
    mutex_lock guard(mu);
    const auto     day   = known.days.find(today());
    const uint64_t used  = day == known.days.end() ? 0 : day->second;
    const uint64_t asked = n_before + n_bytes;
    if (per_day == 0 || used + asked + overhead(asked) <= per_day) {
        return true;
    }
    const int64_t now = e.now_ms();
    // A clock that was set back must not stop it for ever.
    const bool minute_over = now >= beyond_ms + minute_ms || now < beyond_ms;
    if (n_before == 0 && minute_over && refused.erase(page) > 0) {
        beyond_ms = now;
        n_beyond++;
        return true;
    }
    skipped++;
    skipped_bytes += n_bytes;
    if (refused.size() < max_refused) {
        refused.insert(page);
    }
    return false;
}

void write_budget::written(uint64_t n_bytes) {
    mutex_lock guard(mu);
    known.days[today()] += n_bytes;
    known.ever          += n_bytes;
    unstored[today()]   += n_bytes;
    keep_last_days(known.days, today());
    if (e.now_ms() - stored_ms >= minute_ms || e.now_ms() < stored_ms) {
        store();
    }
}

write_totals write_budget::totals() const {
    mutex_lock   guard(mu);
    write_totals out;
    for (const auto & [day, bytes] : known.days) {
        out.today += day == today() ? bytes : 0;
        out.week  += day > today() - n_days && day <= today() ? bytes : 0;
    }
    out.ever          = known.ever;
    out.since_ms      = known.since_ms;
    out.budget        = per_day;
    out.skipped       = skipped;
    out.skipped_bytes = skipped_bytes;
    out.beyond        = n_beyond;
    return out;
}

} // namespace kvtier

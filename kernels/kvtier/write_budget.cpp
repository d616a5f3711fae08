#include "kvtier/write_budget.h"

#include "kvtier/file_names.h"

#include <algorithm>
#include <sstream>

namespace kvtier {

static constexpr int64_t day_ms    = 24 * 60 * 60 * 1000;
static constexpr int64_t minute_ms = 60 * 1000;
static constexpr int64_t n_days    = 7;

// The heads of files, and checkpoints, come on top of a page's bytes.
static constexpr uint64_t overhead(uint64_t n_bytes) {
    return n_bytes / 64 + (uint64_t(16) << 10);
}

write_budget::write_budget(env & e, const std::string & folder, uint64_t per_day) :
    e(e), path(names::join(folder, file_name)), per_day(per_day) {
    read();
}

write_budget::~write_budget() {
    mutex_lock guard(mu);
    if (unstored > 0) {
        store();
    }
}

int64_t write_budget::today() const {
    return e.now_ms() / day_ms;
}

// A file that is not there, or that somebody has broken, begins anew: it only counts.
void write_budget::read() {
    mutex_lock guard(mu);
    since_ms = e.now_ms();
    std::unique_ptr<readable_file> file;
    if (!e.open_file(path, file).is_ok() || file->size() > 4096) {
        return;
    }
    std::string text(static_cast<size_t>(file->size()), '\0');
    const span  part = { text.data(), text.size() };
    if (!file->read(0, &part, 1).is_ok()) {
        return;
    }
    std::istringstream in(text);
    std::string        magic;
    uint64_t           all   = 0;
    int64_t            since = 0;
    if (!(in >> magic >> all >> since) || magic != "llama-run-written-1") {
        return;
    }
    ever     = all;
    since_ms = since;
    int64_t  day   = 0;
    uint64_t bytes = 0;
    while (days.size() < static_cast<size_t>(n_days) && in >> day >> bytes) {
        days[day] = bytes;
    }
}

// It replaces the file at once, and is not synced: that it counts is not worth a flush of the disk.
void write_budget::store() {
    std::ostringstream out;
    out << "llama-run-written-1 " << ever << " " << since_ms << "\n";
    for (const auto & [day, bytes] : days) {
        out << day << " " << bytes << "\n";
    }
    const std::string text = out.str();
    const const_span  part = { text.data(), text.size() };
    const std::string next = path + ".tmp";
    (void) e.remove_file(next);
    std::unique_ptr<writable_file> file;
    if (e.create_file(next, file).is_ok() && file->append(&part, 1).is_ok() && file->close().is_ok()) {
        (void) e.rename(next, path);
    }
    stored_ms = e.now_ms();
    unstored  = 0;
}

bool write_budget::admits(const key & page, uint64_t n_bytes, uint64_t n_before) {
    mutex_lock guard(mu);
    const auto     known = days.find(today());
    const uint64_t used  = known == days.end() ? 0 : known->second;
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
    days.erase(days.upper_bound(today()), days.end()); // The clock was set back.
    days[today()] += n_bytes;
    while (days.size() > static_cast<size_t>(n_days)) {
        days.erase(days.begin());
    }
    ever     += n_bytes;
    unstored += n_bytes;
    if (e.now_ms() - stored_ms >= minute_ms || e.now_ms() < stored_ms) {
        store();
    }
}

write_totals write_budget::totals() const {
    mutex_lock   guard(mu);
    write_totals out;
    for (const auto & [day, bytes] : days) {
        out.today += day == today() ? bytes : 0;
        out.week  += day > today() - n_days && day <= today() ? bytes : 0;
    }
    out.ever          = ever;
    out.since_ms      = since_ms;
    out.budget        = per_day;
    out.skipped       = skipped;
    out.skipped_bytes = skipped_bytes;
    out.beyond        = n_beyond;
    return out;
}

} // namespace kvtier

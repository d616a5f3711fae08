// Lifetimes: what they protect, within which budget, when they lapse and what expires, whatever becomes of the clock.
#include "kvtier/lifetime.h"
#include "kvtier/session_testing.h"

using namespace kvtier;
using namespace kvtier::test;

namespace {

constexpr int64_t minute = 60 * 1000;
constexpr int64_t hour   = 60 * minute;
constexpr int64_t day    = 24 * hour;
constexpr int64_t start  = 1700000000000;

} // namespace

TEST(durations_read_as_they_are_written) {
    for (const char * text : { "none", "5m", "1h", "24h", "forever" }) {
        CHECK(parse_ttl(text).has_value());
        CHECK(duration_text(parse_ttl(text).value_or(-1)) == text);
    }
    for (const char * text : { "", "1", "2h", "24H", "for ever", "-5m", "5m " }) {
        CHECK(!parse_ttl(text).has_value());
    }
    for (const char * text : { "none", "1s", "90s", "30m", "12h", "7d", "999999d" }) {
        CHECK(parse_expire(text).has_value());
        CHECK(duration_text(parse_expire(text).value_or(-1)) == text);
    }
    for (const char * text : { "", "0d", "-1d", "7", "d", "1.5d", "1000000d", "7d ", "forever", "99999999999999999999s" }) {
        CHECK(!parse_expire(text).has_value());
    }
}

TEST(the_shorter_of_two_expiries_counts) {
    CHECK(!is_expired({}, 0, forever_ms - 1));
    CHECK(is_expired({ 0, hour }, 0, hour) && !is_expired({ 0, hour }, 0, hour - 1));
    CHECK(is_expired({ 0, day }, hour, hour) && is_expired({ 0, hour }, day, hour));
    CHECK(!is_expired({ 0, hour }, hour, -day));
}

TEST(protected_conversations_survive_a_budget_of_a_tenth) {
    fault_env     disk;
    agent         a;
    store_options o = a.m.options();
    o.max_bytes       = 800 << 10;
    o.protected_bytes = o.max_bytes / 2;
    auto             s     = open(disk, o);
    constexpr size_t n_own = 400; // about 28 KB each
    for (uint64_t i = 0; i < 5; i++) {
        CHECK(a.save(*s, i, ttl(24 * hour), n_own).is_ok());
    }
    for (uint64_t i = 5; i < 300; i++) {
        disk.set_now_ms(start + static_cast<int64_t>(i) * minute);
        CHECK(a.save(*s, i, {}, n_own).is_ok());
        CHECK(s->stats().disk_bytes <= o.max_bytes && s->stats().protected_bytes <= o.protected_bytes);
        for (uint64_t kept = 0; kept < 5; kept++) {
            CHECK(is_listed(*s, kept));
        }
    }
    CHECK(s->stats().values.bytes_written > 10 * o.max_bytes);
    CHECK(!is_listed(*s, 5) && is_listed(*s, 299));
    s = nullptr;
    s = open(disk, o);
    for (uint64_t kept = 0; kept < 5; kept++) {
        CHECK(info(*s, kept).is_protected && info(*s, kept).life.ttl_ms == 24 * hour);
    }
    // One is used once more, the others' time is over: they are the first to go, though the rest is older by then.
    disk.set_now_ms(start + 23 * hour);
    CHECK(a.use(*s, 0, n_own) == 64 + n_own);
    for (uint64_t i = 290; i < 300; i++) {
        CHECK(is_listed(*s, i));
    }
    disk.set_now_ms(start + 30 * hour);
    for (uint64_t i = 300; i < 304; i++) {
        CHECK(a.save(*s, i, {}, n_own).is_ok());
    }
    CHECK(is_listed(*s, 0) && info(*s, 0).is_protected);
    for (uint64_t lapsed = 1; lapsed < 5; lapsed++) {
        CHECK(!is_listed(*s, lapsed));
    }
    for (uint64_t i = 290; i < 304; i++) {
        CHECK(is_listed(*s, i));
    }
}

TEST(the_protection_budget_is_kept_and_the_longest_lifetimes_come_first) {
    fault_env     disk;
    agent         a;
    store_options o = a.m.options();
    o.max_bytes       = 400 << 10;
    o.protected_bytes = o.max_bytes / 2;
    auto s = open(disk, o);
    CHECK(a.save(*s, 0, ttl(forever_ms), 400).is_ok());
    for (uint64_t i = 1; i < 60; i++) {
        disk.set_now_ms(start + static_cast<int64_t>(i) * 1000);
        CHECK(a.save(*s, i, ttl(hour), 400).is_ok());
        CHECK(s->stats().protected_bytes <= o.protected_bytes);
        CHECK(s->stats().disk_bytes <= o.max_bytes);
    }
    CHECK(info(*s, 0).is_protected && info(*s, 59).is_protected);
    CHECK(!is_listed(*s, 1));
    size_t n_protected = 0;
    for (const conversation_info & c : s->list()) {
        n_protected += c.is_protected;
    }
    CHECK(n_protected > 3 && n_protected < s->list().size());
    // One that is larger than the whole budget takes nothing from the others.
    disk.set_now_ms(start + 2 * hour);
    CHECK(a.save(*s, 100, ttl(forever_ms), 3500).is_ok());
    CHECK(!info(*s, 100).is_protected && info(*s, 0).is_protected);
}

TEST(a_prefix_that_is_kept_is_refreshed_by_those_who_go_on_from_it) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    save_request prefix = a.m.request(*s, a.system, 64);
    prefix.conversation = { agent::hash(0), 0, "", ttl(hour) };
    CHECK(s->save(prefix).is_ok());
    disk.set_now_ms(start + 50 * minute);
    CHECK(a.use(*s, 1) == 64);
    disk.set_now_ms(start + 100 * minute);
    CHECK(info(*s, 0).is_protected);
    disk.set_now_ms(start + 111 * minute);
    CHECK(!info(*s, 0).is_protected);
}

TEST(a_lifetime_can_be_given_later_and_taken_back) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    CHECK(a.save(*s, 1).is_ok());
    CHECK(s->set_lifetime({}, agent::hash(2), ttl(hour)).is_miss());
    CHECK(s->set_lifetime({}, agent::hash(1), ttl(forever_ms)).is_ok());
    auto crashed = disk.clone();
    s = nullptr;
    for (fault_env * e : { crashed.get(), &disk }) {
        auto again = open(*e, a.m.options());
        CHECK(info(*again, 1).is_protected && info(*again, 1).life.ttl_ms == forever_ms);
        lifetime_change both = ttl(0);
        both.expire_ms = day;
        CHECK(again->set_lifetime({}, agent::hash(1), both).is_ok());
        CHECK(!info(*again, 1).is_protected);
        CHECK(info(*again, 1).life.expire_ms == day);
        // A turn that says nothing of it changes nothing.
        CHECK(a.save(*again, 1, {}, 60).is_ok());
        CHECK(info(*again, 1).life.expire_ms == day);
    }
}

TEST(a_lifetime_holds_after_a_power_cut) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    CHECK(a.save(*s, 1).is_ok());
    CHECK(a.save(*s, 2, ttl(hour)).is_ok());
    CHECK(s->set_lifetime({}, agent::hash(1), ttl(forever_ms)).is_ok());
    auto cut = disk.clone();
    cut->power_cut(cut_mode::strict);
    auto again = open(*cut, a.m.options());
    CHECK(info(*again, 1).life.ttl_ms == forever_ms && info(*again, 2).life.ttl_ms == hour);
}

TEST(an_expired_conversation_is_gone_from_disk_and_ram) {
    fault_env     disk;
    agent         a;
    store_options o = a.m.options();
    o.ram_bytes = 10 << 20;
    auto s = open(disk, o);
    CHECK(a.save(*s, 1, expire(2 * day)).is_ok());
    CHECK(a.save(*s, 2).is_ok());
    CHECK(s->stats().ram_bytes > 0);
    const std::vector<token> session = a.session(1);
    const std::vector<token> own(session.begin() + 64, session.end());
    CHECK(holds_tokens(disk, own));
    disk.set_now_ms(start + 2 * day - 1);
    CHECK(sweep(*s) == 0 && is_listed(*s, 1));
    disk.set_now_ms(start + 2 * day);
    CHECK(sweep(*s) > 0);
    CHECK(!is_listed(*s, 1) && is_listed(*s, 2));
    CHECK(!holds_tokens(disk, own));
    CHECK(a.use(*s, 1) == 64 && a.use(*s, 2) == 104);
    CHECK(s->stats().values.expired_conversations == 1);
}

TEST(what_expired_while_nothing_ran_is_removed_at_the_next_sweep) {
    fault_env     disk;
    agent         a;
    store_options o = a.m.options();
    auto s = open(disk, o);
    CHECK(a.save(*s, 1).is_ok());
    CHECK(a.save(*s, 2, ttl(forever_ms)).is_ok()); // protected from eviction, which is another thing
    CHECK(s->save(a.m.request(*s, a.session(3), 64, false)).is_ok()); // unlisted: it was killed before its answer came
    s = nullptr;
    o.expire_ms = 30 * day;
    disk.set_now_ms(start + 29 * day);
    s = open(disk, o);
    CHECK(sweep(*s) == 0);
    CHECK(a.use(*s, 2) == 104);
    s = nullptr;
    disk.set_now_ms(start + 31 * day);
    s = open(disk, o);
    sweep(*s);
    CHECK(!is_listed(*s, 1) && is_listed(*s, 2));
    for (const uint64_t gone : { 1u, 3u }) {
        const std::vector<token> tokens = a.session(gone);
        CHECK(!holds_tokens(disk, { tokens.begin() + 64, tokens.end() }));
    }
}

TEST(collecting_removes_what_has_expired) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    CHECK(a.save(*s, 1, expire(day)).is_ok());
    disk.set_now_ms(start + day);
    uint64_t freed = 0;
    CHECK(s->gc(freed).is_ok());
    CHECK(freed > 0 && s->list().empty());
}

TEST(a_conversation_that_is_being_read_does_not_expire) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    CHECK(a.save(*s, 1, expire(day)).is_ok());
    disk.set_now_ms(start + day);
    {
        const match held = a.m.lookup(*s, a.session(1));
        CHECK(held.n_tokens == 104);
        CHECK(s->expired().empty());
    }
    const auto ids = s->expired();
    CHECK(ids.size() == 1);
    CHECK(a.use(*s, 1) == 104); // in between, somebody came back to it
    uint64_t freed = 0;
    CHECK(s->remove_expired(ids, freed).is_ok());
    CHECK(is_listed(*s, 1));
}

// The clock goes on for an hour, with a sweep every five minutes.
static void sweep_for_an_hour(fault_env & disk, store & s, int64_t from) {
    for (int64_t at = 0; at <= hour; at += 5 * minute) {
        disk.set_now_ms(from + at);
        sweep(s);
    }
}

TEST(a_clock_is_believed_when_it_has_gone_on_for_an_hour) {
    clock_watch clock;
    clock.look(start);
    CHECK(!clock.is_believed());
    clock.look(start + 365 * day); // a leap
    CHECK(!clock.is_believed());
    for (int64_t at = 5 * minute; at < 50 * minute; at += 5 * minute) {
        clock.look(start + 365 * day + at);
        CHECK(!clock.is_believed());
    }
    clock.look(start + 365 * day + 50 * minute);
    CHECK(clock.is_believed());
    clock.look(start); // set back
    CHECK(!clock.is_believed());
}

TEST(a_clock_that_is_set_back_makes_nothing_last_more_than_an_hour_longer) {
    fault_env disk;
    agent     a;
    disk.set_now_ms(start + 365 * day); // a clock that runs a year ahead
    auto s = open(disk, a.m.options());
    CHECK(a.save(*s, 1, expire(day)).is_ok());
    CHECK(a.save(*s, 2, ttl(hour)).is_ok());
    sweep_for_an_hour(disk, *s, start); // and is put right
    CHECK(is_listed(*s, 1) && info(*s, 2).is_protected);
    s = nullptr;
    disk.set_now_ms(start + 2 * hour);
    s = open(disk, a.m.options());
    sweep(*s);
    CHECK(is_listed(*s, 1) && !info(*s, 2).is_protected);
    disk.set_now_ms(start + hour + day);
    sweep(*s);
    CHECK(!is_listed(*s, 1) && is_listed(*s, 2));
}

TEST(a_clock_that_begins_years_ago_until_the_network_tells_it_the_time_removes_nothing) {
    fault_env     disk;
    agent         a;
    store_options o = a.m.options();
    o.expire_ms = 30 * day;
    disk.set_now_ms(start + 2 * 365 * day);
    auto s = open(disk, o);
    CHECK(a.save(*s, 1).is_ok());
    s = nullptr;
    disk.set_now_ms(start); // the date of the firmware
    s = open(disk, o);
    for (int64_t at = 0; at < 30 * minute; at += 5 * minute) {
        disk.set_now_ms(start + at);
        sweep(*s);
    }
    CHECK(a.use(*s, 1) == a.session(1).size()); // a use by the wrong clock makes it no older
    s = nullptr; // what is recorded outlasts a restart, too
    s = open(disk, o);
    sweep(*s);
    disk.set_now_ms(start + 2 * 365 * day + minute);
    sweep(*s);
    CHECK(is_listed(*s, 1));
    CHECK(a.m.restore(*s, a.session(1)) == a.session(1).size());
    disk.set_now_ms(start + (2 * 365 + 30) * day + minute);
    sweep(*s);
    CHECK(!is_listed(*s, 1));
}

TEST(a_clock_that_has_lost_its_battery_decides_nothing) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    CHECK(a.save(*s, 1, expire(day)).is_ok());
    CHECK(a.save(*s, 2, ttl(hour)).is_ok());
    s = nullptr;
    disk.set_now_ms(1000); // 1970
    s = open(disk, a.m.options());
    sweep(*s);
    CHECK(is_listed(*s, 1) && info(*s, 2).is_protected);
    s = nullptr;
    disk.set_now_ms(start + 10 * minute); // the network has told it the time
    s = open(disk, a.m.options());
    sweep(*s);
    CHECK(is_listed(*s, 1) && info(*s, 2).is_protected);
}

TEST(a_store_of_before_keeps_its_conversations) {
    fault_env disk;
    model     m;
    auto      s      = open(disk, m.options());
    const auto tokens = random_tokens(1, 40);
    CHECK(m.save(*s, tokens).is_ok()); // without a word on its conversation, as format 1 has it
    s = nullptr;
    s = open(disk, m.options());
    CHECK(s->list().size() == 1 && s->list()[0].hash == conversation_hash(tokens.data(), tokens.size()));
    CHECK(s->list()[0].title.empty() && s->list()[0].life == lifetime());
    CHECK(disk.get(files_with(disk, "ckpt-1").at(0))[format::header_version] == 1);
    CHECK(disk.get(files_with(disk, "index.bin").at(0))[format::header_version] == 1);
}

int main() {
    return run_tests();
}

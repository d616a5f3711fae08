// Totals go on after a restart, day by day, and whatever lies in their file costs no more than the totals.
#include "server/live/day_totals.h"

#include "kvtier/fault_env.h"
#include "kvtier/testing.h"

using namespace llama_run;
using kvtier::fault_env;

namespace {

const std::string path   = "/kv/.days";
constexpr int64_t day_ms = 24 * 60 * 60 * 1000;

day_totals::bytes none() {
    return {};
}

struct disk : fault_env {
    disk() {
        put_folder("/kv");
        set_now_ms(20000 * day_ms);
    }
};

} // namespace

TEST(totals_go_on_after_a_restart) {
    disk files;
    {
        day_totals totals(files, path, none);
        totals.add("", 1000, 10, 5, 100, 500);
    }
    day_totals totals(files, path, none);
    totals.add("", 1000, 10, 5, 100, 0); // how fast evaluating is was not measured yet, but it is known
    const day_totals::history all = totals.all();
    CHECK(all.ever.n_requests == uint64_t(2));
    CHECK(all.ever.n_reused == uint64_t(2000));
    CHECK(all.ever.n_evaluated == uint64_t(20));
    CHECK(all.ever.n_answered == uint64_t(10));
    CHECK(all.ever.saved_ms == int64_t(2 * 1900));
    CHECK(all.days.at(20000).n_requests == uint64_t(2));
    CHECK(totals.since_ms() == 20000 * day_ms);
}

TEST(days_are_kept_apart_and_go_after_ninety) {
    disk files;
    {
        day_totals totals(files, path, none);
        totals.add("", 1, 0, 0, 0, 1);
        files.set_now_ms(20001 * day_ms);
        totals.add("", 2, 0, 0, 0, 1);
        CHECK(totals.all().days.at(20000).n_reused == uint64_t(1));
        CHECK(totals.all().days.at(20001).n_reused == uint64_t(2));
        files.set_now_ms(20090 * day_ms);
        totals.add("", 4, 0, 0, 0, 1);
        CHECK(totals.all().days.size() == size_t(2));
        CHECK(totals.all().days.begin()->first == int64_t(20001));
        CHECK(totals.all().ever.n_reused == uint64_t(7));
    }
    files.set_now_ms(20091 * day_ms);
    day_totals totals(files, path, none);
    CHECK(totals.all().days.size() == size_t(1));
    CHECK(totals.all().ever.n_reused == uint64_t(7));
}

TEST(bytes_count_from_the_stores_start_once) {
    disk files;
    day_totals::bytes now;
    for (int run = 0; run < 2; run++) {
        now = {};
        day_totals totals(files, path, [&] { return now; });
        now = { 100, 10 };
        (void) totals.all();
        now = { 300, 20 };
        CHECK(totals.all().ever.bytes_written == uint64_t(300 * (run + 1)));
    }
    day_totals totals(files, path, none);
    CHECK(totals.all().ever.bytes_written == uint64_t(600));
    CHECK(totals.all().ever.bytes_read == uint64_t(40));
}

TEST(users_are_counted_apart_and_forgotten_on_request) {
    disk files;
    {
        day_totals totals(files, path, none);
        totals.add("alice", 5, 0, 0, 0, 1);
        totals.add("", 7, 0, 0, 0, 1);
        CHECK(totals.of("alice").ever.n_reused == uint64_t(5));
        CHECK(totals.of("").ever.n_reused == uint64_t(7));
        CHECK(totals.of("bob").ever.n_reused == uint64_t(0));
        CHECK(totals.all().ever.n_reused == uint64_t(12));
        totals.forget("alice");
        CHECK(files.get(path).find("alice") == std::string::npos);
    }
    day_totals totals(files, path, none);
    CHECK(totals.of("alice").ever.n_reused == uint64_t(0));
    CHECK(totals.all().ever.n_reused == uint64_t(12));
}

TEST(more_users_than_are_counted_apart_count_among_all) {
    disk files;
    day_totals totals(files, path, none);
    for (size_t i = 0; i < day_totals::max_users + 10; i++) {
        totals.add("user" + std::to_string(i), 1, 0, 0, 0, 1);
    }
    CHECK(totals.all().ever.n_reused == uint64_t(day_totals::max_users + 10));
    CHECK(totals.of("user0").ever.n_reused == uint64_t(1));
    CHECK(totals.of("user" + std::to_string(day_totals::max_users + 5)).ever.n_reused == uint64_t(0));
}

TEST(a_broken_file_begins_anew) {
    const std::string good = "llama-run-days-1 5 2.5\n* ever 1 2 3 4 5 6 7\n";
    for (size_t n = 0; n <= good.size(); n++) {
        disk files;
        files.put(path, good.substr(0, n) + "\xff\n* 99999999999999999999 x");
        day_totals totals(files, path, none);
        totals.add("", 1, 0, 0, 0, 1);
        CHECK(totals.all().ever.n_requests >= uint64_t(1));
    }
}

TEST(a_disk_that_refuses_costs_nothing_but_the_file) {
    disk files;
    day_totals totals(files, path, none);
    totals.add("", 1, 0, 0, 0, 1);
    files.set_read_only(true);
    totals.close();
    CHECK(totals.all().ever.n_requests == uint64_t(1));
    CHECK(!files.exists(path));
}

int main() {
    return kvtier::run_tests();
}

// Writes are counted over days and restarts; beyond a day's budget only what was asked for twice is written, and little of it.
#include "kvtier/file_names.h"
#include "kvtier/store_testing.h"
#include "kvtier/write_budget.h"

#include <memory>

using namespace kvtier;
using namespace kvtier::test;

namespace {

constexpr int64_t minute = 60 * 1000;
constexpr int64_t day    = 24 * 60 * minute;

void pass(fault_env & disk, int64_t ms) {
    disk.set_now_ms(disk.now_ms() + ms);
}

} // namespace

TEST(what_was_written_is_told_by_day_week_and_in_all_also_by_the_next_process) {
    fault_env disk;
    CHECK(disk.make_dir("/cache").is_ok());
    {
        write_budget counts(disk, "/cache", 0);
        counts.written(100);
        pass(disk, day);
        counts.written(20);
        CHECK(counts.totals().today == 20);
        CHECK(counts.totals().week == 120);
    }
    write_budget counts(disk, "/cache", 0);
    CHECK(counts.totals().today == 20);
    CHECK(counts.totals().week == 120);
    pass(disk, 7 * day);
    counts.written(3);
    CHECK(counts.totals().week == 3);
    CHECK(counts.totals().ever == 123);
}

TEST(processes_with_one_folder_share_a_day) {
    fault_env disk;
    CHECK(disk.make_dir("/cache").is_ok());
    const key page{ { 1 } };
    {
        write_budget a(disk, "/cache", 1 << 20);
        write_budget b(disk, "/cache", 1 << 20);
        a.written(500 << 10);
        b.written(400 << 10);
        CHECK(b.totals().today == 900 << 10); // It has learnt of the other's with the file.
        pass(disk, minute);
        a.written(10 << 10);
        CHECK(a.totals().today == 910 << 10);
        CHECK(!a.admits(page, 200 << 10, 0) && !b.admits(page, 200 << 10, 0));
        a.written(1 << 10);
        b.written(1 << 10);
    }
    CHECK(write_budget(disk, "/cache", 0).totals().today == 912 << 10);
    CHECK(write_budget(disk, "/cache", 0).totals().ever == 912 << 10);
}

TEST(a_broken_file_of_counts_begins_anew) {
    fault_env disk;
    CHECK(disk.make_dir("/cache").is_ok());
    std::unique_ptr<writable_file> file;
    CHECK(disk.create_file("/cache/.written", file).is_ok());
    const const_span part = { "garbage 7 7", 11 };
    CHECK(file->append(&part, 1).is_ok() && file->close().is_ok());
    write_budget counts(disk, "/cache", 0);
    CHECK(counts.totals().ever == 0);
}

TEST(beyond_the_budget_a_page_is_written_when_it_is_asked_for_again_and_one_in_a_minute) {
    fault_env disk;
    CHECK(disk.make_dir("/cache").is_ok());
    write_budget counts(disk, "/cache", 1 << 20);
    const key one{ { 1 } };
    const key two{ { 2 } };
    CHECK(counts.admits(one, 900 << 10, 0));
    counts.written(900 << 10);
    CHECK(!counts.admits(one, 200 << 10, 0)); // It was refused for the first time.
    CHECK(!counts.admits(two, 200 << 10, 0));
    CHECK(counts.totals().skipped == 2);
    CHECK(counts.totals().skipped_bytes == 400 << 10);
    CHECK(counts.admits(one, 200 << 10, 0));
    CHECK(!counts.admits(two, 200 << 10, 0)); // The minute is not over.
    pass(disk, minute);
    CHECK(counts.admits(two, 200 << 10, 0));
    CHECK(counts.totals().beyond == 2);
    pass(disk, day);
    CHECK(counts.admits(two, 900 << 10, 0));
}

TEST(under_load_a_store_writes_its_budget_and_a_page_per_minute_and_what_is_stored_is_listed) {
    fault_env disk;
    model     m;
    m.bytes_per_token = 512;
    const uint64_t     page   = m.page_size * m.bytes_per_token;
    constexpr uint64_t budget = 256 << 10;
    store_options      options = m.options();
    CHECK(disk.make_dir(options.root_dir).is_ok());
    options.writes = std::make_shared<write_budget>(disk, options.root_dir, budget);
    const auto s = open(disk, options);
    for (int64_t now = 0; now < 10; now++) {
        for (uint64_t turn = 0; turn < 20; turn++) {
            CHECK(m.save(*s, random_tokens(static_cast<uint64_t>(now) * 100 + turn % 10, 4 * m.page_size)).is_ok());
        }
        // A page has its head and its checkpoint.
        CHECK(options.writes->totals().today <= budget + static_cast<uint64_t>(now + 1) * (page + 4096));
        pass(disk, minute);
    }
    CHECK(options.writes->totals().skipped > 100);
    CHECK(options.writes->totals().beyond > 1);
    for (uint64_t turn = 0; turn < 10; turn++) {
        const auto tokens = random_tokens(turn, 4 * m.page_size);
        (void) m.restore(*s, tokens);
    }
    uint64_t freed = 0;
    for (const conversation_info & c : s->list()) {
        CHECK(s->remove_conversation(c.name_space, c.hash, freed).is_ok());
    }
    CHECK(s->stats().n_runs == 0);
}

int main() {
    return kvtier::run_tests();
}

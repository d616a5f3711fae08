// Why something was refused, told by kinds and fields: nobody has to look for words in a message.
#include "kvtier/store_testing.h"

#include <cstdlib>

#include <sys/resource.h>
#include <unistd.h>

using namespace kvtier;
using namespace kvtier::test;

TEST(a_full_budget_is_told_from_a_full_disk) {
    fault_env     disk;
    model         m;
    store_options o = m.options();
    o.max_bytes = 100 << 10;
    auto s = open(disk, o);
    m.bytes_per_token = 64 << 10;
    const status over = m.save(*s, random_tokens(1, 16)); // one page of 1 MiB
    CHECK(over.is_over_budget() && over.is_no_space());
    m.bytes_per_token = 8;
    disk.set_capacity(1);
    const status full = m.save(*s, random_tokens(2, 16));
    CHECK(full.is_no_space() && !full.is_over_budget());
    CHECK(s->stats().values.skipped_budget == 1);
    CHECK(s->stats().values.skipped_no_space == 1);
}

TEST(too_few_file_handles_are_told_from_a_full_disk) {
    temp_folder folder;
    rlimit      before;
    CHECK(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    rlimit none = before;
    none.rlim_cur = 0;
    CHECK(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    std::unique_ptr<writable_file> file;
    const status s = posix_env().create_file(folder.path + "/file", file);
    CHECK(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(s.is_exhausted());
    CHECK(!s.is_no_space() && !s.is_io_error() && !s.is_damaged());
}

TEST(a_busy_lock_has_its_holder) {
    temp_folder                folder;
    const std::string          path = folder.path + "/lock";
    std::unique_ptr<file_lock> first, second;
    CHECK(posix_env().lock_file(path, first).is_ok());
    const status s = posix_env().lock_file(path, second);
    CHECK(s.is_busy());
    CHECK(s.holder() == static_cast<long>(::getpid()));
    CHECK(s.in("somewhere").holder() == s.holder());
}

TEST(a_store_that_is_inspected_refuses_every_change) {
    fault_env   disk;
    const model m;
    const std::vector<token> tokens = random_tokens(1, 64);
    CHECK(m.save(*open(disk, m.options()), tokens).is_ok());
    const auto    before = disk.files();
    store_options o      = m.options();
    o.inspect           = true;
    o.max_conversations = 0;
    o.max_bytes         = 1;
    {
        auto     s     = open(disk, o);
        uint64_t freed = 0;
        CHECK(m.restore(*s, tokens) == 64);
        CHECK(s->gc(freed).is_io_error());
        CHECK(s->remove_conversation({}, conversation_hash(tokens.data(), tokens.size()), freed).is_io_error());
        CHECK(s->remove_name_space({}, freed).is_io_error());
        CHECK(m.save(*s, random_tokens(2, 64)).is_io_error());
        CHECK(m.restore(*s, tokens) == 64);
    }
    CHECK(disk.files() == before);
}

int main() {
    return run_tests();
}

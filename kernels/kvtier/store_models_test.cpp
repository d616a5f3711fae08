// Stores of several models in one folder: they are counted together, and one goes while others stay.
#include "kvtier/file_names.h"
#include "kvtier/store_testing.h"
#include "kvtier/unsynced_env.h"

#include <atomic>

using namespace kvtier;
using namespace kvtier::test;

TEST(other_models_count_and_make_room) {
    fault_env     disk;
    model         m;
    store_options o = m.options();
    o.max_bytes = 1 << 20;
    disk.put_folder("/cache");
    const std::string other = "/cache/" + std::string(32, 'a');
    disk.put_folder(other);
    disk.put(other + "/lock", "1\n");
    disk.put(other + "/big", std::string(200000, 'x'));
    {
        auto s = open(disk, o);
        CHECK(s->stats().disk_bytes > 200000);
        CHECK(disk.exists(other + "/big"));
    }
    disk.put(other + "/bigger", std::string(600000, 'x'));
    auto s = open(disk, o);
    CHECK(!disk.exists(other)); // more than half of the budget
    CHECK(s->stats().disk_bytes < 100000);
}

namespace {

constexpr uint64_t shared_limit = 1 << 20;
constexpr int64_t  start        = 1700000000000;
constexpr int64_t  minute       = 60 * 1000;

// Stores of two models, with a budget each: they stand for two processes with one folder.
struct two_processes {
    fault_env     disk;
    model         m;
    store_options first = m.options();
    store_options second;

    two_processes() {
        m.bytes_per_token = 256;
        first.max_bytes   = shared_limit;
        second            = first;
        second.fingerprint[1] = 0x22;
    }

    status save(store & to, uint64_t seed) const {
        return m.save(to, random_tokens(seed, 64));
    }

    void fill(store & to) const {
        while (to.stats().values.evicted_segments == 0) {
            static uint64_t seed = 0;
            CHECK(save(to, seed++).is_ok());
        }
    }
};

} // namespace

TEST(processes_that_fill_a_folder_together_keep_its_limit) {
    two_processes two;
    const auto    a = open(two.disk, two.first);
    const auto    b = open(two.disk, two.second);
    for (uint64_t i = 0; i < 120; i++) {
        (void) two.save(*a, i).is_ok();
        (void) two.save(*b, i).is_ok();
        CHECK(two.disk.disk_bytes() <= shared_limit + shared_limit / 16);
    }
    CHECK(a->stats().n_runs > 0 && b->stats().n_runs > 0);
}

TEST(a_process_that_had_no_room_stores_again_when_the_others_model_is_removed) {
    two_processes two;
    auto          a = open(two.disk, two.first);
    two.fill(*a);
    const auto b = open(two.disk, two.second);
    CHECK(two.save(*b, 1).is_over_budget());
    a = nullptr;
    uint64_t freed = 0;
    CHECK(remove_model(two.disk, root_dir, two.first.fingerprint, freed).is_ok());
    two.disk.set_now_ms(start + minute);
    CHECK(two.save(*b, 1).is_ok());
    CHECK(counts_what_is_there(*b, two.disk));
}

TEST(a_process_that_had_no_room_stores_again_when_the_other_has_ended) {
    two_processes two;
    auto          a = open(two.disk, two.first);
    two.fill(*a);
    const auto b = open(two.disk, two.second);
    two.disk.set_now_ms(start + minute);
    CHECK(two.save(*b, 1).is_over_budget()); // it has looked again, and the other one holds its folder
    a = nullptr;
    two.disk.set_now_ms(start + 2 * minute);
    CHECK(two.save(*b, 1).is_ok());
    CHECK(counts_what_is_there(*b, two.disk));
}

TEST(an_ended_process_leaves_its_model_where_there_is_room) {
    two_processes two;
    two.first.max_bytes = shared_limit / 2;
    {
        const auto a = open(two.disk, two.first);
        two.fill(*a);
    }
    two.second.max_bytes = 4 * shared_limit;
    const auto b = open(two.disk, two.second);
    two.disk.put(std::string(root_dir) + "/" + hex(two.first.fingerprint) + "/more", std::string(2 * shared_limit, 'x'));
    two.disk.set_now_ms(start + minute);
    CHECK(two.save(*b, 1).is_ok());
    CHECK(two.disk.exists(std::string(root_dir) + "/" + hex(two.first.fingerprint)));
}

TEST(what_is_left_of_a_removed_model_is_counted) {
    failing_env       disk;
    const model       m;
    const std::string left = "/cache/" + names::removed(key{}, 1);
    disk.put_folder("/cache");
    disk.put_folder(left);
    disk.put(left + "/big", std::string(200000, 'x'));
    disk.no_remove = "/big";
    CHECK(counts_what_is_there(*open(disk, m.options()), disk));
    disk.no_remove = "";
    CHECK(counts_what_is_there(*open(disk, m.options()), disk));
    CHECK(!disk.exists(left));
}

// Another process starts with a model whose folder is being removed.
TEST(a_model_that_is_being_removed_takes_no_new_store_along) {
    struct watching_env : unsynced_env {
        std::function<void()> meanwhile;
        status remove_file(const std::string & path) override {
            const status s = unsynced_env::remove_file(path);
            if (meanwhile && contains(path, "/lock")) {
                std::exchange(meanwhile, nullptr)();
            }
            return s;
        }
    };
    temp_folder  folder;
    watching_env disk;
    unsynced_env others_disk;
    model        m;
    m.bytes_per_token = 256;
    store_options first = m.options();
    first.root_dir = folder.path + "/cache";
    const std::vector<token> tokens = random_tokens(1, 64);
    {
        auto s = open(disk, first);
        for (uint64_t i = 0; i < 20; i++) {
            CHECK(m.save(*s, random_tokens(100 + i, 64)).is_ok());
        }
    }
    store_options second = first;
    second.fingerprint[0] = 0xaa;
    second.max_bytes      = 300 << 10;
    disk.meanwhile = [&] {
        auto s = open(others_disk, first);
        CHECK(s->stats().n_runs == 0);
        CHECK(m.save(*s, tokens).is_ok());
    };
    open(disk, second);
    CHECK(!disk.meanwhile);
    CHECK(m.restore(*open(disk, first), tokens) == 64);
}

TEST(a_model_that_is_being_removed_can_be_opened) {
    temp_folder   folder;
    unsynced_env  disk;
    const model   m;
    store_options o = m.options();
    o.root_dir = folder.path + "/cache";
    const std::vector<token> tokens = random_tokens(1, 64);
    CHECK(open(disk, o) != nullptr);
    std::atomic<bool> done{ false };
    std::thread remover([&] {
        for (int i = 0; i < 2000; i++) {
            uint64_t     freed = 0;
            const status s     = remove_model(disk, o.root_dir, o.fingerprint, freed);
            CHECK(s.is_ok() || s.is_busy() || s.is_miss());
        }
        done = true;
    });
    while (!done) {
        std::unique_ptr<store> s;
        const status opened = store::open(disk, o, s);
        CHECK(opened.is_ok() || opened.is_busy());
        CHECK(s == nullptr || m.save(*s, tokens).is_ok());
        CHECK(s == nullptr || m.restore(*s, tokens) == 64);
    }
    remover.join();
}

int main() {
    return run_tests();
}

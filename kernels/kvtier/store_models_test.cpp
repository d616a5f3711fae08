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

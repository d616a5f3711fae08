// Limits, and what the store remembers, are held against a naive model: 10,000 random operations run on a real folder
// that is measured from outside, and the store is reopened in between.
#include "kvtier/file_names.h"
#include "kvtier/store_testing.h"
#include "kvtier/unsynced_env.h"

#include <cstdlib>
#include <filesystem>

#include <sys/stat.h>
#include <unistd.h>

using namespace kvtier;
using namespace kvtier::test;

namespace {

uint64_t measured(const std::string & path) {
    uint64_t bytes = 0;
    CHECK(measure_tree(posix_env(), path, bytes).is_ok());
    return bytes;
}

// Measures as an owner would, with the size of folders.
uint64_t du(const std::string & path) {
    uint64_t    bytes = 0;
    struct stat info;
    CHECK(::lstat(path.c_str(), &info) == 0);
    bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    for (const auto & entry : std::filesystem::recursive_directory_iterator(path)) {
        CHECK(::lstat(entry.path().c_str(), &info) == 0);
        bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
    return bytes;
}

// Measures the folder at every change of a file, so that a moment above the budget cannot hide between operations.
class watching_env : public fault_env {
public:
    status rename(const std::string & from, const std::string & to) override {
        check();
        return fault_env::rename(from, to);
    }
    status sync_dir(const std::string & path) override {
        check();
        return fault_env::sync_dir(path);
    }

    uint64_t highest = 0;

private:
    void check() { highest = std::max(highest, disk_bytes()); }
};

} // namespace

TEST(the_budget_holds_on_a_real_disk) {
    temp_folder   folder;
    unsynced_env  disk;
    model         m;
    m.bytes_per_token = 64;
    store_options o = m.options();
    o.root_dir          = folder.path + "/cache";
    o.max_bytes         = 600 << 10;
    o.ram_bytes         = 100 << 10;
    o.max_conversations = 40;
    constexpr size_t n_steps = 10000 / one_in;
    random_source    r{ 42 };
    auto             s = open(disk, o);

    std::vector<std::vector<token>> talks; // the naive model: what was said, nothing about how it is stored
    uint64_t n_restored = 0, n_evicted = 0, n_skipped = 0, highest = 0;
    const std::vector<token> system = random_tokens(7, 64);
    for (size_t step = 0; step < n_steps; step++) {
        const uint32_t what = r.below(100);
        if (what < 45 || talks.empty()) {
            std::vector<token> tokens;
            if (talks.empty() || r.below(4) == 0) {
                tokens = system;
                append(tokens, r.next(), 1 + r.below(150));
            } else {
                tokens = talks[r.below(static_cast<uint32_t>(talks.size()))];
                if (tokens.size() > 900 || r.below(8) == 0) {
                    tokens.resize(1 + r.below(static_cast<uint32_t>(tokens.size())));
                }
                append(tokens, r.next(), 1 + r.below(60));
            }
            const status saved = m.save(*s, tokens, 64, r.below(5) != 0);
            CHECK(saved.is_ok() || saved.is_no_space());
            talks.push_back(tokens);
            if (talks.size() > 100) {
                talks.erase(talks.begin() + r.below(100));
            }
        } else if (what < 95) {
            std::vector<token> tokens = talks[r.below(static_cast<uint32_t>(talks.size()))];
            if (r.below(3) == 0) {
                tokens[r.below(static_cast<uint32_t>(tokens.size()))] ^= 1;
            }
            n_restored += m.restore(*s, tokens) > 0;
        } else if (what < 97) {
            const auto list = s->list();
            if (!list.empty()) {
                uint64_t freed = 0;
                CHECK(s->remove_conversation({}, list[r.below(static_cast<uint32_t>(list.size()))].hash, freed).is_ok());
            }
        } else if (what < 98) {
            uint64_t freed = 0;
            CHECK(s->gc(freed).is_ok());
        } else if (what < 99) {
            n_evicted += s->stats().values.evicted_segments;
            n_skipped += s->stats().values.skipped_budget;
            s = nullptr;
            s = open(disk, o);
            CHECK(s->stats().values.damaged_total() == 0);
        }
        CHECK(s->stats().ram_bytes <= o.ram_bytes);
        CHECK(s->stats().disk_bytes <= o.max_bytes);
        CHECK(s->list().size() <= 40);
        if (step % 10 == 0) {
            const uint64_t bytes = measured(o.root_dir);
            highest = std::max(highest, bytes);
            CHECK(bytes <= o.max_bytes);
            CHECK(s->stats().disk_bytes >= bytes);
        }
    }
    std::printf("  highest %llu of %llu bytes; %llu restores, %llu segments evicted, %llu saves skipped\n",
                static_cast<unsigned long long>(highest), static_cast<unsigned long long>(o.max_bytes),
                static_cast<unsigned long long>(n_restored), static_cast<unsigned long long>(n_evicted),
                static_cast<unsigned long long>(n_skipped));
    CHECK(n_evicted > n_steps / 100);
    CHECK(n_restored > n_steps / 10);
    o.max_bytes = 200 << 10; // a smaller budget holds from the moment of opening
    s = nullptr;
    s = open(disk, o);
    CHECK(measured(o.root_dir) <= o.max_bytes);
    verify_report report;
    CHECK(s->verify(report).is_ok());
    CHECK(report.damaged.empty());
}

TEST(large_folders_are_counted) {
    temp_folder   folder;
    unsynced_env  disk;
    model         m;
    store_options o = m.options();
    o.root_dir = folder.path + "/cache";
    o.max_bytes = 8 << 20;
    o.max_conversations = 10000;
    auto s = open(disk, o);
    for (uint64_t i = 0; i < 1000; i++) {
        CHECK(m.save(*s, random_tokens(i, 20)).is_ok());
        if (i % 10 == 0) {
            CHECK(du(o.root_dir) <= o.max_bytes);
        }
    }
    CHECK(s->stats().values.evicted_segments > 50);
    const auto entry  = s->list().front();
    uint64_t   pages  = 0;
    CHECK(disk.folder_size(names::join(o.root_dir, names::join(hex(o.fingerprint), names::pages)), pages).is_ok());
    std::printf("  %zu conversations, the folder of their pages takes %llu bytes\n", s->list().size(),
                static_cast<unsigned long long>(pages));
    CHECK(s->stats().disk_bytes >= du(o.root_dir));
    CHECK(s->stats().disk_bytes <= du(o.root_dir) + 2 * disk_block); // lock and tag, if a file system keeps them elsewhere
    const uint64_t before = s->stats().disk_bytes;
    s = nullptr;
    s = open(disk, o);
    CHECK(s->stats().disk_bytes == before);
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, entry.hash, freed).is_ok());
    CHECK(freed == entry.bytes_own);
    CHECK(s->stats().disk_bytes == before - freed);
}

TEST(the_budget_holds_in_the_middle_of_a_write) {
    model         m;
    m.bytes_per_token = 64;
    m.folded_size     = 3000;
    store_options o = m.options();
    o.max_bytes = 300 << 10;
    watching_env  disk;
    random_source r{ 1 };
    auto          s = open(disk, o);
    for (int step = 0; step < 300; step++) {
        const std::vector<token> tokens = random_tokens(r.next(), 20 + r.below(800));
        const status saved = m.save(*s, tokens, 16);
        CHECK(saved.is_ok() || saved.is_no_space());
        CHECK(m.restore(*s, tokens) == (saved.is_ok() ? tokens.size() : m.lookup(*s, tokens).n_tokens));
    }
    CHECK(disk.highest > o.max_bytes / 2);
    CHECK(disk.highest <= o.max_bytes);
}

TEST(a_save_larger_than_the_budget_leaves_the_store_as_it_is) {
    fault_env     disk;
    model         m;
    store_options o = m.options();
    o.max_bytes = 100 << 10;
    auto s = open(disk, o);
    const std::vector<token> small = random_tokens(1, 50);
    CHECK(m.save(*s, small).is_ok());
    m.bytes_per_token = 64 << 10;
    CHECK(m.save(*s, random_tokens(2, 16)).is_no_space()); // one page of 1 MiB
    CHECK(s->stats().values.skipped_budget == 1);
    m.bytes_per_token = 8;
    CHECK(m.restore(*s, small) == 50);
}

TEST(what_cannot_be_evicted_drives_nothing_else_out) {
    model m;
    m.bytes_per_token = 64;
    const std::vector<token> tokens = random_tokens(1, 64);
    const std::string        root   = root_dir;
    const std::string        own    = names::join(root, hex(m.options().fingerprint));
    const std::string        other  = names::join(root, std::string(32, 'a')); // a running server's
    for (const std::string & large : { names::join(own, ".large"), names::join(other, "large") }) {
        fault_env disk;
        CHECK(m.save(*open(disk, m.options()), tokens).is_ok());
        disk.put_folder(other);
        disk.put(large, std::string(900000, 'x'));
        std::unique_ptr<file_lock> held;
        CHECK(disk.lock_file(names::join(other, names::lock_file), held).is_ok());
        store_options o = m.options();
        o.max_bytes = 800000;
        auto s = open(disk, o);
        CHECK(m.restore(*s, tokens) == 64);
        CHECK(m.save(*s, random_tokens(2, 64)).is_no_space());
        uint64_t freed = 0;
        CHECK(s->gc(freed).is_ok());
        CHECK(m.restore(*s, tokens) == 64);
    }
}

TEST(a_hole_counts_as_the_blocks_it_has) {
    temp_folder   folder;
    unsynced_env  disk;
    const model   m;
    store_options o = m.options();
    o.root_dir  = folder.path + "/cache";
    o.max_bytes = 64 << 20;
    const std::vector<token> tokens = random_tokens(1, 64);
    CHECK(m.save(*open(disk, o), tokens).is_ok());
    const std::string path = names::join(names::join(o.root_dir, hex(o.fingerprint)), ".hidden");
    std::unique_ptr<writable_file> file;
    CHECK(disk.create_file(path, file).is_ok());
    CHECK(::truncate(path.c_str(), off_t(1) << 40) == 0);
    auto s = open(disk, o);
    CHECK(s->stats().disk_bytes < 1 << 20);
    CHECK(m.restore(*s, tokens) == 64);
    CHECK(m.save(*s, random_tokens(2, 64)).is_ok());
}

TEST(single_pages_go_before_shared_ones) {
    fault_env     disk;
    model         m;
    m.bytes_per_token = 256;
    store_options o = m.options();
    o.max_bytes = 400 << 10;
    const std::vector<token> system = random_tokens(1, 64);
    auto s = open(disk, o);
    std::vector<token> a = system, b = system;
    append(a, 2, 64);
    append(b, 3, 64);
    CHECK(m.save(*s, a, 64).is_ok());
    CHECK(m.save(*s, b, 64).is_ok());
    for (uint64_t i = 0; i < 60; i++) {
        disk.set_now_ms(1700000000000 + static_cast<int64_t>(i) * 60000);
        CHECK(m.save(*s, random_tokens(100 + i, 64)).is_ok()); // single-use, and newer
    }
    CHECK(s->stats().values.evicted_segments > 20);
    CHECK(m.lookup(*s, a).n_tokens >= 64);
    CHECK(m.restore(*s, random_tokens(100, 64)) == 0);
}

TEST(an_entry_being_read_is_not_evicted) {
    fault_env     disk;
    model         m;
    m.bytes_per_token = 256;
    store_options o = m.options();
    o.max_bytes = 200 << 10;
    const std::vector<token> a = random_tokens(1, 64);
    auto s = open(disk, o);
    CHECK(m.save(*s, a).is_ok());
    const match held = m.lookup(*s, a);
    for (uint64_t i = 0; i < 40; i++) {
        CHECK(m.save(*s, random_tokens(100 + i, 64)).is_ok());
    }
    loaded_state state;
    CHECK(s->load(held, a.data(), a.size(), state).is_ok());
    CHECK(m.is_right(state, a));
}

TEST(room_for_a_checkpoint_made_of_its_own_folder_is_counted_right) {
    model m;
    m.bytes_per_token = 64;
    const std::vector<token> start = random_tokens(1, 1040);
    std::vector<token>       a = start, b = start;
    append(a, 2, 200);
    append(b, 3, 200);
    size_t n_made = 0; // limits at which the first branch had to go
    for (uint64_t limit = 80 << 10; limit < 240 << 10; limit += disk_block) {
        fault_env     disk;
        store_options o = m.options();
        o.max_bytes = limit;
        auto s = open(disk, o);
        if (!m.save(*s, start, 0, false).is_ok() || !m.save(*s, a).is_ok()) {
            continue;
        }
        const status saved = m.save(*s, b);
        CHECK(saved.is_ok() || saved.is_no_space());
        n_made += saved.is_ok() && s->stats().values.evicted_segments > 0;
        CHECK(counts_what_is_there(*s, disk));
    }
    CHECK(n_made > 0);
}

TEST(two_stores_of_a_process_share_a_budget) {
    fault_env     disk;
    model         m;
    m.bytes_per_token = 256;
    store_options o = m.options();
    o.budget = std::make_shared<disk_budget>(300 << 10);
    store_options draft = o;
    draft.fingerprint[0] = 0xf2;
    auto s = open(disk, o);
    auto d = open(disk, draft);
    for (uint64_t i = 0; i < 40; i++) {
        CHECK(m.save(*s, random_tokens(100 + i, 64)).is_ok());
        CHECK(disk.disk_bytes() <= 300 << 10);
    }
    CHECK(o.budget->used() <= o.budget->limit());
    const uint64_t before = o.budget->used();
    s = nullptr;
    CHECK(o.budget->used() < before);
}

TEST(no_store_of_a_process_starves_the_other) {
    fault_env     disk;
    model         m;
    m.bytes_per_token = 256;
    store_options o = m.options();
    o.budget = std::make_shared<disk_budget>(400 << 10);
    store_options draft = o;
    draft.fingerprint[0] = 0xf2;
    auto s = open(disk, o);
    auto d = open(disk, draft);
    uint64_t   now  = 0;
    const auto save = [&](store & to, uint64_t seed) {
        disk.set_now_ms(1700000000000 + static_cast<int64_t>(++now) * 60000);
        return m.save(to, random_tokens(seed, 64)).is_ok();
    };
    for (uint64_t i = 0; i < 40; i++) {
        CHECK(save(*s, i));
    }
    for (uint64_t i = 0; i < 40; i++) { // turn by turn, as with speculation
        CHECK(save(*d, i));
        CHECK(save(*s, 100 + i));
        CHECK(disk.disk_bytes() <= o.budget->limit());
    }
    const size_t n_target = s->list().size(), n_draft = d->list().size();
    std::printf("  %zu conversations of the one, %zu of the other\n", n_target, n_draft);
    CHECK(n_draft >= 3 && n_target >= 3);
    CHECK(s->stats().disk_bytes >= disk.disk_bytes());
}

TEST(opening_waits_for_a_removal_that_is_under_way) {
    // Finds the folder locked, as the one who removes it has it before it goes.
    class locked_once : public fault_env {
    public:
        status lock_file(const std::string & path, std::unique_ptr<file_lock> & out) override {
            return n_calls++ == 0 ? status::busy(path + ": held by process 2", 2) : fault_env::lock_file(path, out);
        }
        int n_calls = 0;
    };
    locked_once disk;
    const model m;
    const auto  first = open(disk, m.options());
    CHECK(first != nullptr);
    CHECK(disk.n_calls == 2);
    std::unique_ptr<store> second; // a store does not go
    CHECK(store::open(disk, m.options(), second).is_busy());
}

TEST(stores_that_evict_for_each_other_do_not_deadlock) {
    fault_env     disk;
    model         m;
    m.bytes_per_token = 256;
    store_options o = m.options();
    o.budget = std::make_shared<disk_budget>(400 << 10);
    std::vector<std::thread> threads;
    for (uint8_t i = 0; i < 3; i++) {
        threads.emplace_back([&disk, &m, o, i]() mutable {
            o.fingerprint[0] = static_cast<uint8_t>(0xf1 + i);
            for (uint64_t n = 0; n < 20; n++) { // opened and closed while the others ask
                auto s = open(disk, o);
                for (uint64_t k = 0; k < 10; k++) {
                    const status saved = m.save(*s, random_tokens(n * 1000 + k, 64));
                    CHECK(saved.is_ok() || saved.is_no_space());
                }
            }
        });
    }
    for (std::thread & t : threads) {
        t.join();
    }
    CHECK(o.budget->evictable_of_others(nullptr) == 0); // all have left
}

int main() {
    return run_tests();
}

// The power is cut. A save is cut at every single call it makes to the disk; what was not synced is dropped in three ways.
// Then the store must open, everything committed before must restore, and whatever else is found must be right.
#include "kvtier/file_names.h"
#include "kvtier/store_testing.h"

#include <functional>

using namespace kvtier;
using namespace kvtier::test;

namespace {

const cut_mode modes[] = { cut_mode::strict, cut_mode::names_first, cut_mode::torn };

struct scene {
    model                           m;
    store_options                   options;
    std::vector<std::vector<token>> committed; // must survive, whole
    std::vector<std::vector<token>> possible;  // may be found in part; never wrong
};

// Prepares a disk once, then cuts `action` at each of its calls. When it is `lossy`, the action may evict, so nothing
// committed is promised to be whole, only to be right.
void cut_everywhere(const scene & sc, const std::function<void(store &)> & prepare,
                    const std::function<bool(store &)> & action, bool lossy = false) {
    fault_env base;
    {
        auto s = open(base, sc.options);
        prepare(*s);
    }
    size_t n_cuts = 0;
    for (fault what : { fault::cut, fault::kill }) {
        for (cut_mode mode : modes) {
            if (what == fault::kill && mode != cut_mode::strict) {
                continue;
            }
            for (size_t n = 1;; n++) {
                auto disk = base.clone();
                bool done = false;
                bool met;
                {
                    auto s = open(*disk, sc.options);
                    disk->reset_calls();
                    disk->fail_at(n, what);
                    done = action(*s);
                    met  = disk->calls() >= n;
                    disk->fail_at(1, what); // whatever closing would still write is lost as well
                }
                disk->power_cut(mode);
                n_cuts++;
                for (int again = 0; again < 2; again++) { // recovery itself leaves a sound store
                    auto s = open(*disk, sc.options);
                    for (const auto & tokens : sc.committed) {
                        const size_t found = sc.m.restore(*s, tokens);
                        CHECK(lossy || found == tokens.size());
                    }
                    for (const auto & tokens : sc.possible) {
                        const size_t found = sc.m.restore(*s, tokens);
                        CHECK(lossy || !done || found == tokens.size());
                    }
                    verify_report report;
                    CHECK(s->verify(report).is_ok());
                    const auto values = s->stats().values;
                    // A cut leaves unfinished files, not damaged ones, except the index that is not synced.
                    for (const damage_note & note : report.damaged) {
                        CHECK(note.path.find("index.bin") != std::string::npos);
                    }
                    CHECK(values.load_failures == 0);
                    CHECK(counts_what_is_there(*s, *disk));
                    for (const std::string & path : disk->files()) {
                        CHECK(path.find("tmp-") == std::string::npos);
                    }
                }
                if (!met) {
                    break;
                }
            }
        }
    }
    std::printf("  %zu cuts\n", n_cuts);
}

} // namespace

TEST(a_cut_during_a_save_loses_nothing_committed) {
    scene sc;
    sc.m.folded_size = 64;
    sc.options = sc.m.options();
    sc.options.segment_bytes = 300; // several files in one save
    std::vector<token> tokens = random_tokens(1, 50);
    sc.committed.push_back(tokens);
    sc.committed.push_back(random_tokens(7, 40));
    append(tokens, 2, 60);
    sc.possible.push_back(tokens);
    cut_everywhere(sc,
        [&](store & s) {
            for (const auto & t : sc.committed) {
                CHECK(sc.m.save(s, t).is_ok());
            }
        },
        [&](store & s) { return sc.m.save(s, tokens, 20, true, { 20, 70 }).is_ok(); });
}

TEST(a_cut_during_the_first_save_of_a_user_leaves_a_sound_store) {
    scene sc;
    sc.m.user  = "somebody";
    sc.options = sc.m.options();
    sc.possible.push_back(random_tokens(1, 50));
    cut_everywhere(sc, [](store &) {}, [&](store & s) { return sc.m.save(s, sc.possible[0]).is_ok(); });
}

TEST(a_cut_during_eviction_leaves_no_checkpoint_without_its_pages) {
    scene sc;
    sc.options = sc.m.options();
    sc.options.max_bytes = 15 * disk_block + folder_growth;
    std::vector<std::vector<token>> old;
    for (uint64_t i = 0; i < 3; i++) {
        old.push_back(random_tokens(i, 60));
    }
    sc.committed = old;
    sc.possible.push_back(random_tokens(9, 100));
    cut_everywhere(sc,
        [&](store & s) {
            for (const auto & t : old) {
                CHECK(sc.m.save(s, t).is_ok());
            }
        },
        [&](store & s) {
            const bool ok = sc.m.save(s, sc.possible[0]).is_ok();
            return ok && s.stats().values.evicted_segments > 0;
        }, true);
}

TEST(a_cut_during_removal_leaves_the_others_whole) {
    scene sc;
    sc.options = sc.m.options();
    std::vector<token> a = random_tokens(1, 50), b = random_tokens(2, 50);
    sc.committed.push_back(a);
    std::vector<token> gone = b;
    append(gone, 3, 30);
    cut_everywhere(sc,
        [&](store & s) {
            CHECK(sc.m.save(s, a).is_ok());
            CHECK(sc.m.save(s, b).is_ok());
            CHECK(sc.m.save(s, gone).is_ok());
        },
        [&](store & s) {
            uint64_t freed = 0;
            const bool one = s.remove_conversation({}, conversation_hash(gone.data(), gone.size()), freed).is_ok();
            return one && s.remove_conversation({}, conversation_hash(b.data(), b.size()), freed).is_ok();
        });
}

// What the first process had not synced, the second one finds and builds upon.
TEST(a_cut_after_a_kill_loses_nothing_committed_since) {
    model m;
    m.folded_size = 64;
    const std::vector<token> a = random_tokens(1, 50), b = random_tokens(2, 50);
    for (const char * user : { "", "bob" }) {
        m.user = user;
        for (const auto & tokens : { a, b }) {
            bool met = true;
            for (size_t n = 1; met; n++) {
                fault_env disk;
                {
                    auto s = open(disk, m.options());
                    disk.reset_calls();
                    disk.fail_at(n, fault::kill);
                    (void) m.save(*s, a).is_ok();
                    met = disk.calls() >= n;
                    disk.fail_at(1, fault::kill);
                }
                disk.power_cut(cut_mode::strict); // only a kill
                {
                    auto s = open(disk, m.options());
                    CHECK(m.save(*s, tokens).is_ok());
                    disk.fail_at(1, fault::cut);
                }
                disk.power_cut(cut_mode::strict);
                auto s = open(disk, m.options());
                for (const damage_note & note : s->damaged()) {
                    CHECK(contains(note.path, "index.bin")); // is not synced
                }
                CHECK(s->stats().n_checkpoints > 0);
                CHECK(m.restore(*s, tokens) == tokens.size());
            }
        }
    }
}

TEST(a_folder_whose_sync_failed_is_synced_before_the_next_commit) {
    model m;
    m.folded_size = 64;
    const std::vector<token> tokens = random_tokens(1, 50);
    for (const char * folder : { "/pages", "/anchors" }) {
        failing_env disk;
        {
            auto s = open(disk, m.options());
            CHECK(m.save(*s, random_tokens(9, 20)).is_ok());
            disk.no_sync = folder;
            CHECK(m.save(*s, tokens).is_io_error());
            CHECK(m.save(*s, tokens).is_io_error());
            disk.no_sync = "";
            CHECK(m.save(*s, tokens).is_ok());
            disk.fail_at(1, fault::cut);
        }
        disk.power_cut(cut_mode::strict);
        CHECK(m.restore(*open(disk, m.options()), tokens) == 50);
    }
}

TEST(a_cut_brings_nothing_back_that_was_removed) {
    model m;
    m.folded_size = 64;
    const std::vector<token> tokens = random_tokens(1, 64);
    for (const char * user : { "", "alice" }) {
        m.user = user;
        for (const bool one : { true, false }) {
            fault_env disk;
            {
                auto     s     = open(disk, m.options());
                uint64_t freed = 0;
                CHECK(m.save(*s, tokens).is_ok());
                const key name_space = user_key(user);
                CHECK((one ? s->remove_conversation(name_space, conversation_hash(tokens.data(), tokens.size()), freed)
                           : s->remove_name_space(name_space, freed)).is_ok());
                disk.fail_at(1, fault::cut);
            }
            disk.power_cut(cut_mode::strict);
            auto s = open(disk, m.options());
            CHECK(m.restore(*s, tokens) == 0);
            CHECK(s->stats().n_segments == 0 && s->stats().n_anchors == 0 && s->stats().n_checkpoints == 0);
        }
    }
}

TEST(a_cut_while_opening_loses_nothing_committed) {
    const model m;
    const std::vector<token> tokens = random_tokens(1, 50);
    fault_env base;
    {
        auto s = open(base, m.options());
        CHECK(m.save(*s, tokens).is_ok());
        CHECK(m.save(*s, random_tokens(2, 50)).is_ok());
    }
    // Opening has something to clean up: an unfinished file and a damaged one.
    const std::string folder = "/cache/" + std::string("f1") + std::string(30, '0') + "/pages/";
    base.put(folder + "tmp-9", "half");
    base.put(folder + "00000000000000aa.seg", "noise");
    for (cut_mode mode : modes) {
        for (size_t n = 1;; n++) {
            auto disk = base.clone();
            disk->fail_at(n, fault::cut);
            std::unique_ptr<store> s;
            const bool opened = store::open(*disk, m.options(), s).is_ok();
            const bool met    = disk->calls() >= n;
            s = nullptr;
            disk->power_cut(mode);
            s = open(*disk, m.options());
            CHECK(m.restore(*s, tokens) == 50);
            if (!met) {
                CHECK(opened);
                break;
            }
        }
    }
}

int main() {
    return run_tests();
}

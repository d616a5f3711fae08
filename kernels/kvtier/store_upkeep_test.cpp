// What looks after a store: what is removed is gone and no longer counted, and what is damaged is found.
#include "kvtier/file_names.h"
#include "kvtier/session_testing.h"

using namespace kvtier;
using namespace kvtier::test;

TEST(removing_a_conversation_leaves_the_others) {
    fault_env disk;
    model     m;
    const std::vector<token> prefix = random_tokens(1, 1100);
    std::vector<token> a = random_tokens(2, 1100), b = prefix, c = prefix;
    append(b, 3, 40);
    append(c, 4, 40);
    c[1050] ^= 1;
    auto s = open(disk, m.options());
    for (const auto & tokens : { a, b, c }) {
        CHECK(m.save(*s, tokens).is_ok());
    }
    CHECK(s->list().size() == 2);
    uint64_t       freed = 0;
    const uint64_t hash  = conversation_hash(prefix.data(), prefix.size());
    CHECK(s->remove_conversation({}, hash, freed).is_ok());
    CHECK(s->remove_conversation({}, hash, freed).is_miss());
    CHECK(m.restore(*s, a) == 1100);
    CHECK(m.restore(*s, b) == 0);
    CHECK(m.restore(*s, c) == 0);
    CHECK(s->list().size() == 1);
    CHECK(s->stats().n_segments == 1);
}

TEST(retired_checkpoints_go_with_their_conversation) {
    fault_env     disk;
    model         m;
    store_options o = m.options();
    o.max_checkpoints = 2;
    const std::vector<token> prefix = random_tokens(1, 1100); // one conversation: the same first 1024 tokens
    auto s = open(disk, o);
    std::vector<std::vector<token>> talks;
    for (uint64_t i = 0; i < 8; i++) {
        talks.push_back(prefix);
        append(talks.back(), 10 + i, 40);
        CHECK(m.save(*s, talks.back(), 1000).is_ok());
    }
    CHECK(s->list().at(0).turns == 2);
    for (const auto & tokens : talks) {
        CHECK(m.restore(*s, tokens) == 1140); // the state of retired ones is still good
    }
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, conversation_hash(prefix.data(), prefix.size()), freed).is_ok());
    for (const auto & tokens : talks) {
        CHECK(m.restore(*s, tokens) == 0);
    }
    CHECK(s->stats().n_segments == 0);
}

TEST(a_users_removal_takes_damaged_files_along) {
    fault_env disk;
    model     alice;
    alice.user = "alice";
    auto s = open(disk, alice.options());
    const std::vector<token> tokens = random_tokens(1, 64);
    CHECK(alice.save(*s, tokens).is_ok());
    s = nullptr;
    const size_t n_before = disk.files().size();
    for (const std::string & path : disk.files()) {
        if (path.find("/pages/") != std::string::npos) {
            disk.damage(path);
        }
    }
    s = open(disk, alice.options());
    CHECK(alice.restore(*s, tokens) == 0); // sets them aside
    uint64_t freed = 0;
    CHECK(s->remove_name_space(user_key("alice"), freed).is_ok());
    CHECK(n_before > disk.files().size());
    for (const std::string & path : disk.files()) {
        CHECK(path.find("/quarantine/") == std::string::npos && path.find("/u/") == std::string::npos);
    }
}

TEST(no_failing_call_of_a_users_removal_leaves_bytes_counted) {
    model alice;
    alice.user = "alice";
    for (size_t n = 1;; n++) {
        fault_env disk;
        auto s = open(disk, alice.options());
        const auto     beyond   = [&] { return s->stats().disk_bytes - disk.disk_bytes(); }; // a block for each empty file
        const uint64_t at_first = beyond();
        for (uint64_t i = 0; i < 6; i++) {
            CHECK(alice.save(*s, random_tokens(i, 64), 0, true, { 32, 64 }).is_ok());
        }
        disk.reset_calls();
        disk.fail_at(n, fault::io_error);
        uint64_t freed = 0;
        (void) s->remove_name_space(user_key("alice"), freed).is_ok();
        const bool met = disk.calls() >= n;
        disk.reset_calls();
        CHECK(s->remove_name_space(user_key("alice"), freed).is_ok());
        CHECK(beyond() == at_first);
        CHECK(alice.restore(*s, random_tokens(1, 64)) == 0);
        if (!met) {
            break;
        }
    }
}

TEST(a_file_that_could_not_be_removed_goes_at_the_next_gc) {
    failing_env disk;
    const model m;
    const std::vector<token> tokens = random_tokens(1, 64);
    const uint64_t           hash   = conversation_hash(tokens.data(), tokens.size());
    auto           s        = open(disk, m.options());
    const uint64_t at_first = disk.files().size();
    for (const char * kind : { ".seg", "ckpt-" }) {
        CHECK(m.save(*s, tokens).is_ok());
        disk.no_remove = kind;
        uint64_t freed = 0;
        const status refused = s->remove_conversation({}, hash, freed);
        CHECK(refused.is_io_error() && contains(refused.message(), kind) && contains(refused.message(), "Input/output error"));
        CHECK(s->gc(freed).is_io_error());
        CHECK(disk.files().size() == at_first + 1);
        CHECK(counts_what_is_there(*s, disk));
        disk.no_remove = "";
        CHECK(s->gc(freed).is_ok());
        CHECK(disk.files().size() == at_first);
        CHECK(!disk.exists("/cache/" + hex(m.options().fingerprint) + "/" + hex(hash)));
        CHECK(counts_what_is_there(*s, disk));
    }
}

TEST(a_removal_that_the_disk_refuses_says_so_until_it_is_done) {
    const std::vector<token> tokens = random_tokens(1, 64);
    const uint64_t           hash   = conversation_hash(tokens.data(), tokens.size());
    for (const char * user : { "", "alice" }) {
        for (const bool is_whole_user : { false, true }) {
            fault_env disk;
            model     m;
            m.folded_size = 64;
            m.user        = user;
            auto       s      = open(disk, m.options());
            uint64_t   freed  = 0;
            const auto remove = [&](store & from) {
                return is_whole_user ? from.remove_name_space(user_key(user), freed)
                                     : from.remove_conversation(user_key(user), hash, freed);
            };
            CHECK(m.save(*s, tokens).is_ok());
            disk.set_read_only(true);
            for (int i = 0; i < 2; i++) { // When it is asked again, it is not as if there were nothing.
                const status refused = remove(*s);
                CHECK(refused.is_io_error() && contains(refused.message(), ": Read-only file system; "));
                CHECK(contains(refused.message(), root_dir) && contains(refused.message(), "restart"));
                CHECK(m.restore(*s, tokens) == 0 && s->list().empty());
            }
            const auto after_a_kill = disk.clone();
            CHECK(m.restore(*open(*after_a_kill, m.options()), tokens) == 64); // So it was right to say so.
            disk.set_read_only(false);
            CHECK(remove(*s).is_ok());
            CHECK(!holds_tokens(disk, tokens));
            CHECK(is_whole_user || remove(*s).is_miss());
            CHECK(counts_what_is_there(*s, disk));
        }
    }
}

TEST(a_removal_is_not_refused_for_files_of_another_user) {
    failing_env disk;
    model       m, alice;
    alice.user = "alice";
    const std::vector<token> tokens = random_tokens(1, 64);
    const uint64_t           hash   = conversation_hash(tokens.data(), tokens.size());
    auto     s     = open(disk, m.options());
    uint64_t freed = 0;
    for (const bool is_alice : { true, false }) {
        CHECK(m.save(*s, tokens).is_ok() && alice.save(*s, tokens).is_ok());
        disk.no_remove = is_alice ? "/u/" : hex(m.options().fingerprint) + "/pages/";
        disk.no_sync   = is_alice ? "/u/" : "";
        CHECK(s->remove_conversation(user_key(is_alice ? "alice" : ""), hash, freed).is_io_error());
        CHECK(s->remove_conversation(user_key(is_alice ? "" : "alice"), hash, freed).is_ok());
        disk.no_remove = "";
        disk.no_sync   = "";
        CHECK(s->gc(freed).is_ok());
    }
}

TEST(what_could_not_be_set_aside_at_the_opening_is_told_and_tried_again) {
    failing_env              disk;
    const model              m;
    const std::vector<token> tokens = random_tokens(1, 64);
    CHECK(m.save(*open(disk, m.options()), tokens).is_ok());
    const std::string damaged = files_with(disk, ".seg").front();
    disk.put(damaged, "x" + disk.get(damaged).substr(1));
    disk.no_make   = "quarantine";
    disk.no_remove = ".seg";
    auto     s     = open(disk, m.options());
    uint64_t freed = 0;
    CHECK(s->gc(freed).is_io_error() && holds_tokens(disk, tokens));
    CHECK(s->remove_name_space({}, freed).is_io_error());
    disk.no_make   = "";
    disk.no_remove = "";
    CHECK(s->remove_name_space({}, freed).is_ok() && !holds_tokens(disk, tokens));
    CHECK(counts_what_is_there(*s, disk));
}

TEST(what_is_damaged_is_set_aside_also_where_somebody_removed_the_quarantine) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    for (const uint64_t session : { 1, 2 }) {
        CHECK(a.save(*s, session).is_ok());
        const std::vector<token> tokens = a.session(session);
        const std::vector<token> own(tokens.begin() + 64, tokens.begin() + 80);
        damage_pages_of(disk, own);
        a.use(*s, session);
        CHECK(a.save(*s, 10 + session).is_ok()); // The writer does what readers leave to it.
        for (const std::string & path : files_with(disk, "/quarantine/")) {
            disk.erase(path);
        }
        CHECK(!holds_tokens(disk, own));
        CHECK(disk.remove_dir(std::string(root_dir) + "/" + hex(a.m.options().fingerprint) + "/quarantine").is_ok());
    }
}

TEST(a_sweep_that_the_disk_refuses_says_so) {
    failing_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    CHECK(a.save(*s, 1, expire(1000)).is_ok());
    disk.set_now_ms(disk.now_ms() + 2000);
    disk.no_remove = ".seg";
    uint64_t freed = 0;
    CHECK(s->remove_expired(s->expired(), freed).is_io_error());
    CHECK(!is_listed(*s, 1) && a.use(*s, 1) == 0);
    disk.no_remove = "";
    CHECK(s->remove_expired(s->expired(), freed).is_ok());
    CHECK(!holds_tokens(disk, a.session(1)));
}

TEST(what_could_not_be_set_aside_goes_with_its_session) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    CHECK(a.save(*s, 1).is_ok());
    const std::vector<token> tokens = a.session(1);
    const std::vector<token> own(tokens.begin() + 64, tokens.begin() + 80);
    damage_pages_of(disk, own);
    disk.set_read_only(true);
    a.use(*s, 1);
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, agent::hash(1), freed).is_io_error());
    disk.set_read_only(false);
    CHECK(s->remove_conversation({}, agent::hash(1), freed).is_ok());
    CHECK(!holds_tokens(disk, own));
}

TEST(removing_a_user_gives_back_only_what_was_counted) {
    fault_env disk;
    model     alice, m;
    alice.user = "alice";
    auto s = open(disk, m.options());
    for (uint64_t i = 0; i < 20; i++) {
        CHECK(m.save(*s, random_tokens(i, 64)).is_ok());
    }
    CHECK(alice.save(*s, random_tokens(1, 64)).is_ok());
    disk.put(files_with(disk, "/u/").front() + "-copy", std::string(100000, 'x'));
    uint64_t freed = 0;
    CHECK(s->remove_name_space(user_key("alice"), freed).is_ok());
    CHECK(freed > 100000);
    CHECK(counts_what_is_there(*s, disk));
}

TEST(verify_finds_a_flipped_bit_of_state) {
    fault_env disk;
    model     m;
    m.folded_size = 100;
    auto s = open(disk, m.options());
    CHECK(m.save(*s, random_tokens(1, 64)).is_ok());
    verify_report sound;
    CHECK(s->verify(sound).is_ok());
    CHECK(sound.damaged.empty());
    CHECK(sound.n_files == 4);
    for (const std::string & path : disk.files()) {
        if (path.find(".seg") == std::string::npos && path.find(".anc") == std::string::npos) {
            continue;
        }
        std::string bytes = disk.get(path);
        bytes.back() = static_cast<char>(bytes.back() ^ 1);
        disk.put(path, bytes);
        verify_report report;
        CHECK(s->verify(report).is_ok());
        CHECK(report.damaged.size() == 1 && report.damaged[0].path == path);
        verify_report beside;
        CHECK(s->verify_beside([] { return false; }, beside).is_ok());
        CHECK(beside.damaged.size() == 1 && beside.damaged[0].path == path && beside.n_files == 4);
        bytes.back() = static_cast<char>(bytes.back() ^ 1);
        disk.put(path, bytes);
    }
    verify_report given_up;
    CHECK(s->verify_beside([] { return true; }, given_up).is_miss());
    CHECK(given_up.n_files == 0);
}

int main() {
    return run_tests();
}

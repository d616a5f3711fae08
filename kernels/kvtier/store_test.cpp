// These hold for a user of the store whose disk works.
#include "kvtier/file_names.h"
#include "kvtier/store_testing.h"
#include "kvtier/unsynced_env.h"

#include <atomic>

using namespace kvtier;
using namespace kvtier::test;

TEST(a_saved_turn_is_found_again) {
    fault_env   disk;
    const model m;
    std::vector<token> tokens = random_tokens(1, 100);
    {
        auto s = open(disk, m.options());
        CHECK(m.restore(*s, tokens) == 0);
        CHECK(m.save(*s, tokens).is_ok());
        CHECK(m.restore(*s, tokens) == 100);
    }
    auto s = open(disk, m.options()); // from the files alone
    CHECK(m.restore(*s, tokens) == 100);
    append(tokens, 2, 50);
    const match longer = m.lookup(*s, tokens);
    CHECK(longer.n_tokens == 100);
    CHECK(longer.reason == miss_reason::not_stored);
    CHECK(longer.kind == match_kind::prefix); // below 1024 tokens, a longer prompt has another conversation hash
    CHECK(longer.source == match_source::cold);
    CHECK(s->stats().values.damaged_total() == 0);
}

TEST(a_prompt_that_departs_within_a_page_keeps_what_it_shares) {
    fault_env   disk;
    const model m;
    const std::vector<token> stored = random_tokens(1, 100);
    auto s = open(disk, m.options());
    CHECK(m.save(*s, stored).is_ok());
    for (size_t n = 0; n < 100; n++) {
        std::vector<token> prompt = stored;
        prompt[n] ^= 1;
        const match found = m.lookup(*s, prompt);
        CHECK(found.n_common == n);
        CHECK(found.n_tokens == n);
        CHECK(found.reason == miss_reason::diverged);
        CHECK(m.restore(*s, prompt) == n);
    }
}

TEST(a_turn_writes_only_what_is_new) {
    fault_env disk;
    model     m;
    m.page_size       = 256;
    m.bytes_per_token = 2048; // a small real model; the smaller, the more the heads weigh
    auto               s      = open(disk, m.options());
    std::vector<token> tokens = random_tokens(1, 2500);
    uint64_t           before = 0;
    for (int turn = 0; turn < 20; turn++) {
        const uint64_t n_new = turn == 0 ? tokens.size() : 300;
        if (turn > 0) {
            append(tokens, 100 + turn, n_new);
        }
        CHECK(m.save(*s, tokens, 2000).is_ok());
        const uint64_t written = disk.bytes_appended() - before;
        before = disk.bytes_appended();
        CHECK(written >= n_new * m.bytes_per_token);
        CHECK(written * 100 <= n_new * m.bytes_per_token * 105);
    }
    std::printf("  20 turns: %.4f x the bytes of new tokens\n",
                static_cast<double>(disk.bytes_appended()) / static_cast<double>(tokens.size() * m.bytes_per_token));
    CHECK(s->stats().values.bytes_written == disk.bytes_appended() - sizeof(names::tag_text) + 1);
    CHECK(m.restore(*s, tokens) == tokens.size());
}

TEST(a_turn_with_anchors_writes_its_rows_once) {
    fault_env disk;
    model     m;
    m.page_size       = 256;
    m.bytes_per_token = 2048;
    m.folded_size     = 300000;
    auto               s       = open(disk, m.options());
    std::vector<token> tokens  = random_tokens(1, 2500);
    uint64_t           before  = 0;
    uint64_t           anchors = 0;
    for (int turn = 0; turn < 20; turn++) {
        const uint32_t old   = static_cast<uint32_t>(tokens.size());
        const uint64_t n_new = turn == 0 ? tokens.size() : 300;
        if (turn > 0) {
            append(tokens, 100 + turn, n_new);
        }
        const uint64_t had = s->stats().values.anchors_written;
        const std::vector<uint32_t> at = { turn == 0 ? 2000 : old + 50 };
        CHECK(m.save(*s, tokens, 2000, true, at).is_ok());
        anchors = s->stats().values.anchors_written - had;
        const uint64_t written = disk.bytes_appended() - before;
        before = disk.bytes_appended();
        CHECK(anchors == 2);
        CHECK(written * 100 <= (n_new * m.bytes_per_token + anchors * m.folded_size) * 105);
    }
    CHECK(m.restore(*s, tokens) == tokens.size());
}

TEST(a_shared_prefix_is_stored_once) {
    fault_env disk;
    model     m;
    m.page_size       = 256;
    m.bytes_per_token = 1024;
    auto                     s        = open(disk, m.options());
    const std::vector<token> prefix   = random_tokens(1, 2000);
    uint64_t                 expected = 2000 * 1024;
    for (uint64_t i = 0; i < 16; i++) {
        std::vector<token> tokens = prefix;
        append(tokens, 10 + i, 150);
        expected += 150 * 1024;
        CHECK(m.save(*s, tokens, 2000).is_ok());
    }
    std::printf("  16 conversations: %.4f x one prefix and the tails\n",
                static_cast<double>(disk.disk_bytes()) / static_cast<double>(expected));
    CHECK(disk.disk_bytes() * 100 <= expected * 110);
    CHECK(counts_what_is_there(*s, disk));
    for (uint64_t i = 0; i < 16; i++) {
        std::vector<token> tokens = prefix;
        append(tokens, 10 + i, 150);
        CHECK(m.restore(*s, tokens) == 2150);
    }
    const auto list = s->list();
    CHECK(list.size() == 1); // the same first 1024 tokens
}

TEST(folded_state_is_used_at_its_own_length_alone) {
    fault_env disk;
    model     m;
    m.folded_size = 200;
    std::vector<token> tokens = random_tokens(1, 100);
    auto s = open(disk, m.options());
    CHECK(m.save(*s, tokens, 40, true, { 40 }).is_ok());
    CHECK(m.restore(*s, tokens) == 100);
    std::vector<token> prompt = tokens;
    append(prompt, 2, 30);
    CHECK(m.restore(*s, prompt) == 100);
    for (size_t n = 0; n < 100; n++) {
        prompt    = tokens;
        prompt[n] = -1;
        const match found = m.lookup(*s, prompt);
        CHECK(found.n_common == n);
        CHECK(found.n_tokens == (n >= 40 ? 40u : 0u));
        CHECK(n <= 40 || found.reason == miss_reason::no_anchor);
        CHECK(m.restore(*s, prompt) == found.n_tokens);
    }
    s = nullptr;
    s = open(disk, m.options());
    CHECK(m.restore(*s, tokens) == 100);
    // An anchor may lie amid a page that another conversation stored whole.
    prompt.assign(tokens.begin(), tokens.begin() + 57);
    CHECK(m.save(*s, prompt).is_ok());
    CHECK(m.restore(*s, prompt) == 57);
    CHECK(m.restore(*s, tokens) == 100);
}

TEST(an_anchor_of_several_parts_is_whole_or_not_given) {
    for (const bool cut : { false, true }) {
        fault_env disk;
        model     m;
        m.folded_size = (size_t(20) << 20) + 123;
        const std::vector<token> tokens = random_tokens(1, 64);
        auto s = open(disk, m.options());
        CHECK(m.save(*s, tokens).is_ok());
        s = nullptr;
        s = open(disk, m.options());
        CHECK(m.restore(*s, tokens) == 64);

        s = nullptr;
        s = open(disk, m.options());
        for (const std::string & path : disk.files()) {
            if (path.find(".anc") != std::string::npos) {
                std::string bytes = disk.get(path);
                bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
                disk.put(path, cut ? bytes.substr(0, bytes.size() / 2) : bytes);
            }
        }
        CHECK(m.restore(*s, tokens) == 0);
        CHECK(s->stats().values.damaged_total() == 1); // one file, however many parts of it are missed
    }
}

TEST(a_model_without_attention_rows_is_stored) {
    fault_env disk;
    model     m;
    m.bytes_per_token = 0;
    m.folded_size     = 500;
    std::vector<token> tokens = random_tokens(1, 100);
    auto s = open(disk, m.options());
    CHECK(m.save(*s, tokens, 40, true, { 40 }).is_ok());
    s = nullptr;
    s = open(disk, m.options());
    append(tokens, 2, 10);
    disk.reset_calls();
    CHECK(m.restore(*s, tokens) == 100);
    CHECK(disk.calls() == 2); // only the anchor is opened and read
    tokens[70] ^= 1;
    CHECK(m.restore(*s, tokens) == 40);
}

TEST(a_user_finds_nothing_that_another_user_stored) {
    fault_env disk;
    model     alice, bob;
    alice.user = "alice";
    bob.user   = "../bob"; // would be a path if it became one
    const std::vector<token> tokens = random_tokens(1, 64);
    auto s = open(disk, alice.options());
    CHECK(alice.save(*s, tokens).is_ok());
    CHECK(bob.restore(*s, tokens) == 0);
    CHECK(model{}.restore(*s, tokens) == 0);
    CHECK(bob.save(*s, tokens).is_ok());
    s = nullptr;
    s = open(disk, alice.options());
    CHECK(alice.restore(*s, tokens) == 64);
    CHECK(bob.restore(*s, tokens) == 64);
    for (const std::string & path : disk.files()) {
        CHECK(path.find("bob") == std::string::npos);
    }
    uint64_t freed = 0;
    CHECK(s->remove_name_space(user_key("alice"), freed).is_ok());
    CHECK(freed > 0);
    CHECK(alice.restore(*s, tokens) == 0);
    CHECK(bob.restore(*s, tokens) == 64);
    for (const std::string & path : disk.files()) {
        CHECK(path.find(hex(user_key("alice"))) == std::string::npos);
    }
    CHECK(alice.save(*s, tokens).is_ok());
    CHECK(alice.restore(*s, tokens) == 64);
}

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

TEST(limits_of_checkpoints_and_conversations_hold_across_restarts) {
    fault_env     disk;
    model         m;
    store_options o = m.options();
    o.max_checkpoints   = 5;
    o.max_cold          = 3;
    o.max_conversations = 4;
    std::vector<std::vector<token>> talks;
    for (int i = 0; i < 10; i++) {
        talks.push_back(random_tokens(static_cast<uint64_t>(i), 1100));
    }
    auto s = open(disk, o);
    for (int turn = 0; turn < 12; turn++) {
        append(talks[0], 50 + static_cast<uint64_t>(turn), 30);
        CHECK(m.save(*s, talks[0]).is_ok());
    }
    CHECK(s->list().at(0).turns == 5);
    for (const auto & tokens : talks) {
        CHECK(m.save(*s, tokens).is_ok());
        s = nullptr;
        s = open(disk, o); // limits hold across restarts
    }
    CHECK(s->list().size() == 4);
    CHECK(m.restore(*s, talks[9]) == 1100);
    CHECK(m.restore(*s, talks[1]) == 0);
    for (const auto & info : s->list()) {
        CHECK(info.turns <= 5);
    }
}

TEST(a_conversation_being_restored_is_readable_to_the_end) {
    fault_env     disk;
    const model   m;
    store_options o = m.options();
    o.max_conversations = 2;
    const std::vector<token> a = random_tokens(1, 64);
    auto s = open(disk, o);
    CHECK(m.save(*s, a).is_ok());
    {
        const match held = m.lookup(*s, a);
        for (uint64_t i = 0; i < 4; i++) {
            CHECK(m.save(*s, random_tokens(100 + i, 64)).is_ok());
            CHECK(s->list().size() <= 2);
        }
        loaded_state state;
        CHECK(s->load(held, a.data(), a.size(), state).is_ok());
        CHECK(m.is_right(state, a));
    }
    CHECK(m.save(*s, random_tokens(104, 64)).is_ok());
    CHECK(s->list().size() == 2);
    CHECK(m.restore(*s, a) == 0);
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

TEST(tiers_follow_turns) {
    fault_env     disk;
    model         m;
    store_options o = m.options();
    o.ram_bytes = 1 << 20;
    const std::vector<token> a = random_tokens(1, 64);
    auto s = open(disk, o);
    CHECK(m.save(*s, a).is_ok());
    CHECK(m.lookup(*s, a).source == match_source::hot);
    const auto other_turn = [&](uint64_t i) { CHECK(m.save(*s, random_tokens(100 + i, 64)).is_ok()); };
    other_turn(0);
    CHECK(m.lookup(*s, a).source == match_source::hot);
    other_turn(1);
    other_turn(2);
    CHECK(m.lookup(*s, a).source == match_source::warm);
    CHECK(m.restore(*s, a) == 64); // a hit makes it hot
    CHECK(m.lookup(*s, a).source == match_source::hot);
    for (uint64_t i = 3; i < 8; i++) {
        other_turn(i);
    }
    CHECK(m.lookup(*s, a).source == match_source::cold);
    CHECK(m.restore(*s, a) == 64);
    CHECK(m.lookup(*s, a).source == match_source::hot);
}

TEST(a_second_store_of_the_same_folder_is_refused) {
    fault_env   disk;
    const model m;
    auto first = open(disk, m.options());
    std::unique_ptr<store> second;
    const status s = store::open(disk, m.options(), second);
    CHECK(s.is_busy());
    CHECK(s.message().find("process 1") != std::string::npos);
}

TEST(a_disk_that_turns_read_only_loses_nothing_stored) {
    fault_env   disk;
    const model m;
    const std::vector<token> a = random_tokens(1, 64), b = random_tokens(2, 64);
    auto s = open(disk, m.options());
    CHECK(m.save(*s, a).is_ok());
    disk.set_read_only(true);
    CHECK(m.save(*s, b).is_io_error());
    CHECK(m.restore(*s, a) == 64);
    CHECK(m.restore(*s, b) == 0);
    CHECK(s->stats().values.skipped_io_error == 1);
    s = nullptr;
    std::unique_ptr<store> again;
    CHECK(store::open(disk, m.options(), again).is_io_error());
    disk.set_read_only(false);
    s = open(disk, m.options());
    CHECK(m.restore(*s, a) == 64);
}

TEST(a_full_disk_loses_nothing_stored) {
    fault_env   disk;
    const model m;
    const std::vector<token> a = random_tokens(1, 64), b = random_tokens(2, 640);
    auto s = open(disk, m.options());
    CHECK(m.save(*s, a).is_ok());
    uint64_t used = 0;
    for (const std::string & path : disk.files()) {
        used += disk.get(path).size();
    }
    for (uint64_t room : { 0, 100, 1000, 5000, 8000 }) {
        disk.set_capacity(used + room);
        CHECK(m.save(*s, b).is_no_space());
        CHECK(m.restore(*s, a) == 64);
    }
    CHECK(s->stats().values.skipped_no_space == 5);
    CHECK(counts_what_is_there(*s, disk));
    disk.set_capacity(0);
    CHECK(m.save(*s, b).is_ok());
    CHECK(m.restore(*s, b) == 640);
}

TEST(no_failing_call_of_a_save_breaks_serving) {
    const model m;
    const std::vector<token> a = random_tokens(1, 64), b = random_tokens(2, 100);
    for (fault what : { fault::io_error, fault::no_space, fault::no_access, fault::short_append }) {
        for (size_t n = 1;; n++) {
            fault_env disk;
            auto s = open(disk, m.options());
            CHECK(m.save(*s, a).is_ok());
            disk.reset_calls();
            disk.fail_at(n, what);
            const bool saved = m.save(*s, b).is_ok();
            const bool met   = disk.calls() >= n;
            CHECK(m.restore(*s, a) == 64);
            CHECK(m.restore(*s, b) == (saved ? 100u : m.lookup(*s, b).n_tokens));
            disk.reset_calls();
            CHECK(m.save(*s, b).is_ok());
            CHECK(m.restore(*s, b) == 100);
            CHECK(counts_what_is_there(*s, disk));
            if (!met) {
                break;
            }
        }
    }
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
        CHECK(s->remove_conversation({}, hash, freed).is_ok());
        CHECK(disk.files().size() == at_first + 1);
        CHECK(counts_what_is_there(*s, disk));
        disk.no_remove = "";
        CHECK(s->gc(freed).is_ok());
        CHECK(disk.files().size() == at_first);
        CHECK(!disk.exists("/cache/" + hex(m.options().fingerprint) + "/" + hex(hash)));
        CHECK(counts_what_is_there(*s, disk));
    }
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

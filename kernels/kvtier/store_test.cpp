// These hold for a user of the store whose disk works.
#include "kvtier/file_names.h"
#include "kvtier/store_testing.h"

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

int main() {
    return run_tests();
}

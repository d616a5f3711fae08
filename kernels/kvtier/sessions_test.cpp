// Sessions of one agent: listed apart, counted by limits, and removed or retired without leaving a word behind.
#include "kvtier/session_testing.h"

using namespace kvtier;
using namespace kvtier::test;

TEST(eighty_sessions_of_one_agent_are_eighty_conversations) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    for (uint64_t i = 0; i < 80; i++) {
        CHECK(a.save(*s, i).is_ok());
    }
    CHECK(s->list().size() == 80);
    CHECK(info(*s, 33).title == "session 33");
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, agent::hash(33), freed).is_ok());
    CHECK(freed > 0 && s->list().size() == 79 && !is_listed(*s, 33));
    for (const bool reopened : { false, true }) {
        for (uint64_t i = 0; i < 80; i++) {
            CHECK(a.use(*s, i) == (i == 33 ? 64u : 104u));
        }
        if (!reopened) {
            s = nullptr;
            s = open(disk, a.m.options());
        }
    }
    CHECK(info(*s, 34).title == "session 34");
    const std::vector<token> gone = a.session(33);
    CHECK(!holds_tokens(disk, { gone.begin() + 64, gone.end() }));
}

TEST(a_removed_session_leaves_none_of_its_words_in_files_that_others_need) {
    fault_env disk;
    agent     a;
    a.m.folded_size = 300;
    store_options o = a.m.options();
    o.ram_bytes = 10 << 20;
    auto s = open(disk, o);
    // The first page behind the system prompt is the same, and both sessions have it in the file of the first.
    std::vector<std::vector<token>> talks(2, a.system);
    for (uint64_t i = 0; i < 2; i++) {
        append(talks[i], 5, 16);
        append(talks[i], 100 + i, 40);
        save_request request = a.m.request(*s, talks[i], 64, true, { 64, 84 });
        request.conversation = { agent::hash(i), 64 + 30, "", {} };
        CHECK(s->save(request).is_ok());
    }
    const std::vector<token> own(talks[0].begin() + 80, talks[0].end());
    CHECK(holds_tokens(disk, own));
    const uint64_t before = s->stats().disk_bytes;
    {
        // While somebody reads the file it stays as it is, and nobody finds the words in it later.
        const match held  = a.m.lookup(*s, talks[1]);
        uint64_t    freed = 0;
        CHECK(s->remove_conversation({}, agent::hash(0), freed).is_ok());
    }
    sweep(*s);
    for (const bool reopened : { false, true }) {
        CHECK(!holds_tokens(disk, own));
        CHECK(s->stats().disk_bytes < before && s->stats().n_anchors == 3);
        CHECK(a.m.restore(*s, talks[0]) == 64);
        CHECK(a.m.restore(*s, talks[1]) == talks[1].size());
        verify_report report;
        CHECK(s->verify(report).is_ok() && report.damaged.empty());
        if (!reopened) {
            s = nullptr;
            s = open(disk, o);
        }
    }
    // What comes back is stored again.
    CHECK(a.m.save(*s, talks[0], 64, true, { 64, 84 }).is_ok());
    CHECK(a.m.restore(*s, talks[0]) == talks[0].size());
    CHECK(s->stats().disk_bytes >= disk.disk_bytes());
}

TEST(what_waits_to_be_cut_out_of_a_file_goes_with_the_file_when_nobody_needs_that_any_more) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    std::vector<std::vector<token>> talks(2, a.system); // The first page behind it is the same, in the file of the first.
    for (uint64_t i = 0; i < 2; i++) {
        append(talks[i], 5, 16);
        append(talks[i], 100 + i, 40);
        save_request request = a.m.request(*s, talks[i], i == 0 ? 64 : 80);
        request.conversation = { agent::hash(i), 64 + 30, "", {} };
        CHECK(s->save(request).is_ok());
    }
    const std::vector<token> own(talks[0].begin() + 80, talks[0].end());
    uint64_t freed = 0;
    {
        const match held = a.m.lookup(*s, talks[1]);
        CHECK(s->remove_conversation({}, agent::hash(0), freed).is_ok());
        CHECK(holds_tokens(disk, own));
    }
    damage_pages_of(disk, { talks[1].begin() + 80, talks[1].end() });
    CHECK(a.m.restore(*s, talks[1]) == 80); // The other one has lost all but a static prefix, and its name with it.
    sweep(*s);
    CHECK(!holds_tokens(disk, own));
    s = nullptr;
    s = open(disk, a.m.options());
    CHECK(a.m.restore(*s, talks[0]) == 64);
}

TEST(a_removed_session_leaves_nothing_that_lost_its_beginning) {
    for (const bool is_expired : { false, true }) {
        for (const bool is_read : { false, true }) { // Somebody reads it while it loses its beginning, and the session goes.
            fault_env disk;
            agent     a;
            auto      s = open(disk, a.m.options());
            disk.set_now_ms(1700000000000);
            const lifetime_change life = expire(1000);
            CHECK(a.save(*s, 1, life).is_ok() && a.save(*s, 2).is_ok());
            const std::vector<token> tokens = a.session(1);
            const std::vector<token> own(tokens.begin() + 64, tokens.end());
            {
                const match held = is_read ? a.m.lookup(*s, tokens) : match();
                damage_pages_of(disk, a.system);
                CHECK(a.m.restore(*s, tokens) == 0);
                CHECK(a.save(*s, 1, life).is_ok() && a.save(*s, 2).is_ok()); // It is evaluated and stored again.
                disk.set_now_ms(1700000000000 + 2000);
                uint64_t freed = 0;
                CHECK(is_expired ? sweep(*s) > 0 : s->remove_conversation({}, agent::hash(1), freed).is_ok());
                CHECK(!is_listed(*s, 1) && is_listed(*s, 2));
                CHECK(holds_tokens(disk, own) == is_read);
            }
            s = nullptr;
            s = open(disk, a.m.options());
            CHECK(!holds_tokens(disk, own));
            CHECK(a.m.restore(*s, tokens) == 64 && a.use(*s, 2) == 104);
        }
    }
}

TEST(a_removed_session_leaves_no_damaged_file) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    CHECK(a.save(*s, 1).is_ok());
    std::vector<token> longer = a.session(1);
    append(longer, 9, 40);
    save_request request = a.m.request(*s, longer, 64);
    request.conversation = { agent::hash(1), 64 + 8, "", {} };
    CHECK(s->save(request).is_ok());
    const std::vector<token> words(longer.begin() + 104, longer.end());
    damage_pages_of(disk, words);
    CHECK(a.m.restore(*s, longer) == 104);
    CHECK(holds_tokens(disk, words)); // It is set aside.
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, agent::hash(1), freed).is_ok());
    CHECK(!holds_tokens(disk, words));
    CHECK(counts_what_is_there(*s, disk));
}

TEST(limits_count_sessions) {
    fault_env     disk;
    agent         a;
    store_options o = a.m.options();
    o.max_conversations = 10;
    auto s = open(disk, o);
    for (uint64_t i = 0; i < 25; i++) {
        CHECK(a.save(*s, i, i == 3 ? ttl(forever_ms) : lifetime_change{}).is_ok());
        CHECK(s->list().size() == std::min<size_t>(i + 1, 10));
    }
    for (uint64_t i = 0; i < 25; i++) {
        CHECK(is_listed(*s, i) == (i >= 16 || i == 3)); // the one that is to be kept, and the newest nine
    }
}

TEST(removing_a_session_leaves_what_another_is_about_to_finish) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    CHECK(a.save(*s, 1).is_ok());
    save_request prompt = a.m.request(*s, a.session(2), 64, false); // its answer is still to come: no checkpoint names it
    CHECK(s->save(prompt).is_ok());
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, agent::hash(1), freed).is_ok());
    CHECK(a.use(*s, 2) == 104);
}

TEST(removing_a_session_leaves_what_another_that_begins_alike_is_about_to_finish) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    std::vector<std::vector<token>> talks(2, a.session(1, 16)); // One first message, and keys of their own.
    for (uint64_t i = 0; i < 2; i++) {
        append(talks[i], 200 + i, 40);
        save_request request = a.m.request(*s, talks[i], 64, i == 0);
        request.conversation = { agent::hash(i), 64 + 8, "", {} };
        CHECK(s->save(request).is_ok());
    }
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, agent::hash(0), freed).is_ok());
    CHECK(a.m.restore(*s, talks[1]) == talks[1].size());
    CHECK(a.m.restore(*s, talks[0]) < talks[0].size());

    // Once it is finished, it goes as any other.
    save_request request = a.m.request(*s, talks[1], 64);
    request.conversation = { agent::hash(1), 64 + 8, "", {} };
    CHECK(s->save(request).is_ok());
    CHECK(s->remove_conversation({}, agent::hash(1), freed).is_ok());
    CHECK(!holds_tokens(disk, { talks[1].begin() + 80, talks[1].end() }));
}

// Its prompt is evaluated, and a part of it is stored: no checkpoint names it yet.
static void save_part(store & s, const agent & a, uint64_t i) {
    save_request part = a.m.request(s, a.session(i), 64, false);
    part.conversation = { agent::hash(i), 64 + 8, "", {} };
    CHECK(s.save(part).is_ok());
}

TEST(a_session_that_is_removed_within_its_first_prompt_leaves_nothing) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    save_part(*s, a, 1);
    const std::vector<token> own = a.session(1);
    CHECK(holds_tokens(disk, { own.begin() + 64, own.end() }));
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, agent::hash(1), freed).is_ok());
    CHECK(freed > 0 && s->stats().n_segments == 0);
    CHECK(!holds_tokens(disk, { own.begin() + 64, own.end() }));
    CHECK(s->remove_conversation({}, agent::hash(1), freed).is_miss());
}

TEST(a_session_that_is_removed_within_its_first_prompt_leaves_what_others_share) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    save_part(*s, a, 1);
    CHECK(a.save(*s, 2).is_ok());
    save_part(*s, a, 3);
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, agent::hash(1), freed).is_ok());
    const std::vector<token> own = a.session(1);
    CHECK(!holds_tokens(disk, { own.begin() + 64, own.end() }));
    CHECK(a.use(*s, 2) == 104 && a.use(*s, 3) == 104);
    CHECK(s->remove_conversation({}, agent::hash(2), freed).is_ok());
    CHECK(a.use(*s, 3) == 104);
    CHECK(s->remove_conversation({}, agent::hash(3), freed).is_ok());
    CHECK(s->stats().n_segments == 0); // Also what the first of them had brought.
}

TEST(a_prompt_that_parted_within_the_page_that_names_it_goes_with_its_session) {
    for (const bool is_first : { false, true }) { // What is left without a checkpoint was stored before the session, or after it.
        fault_env disk;
        agent     a;
        auto      s = open(disk, a.m.options());
        const auto save_other = [&] {
            std::vector<token> other = a.session(1);
            other.resize(64 + 11);
            append(other, 99, 40);
            save_request part = a.m.request(*s, other, 64, false);
            part.conversation = { agent::hash(1), 64 + 8, "", {} };
            return s->save(part).is_ok();
        };
        CHECK(!is_first || save_other());
        CHECK(a.save(*s, 1).is_ok());
        CHECK(is_first || save_other());
        s = nullptr;
        s = open(disk, a.m.options()); // What was awaited is not known any more.
        uint64_t freed = 0;
        CHECK(s->remove_conversation({}, agent::hash(1), freed).is_ok());
        CHECK(files_with(disk, ".seg").empty());
    }
}

TEST(a_prompt_without_messages_that_is_removed_while_it_is_evaluated_leaves_nothing) {
    fault_env disk;
    agent     a;
    auto      s = open(disk, a.m.options());
    const std::vector<token> tokens = random_tokens(7, 1200);
    CHECK(a.m.save(*s, tokens, 0, false).is_ok());
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, conversation_hash(tokens.data(), tokens.size()), freed).is_ok());
    CHECK(s->stats().n_segments == 0);
}

TEST(a_session_whose_first_message_has_changed_is_removed_whole) {
    fault_env     disk;
    agent         a;
    store_options o = a.m.options();
    o.max_checkpoints = 2;
    auto s = open(disk, o);
    const std::vector<token> before = a.session(1);
    CHECK(a.save(*s, 1).is_ok());
    for (size_t n_own : { 40, 60, 80 }) { // Its client has compacted the history: another beginning, one key.
        const std::vector<token> now = a.session(2, n_own);
        save_request request = a.m.request(*s, now, 64);
        request.conversation = { agent::hash(1), 64 + 8, "", {} };
        CHECK(s->save(request).is_ok());
    }
    CHECK(s->list().size() == 1 && info(*s, 1).turns == 2);
    s = nullptr;
    s = open(disk, o);
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, agent::hash(1), freed).is_ok());
    CHECK(!holds_tokens(disk, { before.begin() + 64, before.end() }));
}

// A session that goes on otherwise behind the first words of another's message.
static status save_branch(store & s, const agent & a, const std::vector<token> & of, uint64_t number, std::vector<token> & out) {
    out.assign(of.begin(), of.begin() + 64 + 16);
    append(out, 2000 + number, 40);
    save_request request = a.m.request(s, out, 64);
    request.conversation = { agent::hash(number), 64 + 8, "", {} };
    return s.save(request);
}

TEST(a_history_that_is_retired_leaves_nothing_of_itself_in_what_others_share) {
    fault_env     disk;
    agent         a;
    store_options o = a.m.options();
    o.max_checkpoints = 1;
    auto s = open(disk, o);
    const std::vector<token> before = a.session(1);
    std::vector<token>       other;
    CHECK(a.save(*s, 1).is_ok() && save_branch(*s, a, before, 3, other).is_ok());
    save_request request = a.m.request(*s, a.session(2), 64); // Its client has compacted the history.
    request.conversation = { agent::hash(1), 64 + 8, "", {} };
    CHECK(s->save(request).is_ok());
    CHECK(!holds_tokens(disk, { before.begin() + 80, before.end() }));
    CHECK(a.use(*s, 2) == 104 && a.m.restore(*s, other) == other.size());
}

TEST(a_session_that_makes_another_one_go_shares_its_file_without_it) {
    fault_env     disk;
    agent         a;
    store_options o = a.m.options();
    o.max_conversations = 1;
    auto s = open(disk, o);
    const std::vector<token> gone = a.session(1);
    std::vector<token>       other;
    CHECK(a.save(*s, 1).is_ok() && save_branch(*s, a, gone, 3, other).is_ok());
    CHECK(!is_listed(*s, 1) && !holds_tokens(disk, { gone.begin() + 80, gone.end() }));
    CHECK(a.m.restore(*s, other) == other.size());
}

TEST(a_session_beyond_the_limit_leaves_nothing_of_itself_in_what_others_share) {
    fault_env     disk;
    agent         a;
    store_options o = a.m.options();
    o.max_conversations = 2;
    auto s = open(disk, o);
    const std::vector<token> gone = a.session(1);
    std::vector<token>       other;
    CHECK(a.save(*s, 1).is_ok() && save_branch(*s, a, gone, 3, other).is_ok() && a.save(*s, 2).is_ok());
    CHECK(!is_listed(*s, 1) && !holds_tokens(disk, { gone.begin() + 80, gone.end() }));
    CHECK(a.use(*s, 2) == 104 && a.m.restore(*s, other) == other.size());
}

TEST(a_session_whose_end_is_evicted_goes_whole) {
    for (const bool is_folded : { false, true }) {
        for (const bool is_shared : { false, true }) { // Another one, which is kept, goes on from its first page.
            fault_env disk;
            agent     a;
            a.m.folded_size = is_folded ? 60000 : 0;
            store_options o = a.m.options();
            o.max_bytes     = 500 << 10;
            o.segment_bytes = 4096; // A turn takes several.
            auto s = open(disk, o);
            CHECK(a.save(*s, 1, {}, 320).is_ok());
            const std::vector<token> tokens = a.session(1, 320);
            std::vector<token>       other;
            if (is_shared) {
                CHECK(save_branch(*s, a, tokens, 3, other).is_ok());
                CHECK(s->set_lifetime({}, agent::hash(3), ttl(forever_ms)).is_ok());
            }
            for (uint64_t i = 10; i < 400 && is_listed(*s, 1); i++) {
                CHECK(a.save(*s, i, {}, 320).is_ok());
            }
            CHECK(!is_listed(*s, 1));
            for (size_t at = is_shared ? 80 : 64; at + 16 <= tokens.size(); at += 16) { // A page of its words.
                const auto page = tokens.begin() + static_cast<std::ptrdiff_t>(at);
                CHECK(!holds_tokens(disk, { page, page + 16 }));
            }
            CHECK(!is_shared || a.m.restore(*s, other) == other.size());
            CHECK(is_folded || holds_tokens(disk, a.system)); // Others begin with it.
            CHECK(counts_what_is_there(*s, disk));
        }
    }
}

TEST(a_session_that_is_read_or_goes_on_while_its_end_is_evicted_keeps_the_rest) {
    for (const bool goes_on : { false, true }) {
        fault_env disk;
        agent     a;
        store_options o = a.m.options();
        o.max_bytes     = 500 << 10;
        o.segment_bytes = 4096;
        auto s = open(disk, o);
        CHECK(a.save(*s, 1, {}, 320).is_ok());
        std::vector<token> tokens = a.session(1, 320);
        tokens.resize(64 + 160);
        append(tokens, 9, 32);
        match held;
        if (goes_on) { // Its history was changed, and its next answer is still to come.
            save_request part = a.m.request(*s, tokens, 64, false);
            part.conversation = { agent::hash(1), 64 + 8, "", {} };
            CHECK(s->save(part).is_ok());
        } else {
            tokens.resize(64 + 160);
            held = a.m.lookup(*s, tokens);
        }
        for (uint64_t i = 10; i < 400 && is_listed(*s, 1); i++) {
            CHECK(a.save(*s, i, {}, 320).is_ok());
        }
        CHECK(!is_listed(*s, 1));
        CHECK(a.m.restore(*s, tokens) >= 64 + 160);
    }
}

int main() {
    return run_tests();
}

// Histories as tables: what is kept of them, and what never is dropped or parted. Properties over random histories are
// tested in tests/unit/test_history.py.
#include "history/cut.h"
#include "kvtier/testing.h"

using namespace history;

namespace {

message says(role r, uint32_t n_tokens) {
    message m;
    m.role     = r;
    m.n_tokens = n_tokens;
    return m;
}

message calls(uint32_t n_tokens, std::vector<std::string> ids) {
    message m = says(role::assistant, n_tokens);
    m.calls   = std::move(ids);
    return m;
}

message brings(uint32_t n_tokens, std::vector<std::string> ids) {
    message m = says(role::tool, n_tokens);
    m.results = std::move(ids);
    return m;
}

// A system message and exchanges of a question (10 tokens) and an answer (40).
std::vector<message> talk(size_t n_exchanges) {
    std::vector<message> out = { says(role::system, 100) };
    for (size_t i = 0; i < n_exchanges; i++) {
        out.push_back(says(role::user, 10));
        out.push_back(says(role::assistant, 40));
    }
    return out;
}

// High mark 850, low mark 450; the next cut is settled from 765 on, with 365 left then.
limits thousand() {
    limits l;
    l.n_tokens = 1000;
    return l;
}

bool is_kept(const cut & c, size_t index) {
    for (const range & r : c.kept) {
        if (r.begin <= index && index < r.end) {
            return true;
        }
    }
    return false;
}

bool equal(const std::vector<range> & a, const std::vector<range> & b) {
    if (a.size() != b.size()) {
        return false;
    }
    for (size_t i = 0; i < a.size(); i++) {
        if (a[i].begin != b[i].begin || a[i].end != b[i].end) {
            return false;
        }
    }
    return true;
}

} // namespace

TEST(nothing_is_dropped_up_to_the_high_mark) {
    const cut c = cut_history(talk(15), thousand()); // 850 tokens
    CHECK(equal(c.kept, { { 0, 31 } }));
    CHECK(c.n_tokens == 850 && c.n_over == 0 && c.n_dropped == 0 && c.n_cuts == 0);
}

TEST(an_empty_history_fits) {
    const cut c = cut_history({}, thousand());
    CHECK(c.kept.empty() && c.ahead.empty() && c.n_tokens == 0 && c.n_over == 0);
}

TEST(past_the_high_mark_whole_exchanges_go_down_to_the_low_mark) {
    std::vector<message> h = talk(15);
    h.push_back(says(role::user, 10));
    const cut c = cut_history(h, thousand());
    CHECK(equal(c.kept, { { 0, 1 }, { 19, 32 } })); // nine exchanges went
    CHECK(c.n_tokens == 410 && c.n_dropped == 18 && c.n_tokens_dropped == 450 && c.n_cuts == 1);
}

TEST(the_next_cut_is_known_before_it_comes) {
    CHECK(cut_history(talk(13), thousand()).ahead.empty());
    const cut before = cut_history(talk(14), thousand());
    CHECK(equal(before.kept, { { 0, 29 } }));
    CHECK(equal(before.ahead, { { 0, 1 }, { 19, 29 } }));
    std::vector<message> h = talk(15);
    h.push_back(says(role::user, 10));
    CHECK(equal(cut_history(h, thousand()).kept, { { 0, 1 }, { 19, 32 } }));
}

TEST(a_cut_that_would_leave_much_is_not_settled_before_a_better_one_comes) {
    std::vector<message> h = { says(role::user, 10), says(role::assistant, 40), says(role::user, 10),
                               says(role::assistant, 720) };
    CHECK(cut_history(h, thousand()).ahead.empty()); // dropping the first exchange would leave 730
    h.push_back(says(role::user, 20));
    CHECK(equal(cut_history(h, thousand()).ahead, { { 4, 5 } }));
    h.push_back(says(role::assistant, 60));
    const cut c = cut_history(h, thousand());
    CHECK(equal(c.kept, { { 4, 6 } }));
    CHECK(c.n_cuts == 1);
}

TEST(the_note_counts_once_something_was_left_out) {
    limits l        = thousand();
    l.n_note_tokens = 30;
    CHECK(cut_history(talk(15), l).n_tokens == 850);
    std::vector<message> h = talk(15);
    h.push_back(says(role::user, 10));
    const cut c = cut_history(h, l);
    CHECK(c.n_tokens == 860 - c.n_tokens_dropped + 30);
}

TEST(what_follows_the_last_user_message_stays_and_the_excess_is_told) {
    std::vector<message> h = talk(3);
    h.push_back(says(role::user, 10));
    for (int i = 0; i < 5; i++) {
        h.push_back(calls(20, { "a" }));
        h.push_back(brings(280, { "a" }));
    }
    const cut c = cut_history(h, thousand());
    CHECK(equal(c.kept, { { 0, 1 }, { 7, 18 } }));
    CHECK(c.n_tokens == 1610 && c.n_over == 610);
}

TEST(system_messages_stay_wherever_they_stand) {
    std::vector<message> h = talk(2);
    h.push_back(says(role::system, 5));
    for (int i = 0; i < 16; i++) {
        h.push_back(says(role::user, 10));
        h.push_back(says(role::assistant, 40));
    }
    const cut c = cut_history(h, thousand());
    CHECK(c.n_cuts == 1 && is_kept(c, 0) && is_kept(c, 5) && !is_kept(c, 4) && !is_kept(c, 6));
}

TEST(a_result_behind_another_user_message_keeps_its_call) {
    std::vector<message> h = { says(role::system, 100), says(role::user, 10), says(role::assistant, 300),
                               says(role::user, 10), calls(300, { "x" }), says(role::user, 10),
                               brings(50, { "x" }), says(role::assistant, 100) };
    const cut c = cut_history(h, thousand()); // the boundary before the last user message would part them
    CHECK(!is_kept(c, 1) && !is_kept(c, 2));
    CHECK(is_kept(c, 3) && is_kept(c, 4) && is_kept(c, 6));
}

TEST(a_call_that_runs_is_not_left_without_its_result) {
    const std::vector<message> h = { says(role::user, 10), says(role::assistant, 200), says(role::user, 10),
                                     calls(500, { "x" }), says(role::user, 200) };
    const cut c = cut_history(h, thousand());
    CHECK(!is_kept(c, 0) && is_kept(c, 2) && is_kept(c, 3) && is_kept(c, 4));
}

TEST(a_call_that_nobody_answers_does_not_hold_the_history_for_ever) {
    std::vector<message> h = talk(1);
    h.push_back(says(role::user, 10));
    h.push_back(calls(40, { "lost" }));
    for (int i = 0; i < 40; i++) {
        h.push_back(says(role::user, 10));
        h.push_back(says(role::assistant, 40));
    }
    const cut c = cut_history(h, thousand());
    CHECK(!is_kept(c, 4) && c.n_tokens <= 850);
}

TEST(results_in_a_users_name_belong_to_the_exchange_before) {
    std::vector<message> h = { says(role::user, 10), calls(400, { "1" }) };
    message result = says(role::user, 400);
    result.results = { "1" };
    h.push_back(result);
    h.push_back(says(role::assistant, 100));
    const cut c = cut_history(h, thousand());
    CHECK(equal(c.kept, { { 0, 4 } }));
    CHECK(c.n_tokens == 910 && c.n_over == 0);
}

TEST(a_history_without_a_user_is_left_alone) {
    const cut c = cut_history({ says(role::system, 600), says(role::assistant, 600) }, thousand());
    CHECK(equal(c.kept, { { 0, 2 } }));
    CHECK(c.n_over == 200);
}

TEST(no_room_at_all_keeps_what_must_stay) {
    const cut c = cut_history(talk(4), limits());
    CHECK(equal(c.kept, { { 0, 1 }, { 7, 9 } }));
    CHECK(c.n_over == 150);
}

int main() {
    return kvtier::run_tests();
}

// Folded state is written when its conversation rests, is found before that, and is never lost by anything but a kill.
#include "kvtier/file_names.h"
#include "kvtier/settling.h"
#include "kvtier/store_testing.h"
#include "kvtier/write_budget.h"
#include "kvtier/writer.h"

#include <atomic>
#include <chrono>
#include <thread>

using namespace kvtier;
using namespace kvtier::test;
using namespace std::chrono_literals;

// A hybrid's model, and RAM for what is kept back.
static model hybrid() {
    model m;
    m.folded_size = 100;
    return m;
}

static store_options with_ram(const model & m, uint64_t bytes = 1 << 20) {
    store_options o = m.options();
    o.ram_bytes     = bytes;
    return o;
}

static save_request planned(const writer & w, const model & m, const std::vector<token> & tokens, std::vector<uint32_t> anchors,
                            bool complete = true, uint32_t n_static = 0, uint32_t n_prompt = 0) {
    plan_request p;
    p.root     = m.root();
    p.tokens   = tokens.data();
    p.n_tokens = tokens.size();
    p.n_static = n_static;
    p.anchors  = std::move(anchors);
    save_request out = w.plan(p);
    m.fill(out);
    out.checkpoint = complete;
    out.n_prompt   = n_prompt;
    return out;
}

static save_request named(uint64_t conversation, save_request request) {
    request.conversation.hash     = conversation;
    request.conversation.n_naming = 16;
    return request;
}

static std::vector<token> first(const std::vector<token> & of, size_t n) {
    return { of.begin(), of.begin() + static_cast<std::ptrdiff_t>(n) };
}

static void drain(const writer & w) {
    while (w.queued() > 0) {
        std::this_thread::sleep_for(1ms);
    }
}

TEST(a_turn_that_rests_is_found_before_it_is_written) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  tokens = random_tokens(1, 64);
    CHECK(w.enqueue(planned(w, m, tokens, { 60, 64 })));
    drain(w);
    CHECK(s->stats().values.anchors_written == 0);
    CHECK(w.unwritten() == 2);
    CHECK(m.restore(*s, tokens) == 64);
    CHECK(s->list().empty());
    w.flush();
    CHECK(w.unwritten() == 0);
    CHECK(s->stats().values.anchors_written == 2);
    CHECK(s->list().size() == 1);
    CHECK(m.restore(*s, tokens) == 64);
}

TEST(what_the_next_turn_makes_needless_is_never_written) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  tokens = random_tokens(2, 400);
    for (uint32_t n = 80; n <= 400; n += 40) {
        CHECK(w.enqueue(named(7, planned(w, m, first(tokens, n - 8), { 20, n - 20, n - 12 }, false, 20, n - 8)))); // the prompt
        CHECK(w.enqueue(named(7, planned(w, m, first(tokens, n), { n }, true, 20, n - 8))));                       // its answer
    }
    drain(w);
    CHECK(s->stats().values.anchors_written == 1); // of the static prefix
    CHECK(m.restore(*s, tokens) == 400);
    w.flush();
    CHECK(s->stats().values.anchors_written == 4);
    CHECK(s->stats().values.anchors_superseded == 8 * 3);
    CHECK(m.restore(*s, tokens) == 400);
    CHECK(m.restore(*s, first(tokens, 200)) == 20);
}

static save_request with_shared(save_request request, uint32_t at) {
    for (save_anchor & a : request.anchors) {
        a.is_shared = a.n_tokens == at;
    }
    return request;
}

TEST(what_other_conversations_go_on_from_outlasts_its_turn) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  document = random_tokens(25, 100);
    auto        talk = document;
    append(talk, 26, 100);
    CHECK(w.enqueue(named(7, with_shared(planned(w, m, first(talk, 120), { 100, 116 }, false, 0, 120), 100))));
    CHECK(w.enqueue(named(7, planned(w, m, first(talk, 130), { 130 }, true, 0, 120))));
    for (const uint32_t n : { 160u, 200u }) {
        CHECK(w.enqueue(named(7, planned(w, m, first(talk, n), { n - 10, n }, true, 0, n - 6))));
    }
    drain(w);
    CHECK(s->stats().values.anchors_superseded == 4);
    auto other = document;
    append(other, 27, 30);
    CHECK(m.restore(*s, other) == 100);
    CHECK(s->stats().values.anchors_written == 0);
    w.flush();
    CHECK(s->stats().values.anchors_written == 3);
    CHECK(m.restore(*s, other) == 100);
}

TEST(of_what_others_go_on_from_a_conversation_keeps_the_newest_few) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  tokens = random_tokens(28, 400);
    for (uint32_t n = 80; n <= 400; n += 40) { // Each one parts from what is known, as where an agent edits its past.
        CHECK(w.enqueue(named(7, with_shared(planned(w, m, first(tokens, n), { n - 20, n }, true, 0, n - 8), n - 20))));
    }
    drain(w);
    CHECK(w.unwritten() == 3);
    CHECK(m.restore(*s, first(tokens, 399)) == 380);
    CHECK(m.restore(*s, first(tokens, 379)) == 340);
    CHECK(m.restore(*s, first(tokens, 339)) == 0);
}

TEST(of_what_others_wait_for_within_one_turn_nothing_goes) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  tokens = random_tokens(33, 200);
    for (const uint32_t n : { 60u, 100u, 140u, 180u }) { // A long prompt is handed over where each of them parts.
        CHECK(w.enqueue(named(7, with_shared(planned(w, m, first(tokens, n), { n }, false), n))));
    }
    drain(w);
    CHECK(w.unwritten() == 4);
    CHECK(m.restore(*s, first(tokens, 99)) == 60);
}

TEST(what_others_go_on_from_keeps_no_turn_from_being_written) {
    size_t n_without = 0;
    for (uint64_t per_day = 1000; per_day <= 20000; per_day += 100) {
        fault_env     disk;
        const model   m       = hybrid();
        store_options options = with_ram(m);
        CHECK(disk.make_dir(options.root_dir).is_ok());
        options.writes = std::make_shared<write_budget>(disk, options.root_dir, per_day);
        auto       s = open(disk, options);
        writer     w(*s, 1 << 20, {}, 1h);
        const auto tokens = random_tokens(34, 80);
        CHECK(w.enqueue(named(7, with_shared(planned(w, m, tokens, { 42, 80 }, true, 0, 72), 42))));
        w.flush();
        CHECK(s->stats().values.anchors_written == 0 || m.restore(*s, tokens) == 80);
        n_without += s->stats().values.anchors_written == 1;
    }
    CHECK(n_without > 0);
}

TEST(what_others_go_on_from_costs_no_turn_its_name_on_a_full_disk) {
    size_t n_without = 0;
    for (uint64_t capacity = 10 * 1000; capacity <= 80 * 1000; capacity += 1000) {
        fault_env disk;
        model     m   = hybrid();
        m.folded_size = 20 * 1000;
        auto       s = open(disk, with_ram(m));
        writer     w(*s, 1 << 20, {}, 1h);
        const auto tokens = random_tokens(38, 80);
        disk.set_capacity(capacity);
        CHECK(w.enqueue(named(7, with_shared(planned(w, m, tokens, { 42, 80 }, true, 0, 72), 42))));
        w.flush();
        n_without += s->stats().values.anchors_written == 1 && s->list().size() == 1 && m.restore(*s, tokens) == 80;
    }
    CHECK(n_without > 10);
}

TEST(what_two_turns_wait_with_stays_where_one_of_them_may_not_write_it) {
    fault_env disk;
    model     m   = hybrid();
    m.folded_size = 100 * 1000;
    store_options options = with_ram(m, 18 * m.folded_size); // a quarter: for the anchors of two turns
    CHECK(disk.make_dir(options.root_dir).is_ok());
    options.writes = std::make_shared<write_budget>(disk, options.root_dir, m.folded_size); // for rows
    auto       s = open(disk, options);
    writer     w(*s, 1 << 20, {}, 1h);
    const auto document = random_tokens(35, 100);
    for (const uint64_t talk : { 7u, 8u }) {
        auto asked = document;
        append(asked, 50 + talk, 20);
        CHECK(w.enqueue(named(talk, planned(w, m, asked, { 100, 120 }, true, 0, 110))));
        drain(w);
    }
    CHECK(w.enqueue(named(9, planned(w, m, random_tokens(36, 100), { 90, 100 }, true, 0, 95)))); // Now the first one is due.
    CHECK(w.enqueue(planned(w, m, random_tokens(37, 20), {}, false))); // It comes behind what is over the limit.
    drain(w);
    CHECK(s->stats().values.anchors_written == 0 && w.unwritten() == 4);
    auto third = document;
    append(third, 60, 20);
    CHECK(m.restore(*s, third) == 100);
}

TEST(what_two_conversations_wait_for_outlasts_the_turn_of_one) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  document = random_tokens(31, 100);
    for (const uint64_t talk : { 7u, 8u }) {
        auto asked = document;
        append(asked, 40 + talk, 20);
        CHECK(w.enqueue(named(talk, planned(w, m, asked, { 100, 120 }, true, 0, 110))));
    }
    auto next = document;
    append(next, 47, 20);
    append(next, 48, 40);
    CHECK(w.enqueue(named(7, planned(w, m, next, { 160 }, true, 0, 150))));
    drain(w);
    CHECK(s->stats().values.anchors_superseded == 1); // of its own end; where both began the other one goes on from as well
    auto third = document;
    append(third, 49, 20);
    CHECK(m.restore(*s, third) == 100);
}

TEST(a_turn_is_stored_though_what_others_go_on_from_has_lost_its_rows) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  tokens = random_tokens(32, 200);
    CHECK(w.enqueue(named(7, with_shared(planned(w, m, first(tokens, 80), { 42, 80 }, true, 0, 72), 42))));
    drain(w);
    uint64_t freed = 0;
    CHECK(s->remove_name_space(user_key(m.user), freed).is_ok());
    CHECK(w.enqueue(named(7, planned(w, m, tokens, { 200 }, true, 0, 190))));
    w.flush();
    CHECK(s->list().size() == 1);
    CHECK(m.restore(*s, tokens) == 200);
}

TEST(what_others_go_on_from_stays_with_those_who_begin_so) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  tokens = random_tokens(29, 100);
    // The next prompt announces its answer in other words, and has the first one's end otherwise.
    CHECK(w.enqueue(named(7, with_shared(planned(w, m, tokens, { 98, 100 }, true, 0, 99), 98))));
    auto next = first(tokens, 96);
    append(next, 30, 40);
    CHECK(w.enqueue(named(7, planned(w, m, next, { 136 }, true, 0, 130))));
    w.flush();
    CHECK(s->stats().values.anchors_written == 1);
    CHECK(m.restore(*s, next) == 136);
}

TEST(a_turn_keeps_its_name_while_the_next_one_has_only_a_prompt) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  tokens = random_tokens(21, 200);
    save_request turn = named(7, planned(w, m, first(tokens, 80), { 76, 80 }, true, 0, 72));
    turn.conversation.change.ttl_ms = 3600000;
    CHECK(w.enqueue(turn));
    CHECK(w.enqueue(named(7, planned(w, m, first(tokens, 120), { 116 }, false, 0, 120))));
    drain(w);
    CHECK(w.unwritten() == 1);
    w.flush(); // The turn never ends, as if the process were killed.
    CHECK(s->stats().values.anchors_superseded == 2);
    const auto listed = s->list();
    CHECK(listed.size() == 1 && listed.front().life.ttl_ms == 3600000);
    CHECK(s->stats().values.anchors_written == 1);
    CHECK(m.restore(*s, first(tokens, 118)) == 116);
    CHECK(w.enqueue(named(7, planned(w, m, tokens, { 200 }, true, 0, 120))));
    w.flush();
    CHECK(s->list().size() == 1);
    CHECK(m.restore(*s, tokens) == 200);
}

TEST(what_goes_on_from_one_answer_leaves_those_beside_it) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    auto        one = random_tokens(22, 64), two = one;
    append(one, 23, 32);
    append(two, 24, 32);
    CHECK(w.enqueue(named(7, planned(w, m, one, { 96 }, true, 0, 64))));
    CHECK(w.enqueue(named(7, planned(w, m, two, { 96 }, true, 0, 64))));
    auto next = one;
    append(next, 25, 32);
    CHECK(w.enqueue(named(7, planned(w, m, next, { 128 }, true, 0, 120))));
    w.flush();
    CHECK(s->stats().values.anchors_superseded == 1);
    CHECK(m.restore(*s, next) == 128);
    CHECK(m.restore(*s, two) == 96);
}

TEST(a_flush_waits_for_what_took_the_place_of_a_turn) {
    settling   waiting(1h, 1 << 20);
    model      m      = hybrid();
    const auto tokens = random_tokens(26, 100);
    for (const uint64_t number : { 1, 2 }) {
        save_request turn;
        turn.root     = m.root();
        turn.tokens   = first(tokens, number * 40);
        turn.folded   = true;
        turn.n_prompt = static_cast<uint32_t>(number * 40 - 2);
        turn.conversation.hash = 7;
        turn.anchors  = { { static_cast<uint32_t>(number * 40), {}, std::make_shared<const buffer>(8) } };
        turn.anchors[0].k[0] = static_cast<uint8_t>(number);
        (void) waiting.add(std::move(turn), number, settling::clock::now());
    }
    CHECK(waiting.size() == 1);
    CHECK(waiting.has_any_until(1));
}

TEST(a_flush_does_not_wait_for_the_queue_to_be_empty) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m, 1 << 30)); // What waits never gets over the limit, which would make it be written.
    writer      w(*s, 1 << 20, {}, 1h);
    disk.set_delay_us(3000);
    CHECK(w.enqueue(planned(w, m, random_tokens(27, 64), { 64 })));
    std::atomic<bool> flushed{ false }, ended{ false };
    std::thread       others([&] {
        const auto until = std::chrono::steady_clock::now() + 120s;
        for (uint64_t i = 100; !flushed && std::chrono::steady_clock::now() < until;) {
            if (w.queued() < 64) { // So many that a busy machine which stops this thread for a moment leaves the queue filled.
                CHECK(w.enqueue(planned(w, m, random_tokens(i, 64), { 64 })));
                i++;
            } else {
                std::this_thread::sleep_for(1ms);
            }
        }
        CHECK(flushed);
        ended = true;
    });
    while (w.queued() < 32 && !ended) {
        std::this_thread::sleep_for(1ms);
    }
    w.flush();
    flushed = true;
    others.join();
}

TEST(what_has_another_name_supersedes_nothing_and_all_of_it_can_be_removed) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  tokens = random_tokens(2, 400);
    for (const uint32_t n : { 3, 80, 200 }) { // Short prompts without a name are conversations of their own.
        CHECK(w.enqueue(planned(w, m, first(tokens, n), { n }, false, 0, n)));
        CHECK(w.enqueue(planned(w, m, first(tokens, n + 2), { n + 2 }, true, 0, n)));
    }
    CHECK(w.enqueue(planned(w, m, random_tokens(3, 90), { 90 }, true, 0, 80)));
    w.flush();
    CHECK(s->list().size() == 4 && s->stats().values.anchors_superseded == 0);
    uint64_t freed = 0;
    for (const conversation_info & c : s->list()) {
        CHECK(s->remove_conversation(c.name_space, c.hash, freed).is_ok());
    }
    CHECK(files_with(disk, ".seg").empty() && files_with(disk, ".anc").empty());
}

TEST(the_same_prompt_again_supersedes_nothing) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  prompt = random_tokens(7, 64);
    CHECK(w.enqueue(planned(w, m, random_tokens(7, 80), { 60, 80 }, true, 0, 64)));
    CHECK(w.enqueue(planned(w, m, random_tokens(7, 80), { 80 }, true, 0, 64))); // It had gone on from the first anchor.
    drain(w);
    CHECK(m.restore(*s, prompt) == 60);
    w.flush();
    CHECK(m.restore(*s, prompt) == 60);
}

TEST(other_conversations_supersede_nothing) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    auto        one = random_tokens(3, 96);
    auto        two = one;
    for (size_t i = 32; i < two.size(); i++) {
        two[i] += 1;
    }
    CHECK(w.enqueue(planned(w, m, one, { 32, 90, 96 }, true, 32, 94)));
    CHECK(w.enqueue(planned(w, m, two, { 32, 90, 96 }, true, 32, 94)));
    drain(w);
    CHECK(s->stats().values.anchors_superseded == 0);
    CHECK(m.restore(*s, one) == 96);
    CHECK(m.restore(*s, two) == 96);
}

TEST(a_conversation_goes_on_under_its_own_name_alone) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  tokens = random_tokens(11, 96);
    const auto  turn   = [&](uint64_t hash, uint32_t n) {
        save_request request = named(hash, planned(w, m, first(tokens, n), { n }, true, 0, n - 4));
        request.conversation.title         = "title " + std::to_string(hash);
        request.conversation.change.ttl_ms = 3600000;
        return request;
    };
    CHECK(w.enqueue(turn(1, 48)));
    CHECK(w.enqueue(turn(2, 80))); // The same words, and more, of another one.
    CHECK(w.enqueue(turn(1, 96)));
    w.flush();
    CHECK(s->stats().values.anchors_superseded == 1);
    const auto listed = s->list();
    CHECK(listed.size() == 2);
    for (const conversation_info & c : listed) {
        CHECK(c.title == "title " + std::to_string(c.hash));
        CHECK(c.life.ttl_ms == 3600000);
        CHECK(c.turns == 1);
    }
}

TEST(what_was_removed_is_not_written_afterwards) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  tokens = random_tokens(12, 96);
    CHECK(w.enqueue(named(1, planned(w, m, first(tokens, 48), { 48 }, true, 0, 44))));
    w.flush();
    CHECK(w.enqueue(named(1, planned(w, m, tokens, { 96 }, true, 0, 90))));
    drain(w);
    CHECK(w.unwritten() == 1);
    uint64_t freed = 0;
    CHECK(s->remove_conversation(key{}, s->list().front().hash, freed).is_ok());
    CHECK(m.restore(*s, tokens) == 0);
    w.flush();
    CHECK(s->list().empty());
    CHECK(s->stats().n_anchors == 0);
    CHECK(s->stats().n_segments == 0);
}

TEST(nothing_settles_while_writes_are_held_unless_it_is_flushed) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1ms);
    const auto  tokens = random_tokens(13, 96);
    w.hold(true);
    CHECK(w.enqueue(named(1, planned(w, m, first(tokens, 48), { 48 }, true, 0, 44))));
    std::this_thread::sleep_for(20ms);
    CHECK(s->stats().values.payload_written == 0);
    w.flush();
    CHECK(s->stats().values.anchors_written == 1);
    CHECK(w.enqueue(named(1, planned(w, m, tokens, { 96 }, true, 0, 90))));
    std::this_thread::sleep_for(20ms);
    CHECK(w.queued() == 1);
    w.stop();
    CHECK(s->stats().values.anchors_written == 2);
    CHECK(s->list().size() == 1);
}

TEST(what_the_days_budget_refuses_is_not_kept_in_memory_either) {
    fault_env     disk;
    const model   m       = hybrid();
    store_options options = with_ram(m);
    CHECK(disk.make_dir(options.root_dir).is_ok());
    options.writes = std::make_shared<write_budget>(disk, options.root_dir, 1);
    auto       s = open(disk, options);
    writer     w(*s, 1 << 20, {}, 1h);
    const auto tokens = random_tokens(14, 96);
    CHECK(w.enqueue(planned(w, m, tokens, { 48, 96 }, true, 0, 90)));
    w.flush();
    CHECK(w.last_error().empty());
    CHECK(w.unwritten() == 0);
    CHECK(s->stats().n_anchors == 0);
    CHECK(s->stats().n_runs == 0);
    CHECK(s->list().empty());
    CHECK(options.writes->totals().skipped > 0);
}

TEST(everything_is_on_disk_after_stopping) {
    fault_env   disk;
    const model m      = hybrid();
    const auto  tokens = random_tokens(4, 64);
    {
        auto   s = open(disk, with_ram(m));
        writer w(*s, 1 << 20, {}, 1h);
        CHECK(w.enqueue(planned(w, m, tokens, { 60, 64 })));
        w.stop();
    }
    auto again = open(disk, with_ram(m));
    CHECK(m.restore(*again, tokens) == 64);
    CHECK(again->list().size() == 1);
}

TEST(a_turn_is_written_when_it_has_rested) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 20ms);
    CHECK(w.enqueue(planned(w, m, random_tokens(5, 64), { 64 })));
    while (s->stats().values.checkpoints_written == 0) {
        std::this_thread::sleep_for(5ms);
    }
    CHECK(w.unwritten() == 0);
}

TEST(a_conversation_without_a_rest_is_written_once_in_a_while) {
    settling   waiting(10ms, 1 << 20);
    model      m      = hybrid();
    const auto tokens = random_tokens(6, 400);
    auto       now    = settling::clock::now();
    bool       due    = false;
    for (uint32_t n = 1; n <= 20 && !due; n++, now += 8ms) {
        save_request turn;
        turn.root    = m.root();
        turn.tokens  = first(tokens, n * 20);
        turn.folded  = true;
        turn.n_prompt = n * 20 - 2;
        turn.anchors = { { n * 20, {}, std::make_shared<const buffer>(8) } };
        turn.anchors[0].k[0] = static_cast<uint8_t>(n);
        (void) waiting.add(std::move(turn), n, now);
        due = waiting.take_due(now, 0).has_value();
    }
    CHECK(due);
}

TEST(what_is_kept_back_is_bounded) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m, 4 * 250)); // a quarter of it holds two anchors
    writer      w(*s, 1 << 20, {}, 1h);
    for (uint64_t i = 0; i < 8; i++) {
        CHECK(w.enqueue(planned(w, m, random_tokens(10 + i, 64), { 64 })));
    }
    drain(w);
    while (w.unwritten_bytes() > 250) {
        std::this_thread::sleep_for(1ms);
    }
    CHECK(s->stats().values.anchors_superseded == 0);
    for (uint64_t i = 0; i < 8; i++) {
        CHECK(m.restore(*s, random_tokens(10 + i, 64)) == 64);
    }
}

TEST(removing_a_user_takes_what_is_not_written_along) {
    fault_env   disk;
    const model m = hybrid();
    auto        s = open(disk, with_ram(m));
    writer      w(*s, 1 << 20, {}, 1h);
    const auto  tokens = random_tokens(30, 64);
    CHECK(w.enqueue(planned(w, m, tokens, { 64 })));
    w.flush();
    CHECK(w.enqueue(planned(w, m, first(tokens, 48), { 48 })));
    drain(w);
    uint64_t freed = 0;
    CHECK(s->remove_name_space(key{}, freed).is_ok());
    CHECK(m.restore(*s, tokens) == 0);
    w.flush(); // what it would write has no rows any more
    CHECK(m.restore(*s, tokens) == 0);
}

int main() {
    return run_tests();
}

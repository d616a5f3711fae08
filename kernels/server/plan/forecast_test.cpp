// Times are predicted from what was seen, for prompts of other sizes, too, and what was said is held against what happened.
#include "kvtier/testing.h"
#include "server/plan/forecast.h"

#include <cmath>
#include <string>

using llama_run::forecast;
using llama_run::forecaster;
using llama_run::prompt_facts;

// A machine with a fixed cost, a cost for each token, and one for what each looks at.
static double machine_ms(const prompt_facts & p) {
    const double n = static_cast<double>(p.n_evaluated());
    return 20 + 2 * n + 0.0004 * n * (static_cast<double>(p.n_reused) + n / 2);
}

static prompt_facts prompt(size_t n_tokens, size_t n_reused) {
    prompt_facts out;
    out.n_tokens = n_tokens;
    out.n_reused = n_reused;
    return out;
}

static bool near(double a, double b) {
    return a < 1.2 * b && b < 1.2 * a;
}

TEST(nothing_is_known_before_something_was_measured) {
    const forecaster speeds;
    CHECK(!speeds.predict(prompt(100, 0)).known);
}

TEST(evaluating_is_predicted_for_sizes_that_were_not_seen) {
    forecaster speeds;
    for (size_t i = 0; i < 20; i++) {
        const prompt_facts p = prompt(20 + 300 * (i % 7), i % 3 == 0 ? 10 : 0);
        speeds.evaluated(p, machine_ms(p), true);
    }
    for (const prompt_facts & p : { prompt(64, 0), prompt(1000, 0), prompt(5000, 4990), prompt(4000, 0) }) {
        CHECK(near(speeds.predict(p).eval_ms, machine_ms(p)));
        CHECK(speeds.predict(p).known);
    }
}

TEST(what_took_longer_because_of_others_teaches_nothing) {
    forecaster speeds;
    speeds.evaluated(prompt(100, 0), 100, true);
    speeds.evaluated(prompt(100, 0), 9000, false);
    CHECK(near(speeds.predict(prompt(100, 0)).eval_ms, 100));
}

TEST(restoring_is_predicted_by_where_the_bytes_are) {
    forecaster   speeds;
    prompt_facts ram  = prompt(1000, 999);
    prompt_facts disk = ram;
    for (uint64_t mb = 1; mb < 40; mb++) {
        ram.bytes_ram   = mb * 1000000;
        disk.bytes_disk = mb * 1000000;
        speeds.restored(ram, 1 + 0.2 * static_cast<double>(mb));
        speeds.restored(disk, 3 + 2.0 * static_cast<double>(mb));
    }
    ram.bytes_ram   = 100000000;
    disk.bytes_disk = 100000000;
    CHECK(near(speeds.predict(ram).restore_ms, 21));
    CHECK(near(speeds.predict(disk).restore_ms, 203));
    CHECK(speeds.predict(prompt(1000, 999)).restore_ms == 0); // the slot has it
}

TEST(the_next_process_knows_what_was_learnt_and_soon_unlearns_what_is_no_longer_so) {
    forecaster before;
    for (size_t i = 0; i < 40; i++) {
        const prompt_facts p = prompt(20 + 300 * (i % 7), 0);
        before.evaluated(p, machine_ms(p), true);
    }
    forecaster now;
    now.recall(before.learnt());
    CHECK(now.predict(prompt(1000, 0)).known);
    CHECK(near(now.predict(prompt(1000, 0)).eval_ms, machine_ms(prompt(1000, 0))));
    CHECK(!now.predict(prompt(1000, 0)).restore_ms);
    for (size_t i = 0; i < 20; i++) {
        const prompt_facts p = prompt(20 + 300 * (i % 7), 0);
        now.evaluated(p, machine_ms(p) / 3, true);
    }
    CHECK(near(now.predict(prompt(1000, 0)).eval_ms, machine_ms(prompt(1000, 0)) / 3));
}

TEST(a_broken_text_of_what_was_learnt_is_passed_over) {
    const std::string sound = forecaster().learnt();
    for (const std::string & text : { std::string(), std::string("garbage 1 2"), sound.substr(0, sound.size() / 2) }) {
        forecaster speeds;
        speeds.recall(text);
        CHECK(!speeds.predict(prompt(100, 0)).known);
    }
}

TEST(what_was_said_is_held_against_what_happened) {
    forecaster speeds;
    forecast   said;
    said.known   = true;
    said.eval_ms = 100;
    for (const double ms : { 90.0, 100.0, 140.0, 300.0 }) {
        speeds.happened(said, ms);
    }
    CHECK(speeds.how_good().n == 4);
    CHECK(speeds.how_good().within_1_5 == 0.75);
    CHECK(speeds.how_good().worst_factor == 3);
}

int main() {
    return kvtier::run_tests();
}

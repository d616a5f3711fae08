// Who waits and who is served is counted by requests and slots, whatever number of prompts and answers a request has.
#include "kvtier/testing.h"
#include "server/plan/request_line.h"

#include <chrono>
#include <memory>
#include <thread>

using llama_run::forecast;
using llama_run::forecaster;
using llama_run::request_line;
using llama_run::request_times;

namespace {

constexpr std::chrono::milliseconds for_ever{ 0 };

struct served_line {
    forecaster   speeds;
    request_line line{ speeds };

    explicit served_line(size_t n_slots) { line.open(n_slots); }

    std::shared_ptr<request_line::place> enter(size_t max_waiting) { return line.enter(max_waiting, for_ever, false); }
};

} // namespace

TEST(a_request_with_several_answers_takes_as_many_slots) {
    served_line of(4);
    const auto  first = of.enter(0);
    of.line.arrived(*first, 1, {}, {});
    of.line.placed(1, 0);
    for (const int slot : { 1, 2, 3 }) {
        of.line.placed_further(slot);
    }
    CHECK(of.line.n_served() == 4 && of.line.n_waiting() == 0);
    CHECK(of.enter(0) == nullptr); // No slot is free, and nobody may wait.
    of.line.released(3);
    CHECK(of.enter(0) != nullptr);
}

TEST(a_request_with_several_prompts_waits_once_and_no_longer_than_its_first) {
    served_line of(2);
    const auto  several = of.enter(0);
    for (const int task : { 1, 2, 3 }) {
        of.line.arrived(*several, task, {}, {});
    }
    CHECK(of.line.n_waiting() == 1);
    of.line.placed(1, 0);
    of.line.placed(2, 1);
    CHECK(of.line.n_waiting() == 0);
    const auto other = of.enter(1);
    CHECK(other != nullptr && of.line.n_waiting() == 1);
    CHECK(of.enter(1) == nullptr);
}

TEST(what_was_said_of_a_request_stands_beside_what_happened) {
    served_line of(1);
    forecast    said;
    said.queue_ms = 40;
    said.eval_ms  = 60;
    said.known    = true;
    const auto one = of.enter(0);
    of.line.arrived(*one, 1, {}, said);
    of.line.placed(1, 0);
    const request_times before = of.line.times_of(0);
    CHECK(before.planned_ms == 100 && before.first_ms < 0 && before.queue_ms >= 0);
    of.line.first_token(0, 0);
    const request_times then = of.line.times_of(0);
    CHECK(then.first_ms >= then.queue_ms);
    of.line.released(0);
    CHECK(of.line.times_of(0).planned_ms < 0);
}

TEST(the_times_of_a_request_whose_files_were_read_while_it_waited_add_up) {
    served_line  of(1);
    const auto   one        = of.enter(0);
    const double restore_ms = 15;
    of.line.arrived(*one, 1, {}, {});
    std::this_thread::sleep_for(std::chrono::milliseconds(20)); // It waits, and its files are read.
    of.line.placed(1, 0);
    of.line.began(0, restore_ms);
    of.line.first_token(0, 0);
    const request_times took = of.line.times_of(0);
    CHECK(took.queue_ms >= 0 && took.queue_ms + restore_ms <= took.first_ms);
}

int main() {
    return kvtier::run_tests();
}

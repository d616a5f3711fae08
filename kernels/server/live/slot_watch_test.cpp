// What slots do is seen as it is, and who waits is seen as long as it waits.
#include "server/live/slot_watch.h"

#include "kvtier/testing.h"

using namespace llama_run;
using std::chrono::seconds;

TEST(a_request_is_seen_from_the_line_to_its_end) {
    slot_watch watch;
    watch.open(2);
    auto place = watch.enter("", 1000);
    CHECK(watch.line().size() == size_t(1));
    CHECK(watch.line()[0].n_prompt == uint64_t(1000));
    place->waits_for(wait_reason::prefix);
    CHECK((watch.line()[0].reason == wait_reason::prefix));

    place.reset();
    watch.begin(1, "", 1000);
    watch.advance(1, 0, 0, 0, seconds(1)); // a batch of others
    CHECK(watch.line().empty());
    CHECK((watch.slots()[0].phase == slot_phase::idle));
    CHECK((watch.slots()[1].phase == slot_phase::restoring));

    CHECK(watch.is_restoring(1));
    watch.restored(1, 600);
    CHECK(!watch.is_restoring(1));
    CHECK((watch.slots()[1].phase == slot_phase::evaluating));
    CHECK(watch.slots()[1].n_reused == uint64_t(600));
    watch.advance(1, 600, 100, 0, seconds(1));
    CHECK(watch.slots()[1].n_evaluated == uint64_t(100));
    watch.advance(1, 600, 400, 1, seconds(1));
    CHECK((watch.slots()[1].phase == slot_phase::answering));
    watch.end(1);
    CHECK((watch.slots()[1].phase == slot_phase::idle));
}

TEST(speed_and_time_left_are_those_of_the_phase) {
    watched_slot s;
    s.phase       = slot_phase::evaluating;
    s.n_prompt    = 1000;
    s.n_reused    = 400;
    s.n_evaluated = 200;
    CHECK(s.speed(s.since + seconds(2)) == 100.0);
    CHECK(s.ms_left(s.since + seconds(2)) == 4000.0);
    s.phase      = slot_phase::answering;
    s.n_answered = 11;
    CHECK(s.speed(s.since + seconds(2)) == 5.0);
    CHECK(s.ms_left(s.since + seconds(2)) < 0.0);
}

TEST(only_changes_count_as_such) {
    slot_watch watch;
    watch.open(1);
    watch.begin(0, "", 10);
    watch.advance(0, 0, 5, 0, seconds(1));
    const uint64_t before = watch.changes();
    watch.advance(0, 0, 5, 0, seconds(1));
    CHECK(watch.changes() == before);
    watch.advance(0, 0, 6, 0, seconds(1));
    CHECK(watch.changes() > before);
}

TEST(what_is_not_in_a_known_slot_is_not_watched) {
    slot_watch watch;
    watch.open(1);
    watch.begin(7, "", 10);
    watch.advance(0, 0, 5, 0, seconds(1));
    CHECK((watch.slots()[0].phase == slot_phase::idle));
}

int main() {
    return kvtier::run_tests();
}

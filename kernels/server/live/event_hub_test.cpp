// Who listens hears everything in order, or is told how much is missing; who does not listen costs nothing.
#include "server/live/event_hub.h"

#include "kvtier/testing.h"

#include <string>

using namespace llama_run;

static void tell(event_hub & hub, const std::string & user, const std::string & text) {
    hub.tell(user, [&] { return text; });
}

TEST(events_come_in_order) {
    event_hub hub;
    const auto l = hub.listen("");
    tell(hub, "", "a");
    tell(hub, "", "b");
    const event_hub::heard got = l->take();
    CHECK(got.events.size() == size_t(2));
    CHECK(*got.events[0] == "a");
    CHECK(*got.events[1] == "b");
    CHECK(got.n_lost == uint64_t(0));
    CHECK(l->take().events.empty());
}

TEST(nobody_hears_of_other_users) {
    event_hub hub;
    const auto anonymous = hub.listen("");
    const auto alice     = hub.listen("alice");
    tell(hub, "alice", "hers");
    CHECK(anonymous->take().events.empty());
    CHECK(alice->take().events.size() == size_t(1));
}

TEST(a_slow_listener_loses_the_oldest_and_is_told_how_many) {
    event_hub hub;
    const auto slow  = hub.listen("");
    const auto quick = hub.listen("");
    for (size_t i = 0; i < event_hub::max_waiting + 7; i++) {
        tell(hub, "", std::to_string(i));
        CHECK(quick->take().events.size() == size_t(1));
    }
    const event_hub::heard got = slow->take();
    CHECK(got.n_lost == uint64_t(7));
    CHECK(got.events.size() == event_hub::max_waiting);
    CHECK(*got.events.front() == "7");
    tell(hub, "", "next");
    CHECK(slow->take().n_lost == uint64_t(0));
}

TEST(without_a_listener_no_text_is_made) {
    event_hub hub;
    hub.listen("").reset();
    bool made = false;
    hub.tell("", [&] {
        made = true;
        return std::string();
    });
    CHECK(!made);
}

TEST(listeners_are_bounded_and_give_their_place_back) {
    event_hub hub;
    std::vector<std::shared_ptr<event_hub::listener>> all;
    for (size_t i = 0; i < event_hub::max_listeners; i++) {
        all.push_back(hub.listen(""));
        CHECK(all.back() != nullptr);
    }
    CHECK(hub.listen("") == nullptr);
    all.pop_back();
    CHECK(hub.listen("") != nullptr);
}

int main() {
    return kvtier::run_tests();
}

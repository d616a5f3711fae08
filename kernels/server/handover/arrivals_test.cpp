// Conversations on their way to here: so many at a time, none for ever, and none that somebody has removed.
#include "server/handover/arrivals.h"

#include "kvtier/store_testing.h"

#include <thread>

using namespace kvtier;
using namespace kvtier::test;
using namespace llama_run;

namespace {

constexpr uint64_t talk = 0xabcdef;

// A store that a conversation comes to, from another one.
struct receiver {
    model                  m;
    fault_env              disk_a, disk_b;
    std::unique_ptr<store> from = open(disk_a, m.options()), to = open(disk_b, m.options());

    std::unique_ptr<handover_intake> intake() {
        save_request request = m.request(*from, random_tokens(7, 100));
        request.conversation.hash = talk;
        CHECK(from->save(request).is_ok());
        std::unique_ptr<handover_source> source;
        std::unique_ptr<handover_intake> out;
        std::string                      head;
        CHECK(handover_source::open(*from, "", talk, source).is_ok());
        CHECK(source->read(0, 1 << 20, head).is_ok()); // The first part is the head alone.
        CHECK(handover_intake::begin(*to, "", talk, head, 1 << 20, out).is_ok());
        return out;
    }
};

const conversation_id id = { key{}, talk };

bool is_it(const conversation_id & other) {
    return other == id;
}

} // namespace

TEST(one_that_is_removed_is_not_gone_on_with_and_its_sender_is_told_as_often_as_he_asks) {
    receiver r;
    arrivals all;
    all.begin(id)->intake = r.intake();
    {
        const auto on = all.go_on(id);
        CHECK(on != nullptr && on->intake != nullptr);
        CHECK(all.go_on(id) == nullptr && all.is_worked_on(id));
    }
    all.remove(is_it);
    for (int i = 0; i < 2; i++) { // The first answer may get lost.
        const auto told = all.go_on(id);
        CHECK(told != nullptr && told->intake == nullptr && *told->is_removed);
    }
    all.begin(id)->intake = r.intake(); // Who begins anew wants it.
    CHECK(!*all.go_on(id)->is_removed);
}

TEST(a_removal_waits_for_what_a_request_is_storing) {
    receiver          r;
    arrivals          all;
    std::atomic<bool> is_back{ false }, was_back{ false };
    auto              on = all.begin(id);
    on->intake = r.intake();
    std::thread removing([&] {
        all.remove(is_it);
        was_back = is_back.load();
    });
    while (!*on->is_removed) {
        std::this_thread::yield();
    }
    is_back = true;
    on.reset();
    removing.join();
    CHECK(was_back);
    CHECK(all.go_on(id)->intake == nullptr);
}

TEST(other_conversations_go_on_when_one_is_removed) {
    receiver r;
    arrivals all;
    all.begin({ key{}, 1 })->intake = r.intake();
    all.remove(is_it);
    CHECK(all.go_on({ key{}, 1 })->intake != nullptr);
}

TEST(so_many_come_at_a_time_and_those_whose_senders_are_silent_make_room) {
    receiver r;
    arrivals all;
    for (uint64_t i = 1; i <= arrivals::max_at_once; i++) {
        all.begin({ key{}, i })->intake = r.intake();
    }
    CHECK(all.begin(id) == nullptr);
    const auto later = arrivals::clock::now() + arrivals::patience + std::chrono::seconds(1);
    all.forget_silent(later - std::chrono::minutes(1));
    CHECK(all.begin(id) == nullptr);
    all.forget_silent(later);
    CHECK(all.go_on({ key{}, 1 }) == nullptr);
    CHECK(all.begin(id) != nullptr);
}

int main() {
    return run_tests();
}

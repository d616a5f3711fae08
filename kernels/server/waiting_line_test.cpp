// Requests that were put off: nobody loses a place, nobody blocks the rest, and offering them ends.
#include "kvtier/testing.h"
#include "server/waiting_line.h"

#include <deque>
#include <functional>
#include <vector>

struct task {
    int id;
};

using tasks = std::deque<task>;

static std::vector<int> ids(const tasks & from) {
    std::vector<int> out;
    for (const task & t : from) {
        out.push_back(t.id);
    }
    return out;
}

// Does what the queue does: takes the first, runs it or puts it off, until none is left. Gives who ran, in order.
static std::vector<int> process(tasks & line, tasks & next, const std::function<bool(int)> & runs) {
    std::vector<int> ran;
    for (size_t n = 0; !next.empty() && n < 1000; n++) {
        task t = next.front();
        next.pop_front();
        if (runs(t.id)) {
            ran.push_back(t.id);
        } else {
            llama_run::put_off(line, next, std::move(t));
        }
    }
    return ran;
}

TEST(all_are_offered_in_the_order_of_their_arrival) {
    tasks line = { { 3 }, { 5 }, { 8 } };
    tasks next = { { 9 } };
    llama_run::offer_line(line, next);
    CHECK(line.empty());
    CHECK(ids(next) == std::vector<int>({ 3, 5, 8, 9 }));
}

TEST(who_is_put_off_again_keeps_the_place) {
    tasks line;
    tasks next = { { 1 }, { 2 }, { 3 } };
    CHECK(process(line, next, [](int) { return false; }).empty());
    CHECK(ids(line) == std::vector<int>({ 1, 2, 3 }));
    next.push_back({ 2 });
    line.erase(line.begin() + 1);
    CHECK(process(line, next, [](int) { return false; }).empty());
    CHECK(ids(line) == std::vector<int>({ 1, 2, 3 }));
}

TEST(those_behind_one_that_cannot_run_are_tried) {
    tasks line = { { 2 }, { 3 } };
    tasks next = { { 1 } }; // a slot is free, and the first in line waits for another one
    CHECK(process(line, next, [free = true](int id) mutable {
        const bool runs = free && id != 1;
        free = free && !runs;
        return runs;
    }) == std::vector<int>({ 2 }));
    CHECK(ids(line) == std::vector<int>({ 1, 3 }));
}

int main() {
    return kvtier::run_tests();
}

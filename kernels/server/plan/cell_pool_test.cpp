// Cells are promised before a request begins, in the order of arrival, and never more of them than there are.
#include "kvtier/testing.h"
#include "server/plan/cell_pool.h"

#include <memory>
#include <vector>

using llama_run::cell_need;
using llama_run::cell_pool;

// Not among the arguments of a function that `need` is also one of: they have no order.
static cell_pool & shared_by_four(cell_pool & pool) {
    pool.open(1000, 1000, 4);
    return pool;
}

TEST(where_slots_do_not_share_everything_fits) {
    cell_pool pool;
    pool.open(0, 1000, 4);
    const auto request = std::make_shared<int>();
    CHECK(pool.can_ever_fit(pool.need(900, 5000, 8)));
    CHECK(pool.reserve(0, 1, pool.need(900, -1, 1), request));
    CHECK(pool.grow(0, 900, 999));
}

TEST(an_answer_ends_with_its_slots_context_whatever_was_asked_for) {
    cell_pool       pool;
    const cell_need one = shared_by_four(pool).need(900, 32000, 1);
    CHECK(one.cells() == 1000);
    CHECK(pool.can_ever_fit(one));
    CHECK(!pool.can_ever_fit(pool.need(400, 300, 4))); // four answers share a prompt
    CHECK(pool.need(400, 300, 4).most_cells() == 1600);
}

TEST(a_limit_that_only_says_that_an_answer_may_be_long_takes_no_cells_from_others) {
    cell_pool       pool;
    const cell_need agent = shared_by_four(pool).need(100, 32000, 1);
    CHECK(agent.open_end);
    CHECK(agent.cells() == 100 + 1000 / 4 / 2);
    const cell_need told = pool.need(100, 300, 1); // who asks for less than that means it
    CHECK(!told.open_end && told.cells() == 400);
    const cell_need limited = pool.need(100, 100, 1);
    CHECK(!limited.open_end);
    CHECK(limited.cells() == 200);
}

static bool begin(cell_pool & pool, int id_slot, int id_task, const cell_need & n, const std::shared_ptr<void> & request) {
    if (!pool.reserve(id_slot, id_task, n, request)) {
        return false;
    }
    pool.placed(id_slot);
    return true;
}

TEST(who_does_not_fit_waits_and_so_do_those_behind) {
    cell_pool  pool;
    const auto a = std::make_shared<int>();
    auto       b = std::make_shared<int>();
    const auto c = std::make_shared<int>();
    shared_by_four(pool);
    CHECK(begin(pool, 0, 1, pool.need(500, 100, 1), a));
    CHECK(!begin(pool, 1, 2, pool.need(500, 100, 1), b));
    CHECK(!begin(pool, 1, 3, pool.need(10, 10, 1), c)); // it would fit, and came later
    CHECK(!pool.fits_now(pool.need(10, 10, 1)));
    CHECK(pool.release(0)); // somebody waits
    CHECK(begin(pool, 0, 2, pool.need(500, 100, 1), b));
    CHECK(begin(pool, 1, 3, pool.need(10, 10, 1), c));
    CHECK(pool.n_free() == 1000 - 600 - 20);
}

TEST(a_request_that_was_cancelled_holds_nothing_and_nobody_up) {
    cell_pool  pool;
    auto       a = std::make_shared<int>();
    auto       b = std::make_shared<int>();
    const auto c = std::make_shared<int>();
    shared_by_four(pool);
    CHECK(begin(pool, 0, 1, pool.need(900, 50, 1), a)); // and gone
    CHECK(!begin(pool, 1, 2, pool.need(500, 0, 1), b));
    a.reset();
    b.reset();
    CHECK(pool.n_free() == 1000);
    CHECK(begin(pool, 1, 3, pool.need(800, 10, 1), c));
}

TEST(a_request_that_was_put_off_once_more_holds_nothing_while_others_are_offered_slots) {
    cell_pool  pool;
    const auto a = std::make_shared<int>();
    const auto b = std::make_shared<int>();
    CHECK(shared_by_four(pool).reserve(0, 1, pool.need(900, 50, 1), a)); // there were too few slots for its answers
    CHECK(begin(pool, 1, 2, pool.need(500, 0, 1), b));
    CHECK(pool.n_free() == 500);
}

TEST(an_open_end_grows_into_what_nobody_was_promised) {
    cell_pool  pool;
    const auto a = std::make_shared<int>();
    const auto b = std::make_shared<int>();
    shared_by_four(pool);
    CHECK(begin(pool, 0, 1, pool.need(100, -1, 1), a)); // 100 and a share of 125
    CHECK(begin(pool, 1, 2, pool.need(600, 100, 1), b));
    CHECK(pool.grow(0, 100, 224));
    CHECK(pool.n_free() == 75);
    CHECK(pool.grow(0, 100, 225)); // by 64
    CHECK(pool.n_free() == 11);
    CHECK(pool.grow(0, 100, 289)); // by the rest
    CHECK(pool.grow(0, 100, 299));
    CHECK(!pool.grow(0, 100, 300));
    CHECK(pool.grow(1, 600, 5000)); // one with a limit was promised all of it
}

TEST(the_prompt_is_held_until_the_last_of_its_answers_ends) {
    cell_pool  pool;
    const auto a = std::make_shared<int>();
    CHECK(shared_by_four(pool).reserve(0, 7, pool.need(400, 100, 3), a));
    pool.share(1, 7);
    pool.share(2, 7);
    CHECK(pool.n_free() == 300);
    pool.release(0);
    CHECK(pool.n_free() == 400);
    pool.release(1);
    CHECK(pool.n_free() == 500);
    pool.release(2);
    CHECK(pool.n_free() == 1000);
}

// Whichever ends first: the prompt is one of them's, and the last one holds it.
TEST(the_prompt_is_held_in_whatever_order_its_answers_end) {
    const std::vector<std::vector<int>> orders = { { 1, 0, 2 }, { 0, 2, 1 }, { 1, 2, 0 }, { 2, 1, 0 } };
    for (const std::vector<int> & order : orders) {
        cell_pool  pool;
        const auto a = std::make_shared<int>();
        CHECK(shared_by_four(pool).reserve(0, 7, pool.need(400, 100, 3), a));
        pool.share(1, 7);
        pool.share(2, 7);
        pool.release(order[0]);
        CHECK(pool.n_free() == 400);
        pool.release(order[1]);
        CHECK(pool.n_free() == 500);
        pool.release(order[2]);
        CHECK(pool.n_free() == 1000);
    }
}

int main() {
    return kvtier::run_tests();
}

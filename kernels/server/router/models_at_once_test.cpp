// Models are loaded together as far as memory reaches, in the order in which they were asked for.
#include "kvtier/testing.h"
#include "server/router/models_at_once.h"

using llama_run::models_at_once;
using llama_run::unknown_need;

TEST(small_models_are_loaded_together_where_a_large_one_would_be_alone) {
    CHECK(models_at_once(24, {}, { 2 }, 0) == 1);
    CHECK(models_at_once(24, { 2 }, { 2 }, 0) == 2);
    CHECK(models_at_once(24, { 2, 2 }, { 20 }, 0) == 3);
    CHECK(models_at_once(23, { 2, 2 }, { 20 }, 0) == 2); // one has to go
    CHECK(models_at_once(23, { 2 }, { 20 }, 0) == 2);    // it has gone
}

TEST(several_have_to_go_for_a_large_one) {
    CHECK(models_at_once(20, { 2, 2 }, { 20 }, 0) == 2);
    CHECK(models_at_once(20, { 2 }, { 20 }, 0) == 1);
    CHECK(models_at_once(20, {}, { 20 }, 0) == 1);
}

TEST(whoever_came_first_is_not_overtaken_by_a_smaller_one) {
    CHECK(models_at_once(10, { 4 }, { 8, 2 }, 0) == 1);
    CHECK(models_at_once(10, { 4 }, { 2, 8 }, 0) == 2);
    CHECK(models_at_once(10, { 4 }, { 2, 4 }, 0) == 3);
}

TEST(a_model_of_unknown_need_is_loaded_alone) {
    CHECK(models_at_once(10, { 1 }, { unknown_need }, 0) == 1);
    CHECK(models_at_once(10, {}, { unknown_need, 1 }, 0) == 1);
    CHECK(models_at_once(10, { unknown_need }, { 1 }, 0) == 1);
}

TEST(what_takes_more_than_there_is_is_tried_alone) {
    CHECK(models_at_once(10, {}, { 11, 1 }, 0) == 1);
    CHECK(models_at_once(10, { 1 }, { 11 }, 0) == 1);
    CHECK(models_at_once(10, { 8, 8 }, { 1 }, 0) == 2); // they are more than there is: nothing is added
}

TEST(a_limit_on_the_count_holds_beside_the_memory) {
    CHECK(models_at_once(10, { 1, 1 }, { 1 }, 2) == 2);
    CHECK(models_at_once(10, { 1 }, { 1, 1 }, 2) == 2);
    CHECK(models_at_once(10, { 1 }, { 10 }, 2) == 1);
}

TEST(it_is_never_0_which_would_be_no_limit) {
    CHECK(models_at_once(10, {}, {}, 0) == 1);
    CHECK(models_at_once(10, {}, {}, 3) == 1);
}

int main() {
    return kvtier::run_tests();
}

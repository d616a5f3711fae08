// A slot goes back only to what it holds, and keeps no more of it than it may.
#include "kvtier/testing.h"
#include "server/cache/anchor_shelf.h"

#include <memory>
#include <vector>

using llama_run::anchor_copy;
using llama_run::anchor_shelf;
using lengths = std::vector<uint32_t>;

static anchor_copy of(uint32_t n_tokens) {
    return { n_tokens, std::make_shared<const kvtier::buffer>(1), nullptr };
}

TEST(anchors_are_found_by_their_length) {
    anchor_shelf shelf(2, 4);
    shelf.put(0, of(300));
    shelf.put(0, of(100));
    CHECK((shelf.lengths(0) == lengths { 100, 300 }));
    CHECK(shelf.lengths(1).empty());
    CHECK(shelf.at(0, 100).n_tokens == 100 && shelf.at(0, 100).data != nullptr);
    CHECK(shelf.at(0, 200).data == nullptr);
}

TEST(one_of_the_same_length_takes_the_place_of_the_other) {
    anchor_shelf shelf(1, 4);
    shelf.put(0, of(100));
    const anchor_copy newer = of(100);
    shelf.put(0, newer);
    CHECK((shelf.lengths(0) == lengths { 100 }));
    CHECK(shelf.at(0, 100).data == newer.data);
}

TEST(those_behind_where_the_slot_was_cut_go) {
    anchor_shelf shelf(1, 4);
    for (const uint32_t n : { 100u, 200u, 300u }) {
        shelf.put(0, of(n));
    }
    shelf.keep_first(0, 200);
    CHECK((shelf.lengths(0) == lengths { 100, 200 }));
    shelf.clear(0);
    CHECK(shelf.lengths(0).empty());
}

TEST(of_too_many_the_ones_that_are_close_together_go_and_the_longest_stays) {
    anchor_shelf shelf(1, 3);
    for (const uint32_t n : { 6000u, 6300u, 6350u, 9000u, 9001u }) {
        shelf.put(0, of(n));
    }
    CHECK((shelf.lengths(0) == lengths { 6000, 6350, 9001 }));
    anchor_shelf none(1, 0);
    none.put(0, of(100));
    CHECK(none.lengths(0).empty());
}

TEST(what_is_left_of_the_shelf_is_freed) {
    anchor_shelf shelf(1, 4);
    const anchor_copy kept = of(100);
    shelf.put(0, kept);
    CHECK(kept.data.use_count() == 2);
    shelf.clear(0);
    CHECK(kept.data.use_count() == 1);
}

int main() {
    return kvtier::run_tests();
}

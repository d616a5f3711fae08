// A slot gives as much of a prompt as its tokens allow, and never more.
#include "kvtier/testing.h"
#include "server/cache/slot_offer.h"

#include <vector>

using llama_run::slot_offer;

static slot_offer holding(std::vector<int32_t> tokens, int32_t pos_min) {
    slot_offer offer;
    offer.tokens  = std::move(tokens);
    offer.pos_min = pos_min;
    return offer;
}

TEST(attention_gives_all_that_is_in_common) {
    const slot_offer offer = holding({ 1, 2, 3, 4 }, 0);
    CHECK(offer.reusable({ 1, 2, 9 }) == 2);
    CHECK(offer.reusable({ 1, 2, 3, 4, 5 }) == 4);
    CHECK(offer.reusable({ 1, 2, 3, 4 }) == 3); // the last one is evaluated for its logits
    CHECK(offer.reusable({ 9 }) == 0);
}

TEST(folded_state_gives_itself_or_a_checkpoint_whose_tokens_are_the_prompts) {
    slot_offer offer = holding({ 1, 2, 3, 4, 5, 6 }, 5);
    offer.checkpoints = { { 2, 1, 1 }, { 4, 3, 3 } };
    CHECK(offer.reusable({ 1, 2, 3, 4, 5, 6, 7 }) == 6);
    CHECK(offer.reusable({ 1, 2, 3, 4, 9 }) == 4);
    CHECK(offer.reusable({ 1, 2, 3, 9 }) == 2); // the second checkpoint ends one token behind where they part
    CHECK(offer.reusable({ 1, 9 }) == 0);
    CHECK(offer.reusable({ 9, 2 }) == 0);
}

TEST(folded_state_goes_back_to_the_longest_anchor_that_is_within_the_prompt) {
    slot_offer offer = holding({ 1, 2, 3, 4, 5, 6 }, 5);
    offer.anchors = { 2, 4 };
    CHECK(offer.reuse({ 1, 2, 3, 4, 5, 9 }).n_tokens == 4);
    CHECK(offer.reuse({ 1, 2, 3, 4, 5, 9 }).back_to_anchor);
    CHECK(offer.reusable({ 1, 2, 3, 4 }) == 2); // the last token is evaluated for its logits
    CHECK(offer.reusable({ 1, 9 }) == 0);
    CHECK(offer.reusable({ 1, 2, 3, 4, 5, 6, 7 }) == 6);
    CHECK(!offer.reuse({ 1, 2, 3, 4, 5, 6, 7 }).back_to_anchor); // it is there already
    offer.checkpoints = { { 4, 3, 3 } };
    CHECK(!offer.reuse({ 1, 2, 3, 4, 9 }).back_to_anchor); // upstream does as much
}

TEST(a_checkpoint_of_one_token_counts_for_that_token_alone) {
    slot_offer offer = holding({ 1, 2, 3 }, 2);
    offer.checkpoints = { { 1, 0, 0 } };
    CHECK(offer.reusable({ 1, 9, 9 }) == 1);
    CHECK(offer.reusable({ 1 }) == 0);
    CHECK(!slot_offer::fits(offer.checkpoints[0], 0)); // a prompt with another first token
}

int main() {
    return kvtier::run_tests();
}

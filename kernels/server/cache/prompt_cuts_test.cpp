// Prompts are cut where others will want to go on, or answer beside them, and nowhere else.
#include "kvtier/testing.h"
#include "server/cache/prompt_cuts.h"

#include <vector>

using llama_run::cut_before_parting;
using llama_run::goes_token_by_token;
using llama_run::prompt_cuts;
using cuts = std::vector<uint32_t>;

TEST(a_new_conversation_is_cut_behind_what_it_shares_and_before_its_answer) {
    CHECK((prompt_cuts(0, 6300, 6000, 6000) == cuts { 6000, 6296 }));
    CHECK((prompt_cuts(0, 1000, 0, 0) == cuts { 996 })); // no messages
}

TEST(a_turn_is_cut_before_its_last_message_only_where_that_saves_enough) {
    CHECK((prompt_cuts(6296, 6800, 6000, 6500) == cuts { 6796 }));
    CHECK((prompt_cuts(6296, 9000, 6000, 8500) == cuts { 8500, 8996 }));
    CHECK((prompt_cuts(0, 9000, 6000, 8500) == cuts { 6000, 8500, 8996 }));
    CHECK((prompt_cuts(0, 9000, 6000, 6100) == cuts { 6000, 8996 })); // so soon behind the one before
}

TEST(a_prompt_that_parts_from_others_is_cut_there_where_that_saves_enough) {
    const cuts usual = { 6000, 8500, 8996 };
    CHECK(cut_before_parting(usual, 0, 5000, 256) == 4968); // within the system prompt
    CHECK(cut_before_parting(usual, 0, 200, 256) == 0);     // so little is in common
    CHECK(cut_before_parting(usual, 4900, 5000, 256) == 0); // folded state is there for nearly as much
    CHECK(cut_before_parting(usual, 0, 6100, 256) == 0);    // they go on from the usual cut
    CHECK(cut_before_parting(usual, 0, 7000, 256) == 6968); // within the first message
    CHECK(cut_before_parting(usual, 0, 7180, 256) == 7168); // where a page ends
    CHECK(cut_before_parting(usual, 0, 7168, 256) == 7168);
    CHECK(cut_before_parting({ 8996 }, 8600, 8990, 256) == 8960);
    CHECK(cut_before_parting({ 8996 }, 8600, 8996, 256) == 0);
    CHECK(cut_before_parting({}, 0, 256, 1000) == 224);
}

TEST(nothing_is_cut_where_everything_is_there) {
    CHECK(prompt_cuts(997, 1000, 500, 900).empty());
    CHECK(prompt_cuts(0, 3, 0, 0).empty());
    CHECK((prompt_cuts(0, 10, 10, 10) == cuts { 6 }));
}

TEST(a_short_rest_goes_token_by_token_beside_answers) {
    CHECK(goes_token_by_token(4, 1, true));
    CHECK(goes_token_by_token(1, 3, true));
    CHECK(!goes_token_by_token(5, 1, true));
    CHECK(!goes_token_by_token(4, 0, true));    // nobody is beside it
    CHECK(!goes_token_by_token(4, 300, false)); // each token would wait for a batch of another prompt
}

int main() {
    return kvtier::run_tests();
}

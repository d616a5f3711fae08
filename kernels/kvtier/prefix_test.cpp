// The search is held against a naive model: a list of everything that was ever saved, compared token by token.
#include "kvtier/prefix_index.h"
#include "kvtier/store_testing.h"

#include <set>

using namespace kvtier;
using namespace kvtier::test;

namespace {

size_t common(const std::vector<token> & a, const std::vector<token> & b) {
    const size_t n = std::min(a.size(), b.size());
    return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first - a.begin());
}

// It says few different tokens, so that sequences part and meet at every place of a page.
std::vector<token> babble(random_source & r, const std::vector<std::vector<token>> & known, size_t max) {
    std::vector<token> out;
    if (!known.empty() && r.below(4) != 0) {
        out = known[r.below(static_cast<uint32_t>(known.size()))];
        out.resize(r.below(static_cast<uint32_t>(out.size()) + 1));
    }
    const size_t more = 1 + r.below(24);
    for (size_t i = 0; i < more && out.size() < max; i++) {
        out.push_back(static_cast<token>(r.below(2)));
    }
    return out;
}

} // namespace

TEST(a_search_finds_what_comparing_everything_finds) {
    for (uint64_t seed = 0; seed < 30; seed++) {
        random_source r{ seed };
        fault_env     disk;
        model         m;
        m.page_size = 1 + r.below(9);
        auto s = open(disk, m.options());
        std::vector<std::vector<token>> known;
        for (int step = 0; step < 60; step++) {
            const std::vector<token> prompt = babble(r, known, 60);
            size_t expected = 0;
            for (const auto & k : known) {
                expected = std::max(expected, common(k, prompt));
            }
            const match found = m.lookup(*s, prompt);
            CHECK(found.n_common == expected);
            CHECK(found.n_tokens == expected);
            CHECK(m.restore(*s, prompt) == expected);
            if (r.below(2) == 0) {
                CHECK(m.save(*s, prompt, r.below(static_cast<uint32_t>(prompt.size()) + 1), r.below(3) != 0).is_ok());
                known.push_back(prompt);
            }
            if (r.below(20) == 0) {
                s = nullptr;
                s = open(disk, m.options());
            }
        }
    }
}

TEST(a_search_for_folded_state_finds_the_longest_anchor) {
    for (uint64_t seed = 0; seed < 30; seed++) {
        random_source r{ seed };
        fault_env     disk;
        model         m;
        m.page_size   = 1 + r.below(9);
        m.folded_size = 16;
        store_options o = m.options();
        o.max_anchors = 1000; // nothing thinned
        auto s = open(disk, o);
        std::vector<std::vector<token>> known;
        std::set<std::vector<token>>    anchored; // prefixes
        for (int step = 0; step < 60; step++) {
            const std::vector<token> prompt = babble(r, known, 60);
            size_t expected = 0;
            for (const auto & a : anchored) {
                if (common(a, prompt) == a.size()) {
                    expected = std::max(expected, a.size());
                }
            }
            CHECK(m.restore(*s, prompt) == expected);
            if (r.below(2) == 0) {
                const uint32_t at = 1 + r.below(static_cast<uint32_t>(prompt.size()));
                CHECK(m.save(*s, prompt, 0, true, { at }).is_ok());
                known.push_back(prompt);
                anchored.insert(prompt);
                anchored.insert({ prompt.begin(), prompt.begin() + at });
            }
            if (r.below(20) == 0) {
                s = nullptr;
                s = open(disk, o);
            }
        }
    }
}

TEST(a_search_keeps_to_its_limit) {
    fault_env   disk;
    const model m;
    const std::vector<token> tokens = random_tokens(1, 100);
    auto s = open(disk, m.options());
    CHECK(m.save(*s, tokens).is_ok());
    for (size_t limit = 0; limit <= 100; limit++) {
        lookup_request r = { m.root(), tokens.data(), tokens.size(), limit, false };
        const match found = s->lookup(r);
        CHECK(found.n_tokens == limit);
        CHECK(limit == 0 || (found.runs.back().p0 < limit && found.runs.back().p1 >= limit));
        CHECK(limit == 0 || found.reason == miss_reason::none);
        CHECK(found.n_common == 100);
    }
}

// Everybody has the same 60 tokens and goes on differently: the widest row there can be.
TEST(a_search_touches_no_disk_however_much_is_stored) {
    for (size_t n : { size_t(4), size_t(400) }) {
        fault_env          disk;
        model              m;
        store_options      o = m.options();
        o.max_conversations = 10000;
        auto               s = open(disk, o);
        std::vector<token> last;
        for (uint64_t i = 0; i < n; i++) {
            last = random_tokens(1, 60);
            append(last, 10 + i, 100);
            CHECK(m.save(*s, last, 60).is_ok());
        }
        disk.reset_calls();
        CHECK(m.lookup(*s, last).n_tokens == 160);
        CHECK(disk.calls() == 0);
    }
}

// A segment has two runs of ten tokens: the first is everybody's, the second one's own.
static std::shared_ptr<segment> one_of_many(uint64_t i) {
    auto seg = std::make_shared<segment>();
    seg->tokens = random_tokens(1, 10);
    append(seg->tokens, 10 + i, 10);
    seg->runs.resize(2);
    for (uint32_t part = 0; part < 2; part++) {
        run & r = seg->runs[part];
        r.owner  = seg.get();
        r.p0     = 10 * part;
        r.p1     = 10 * part + 10;
        r.tokens = seg->tokens.data() + r.p0;
        r.k      = next_key({}, seg->tokens.data(), r.p1);
        r.parent_key = part == 0 ? key{} : seg->runs[0].k;
    }
    return seg;
}

TEST(a_search_compares_no_more_when_more_is_stored_and_all_of_it_comes_off_again) {
    for (size_t n : { size_t(4), size_t(400) }) {
        prefix_index index;
        std::vector<std::shared_ptr<segment>> segments;
        for (uint64_t i = 0; i < n; i++) {
            segments.push_back(one_of_many(i));
        }
        index.attach(segments);
        const walk_result found = index.walk({}, {}, segments.back()->tokens.data(), 20, 20);
        CHECK(found.n_common == 20);
        CHECK(found.n_compared <= 8);
        std::vector<run *> gone;
        for (const auto & seg : segments) {
            index.detach(*seg, gone);
        }
        CHECK(gone.size() == n + 1);
        CHECK(index.size() == 0);
    }
}

int main() {
    return run_tests();
}

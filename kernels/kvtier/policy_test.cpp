// Decisions are checked as tables, and so is the RAM tier that acts on them.
#include "kvtier/fingerprint.h"
#include "kvtier/policy.h"
#include "kvtier/ram_tier.h"
#include "kvtier/testing.h"

#include <memory>

using namespace kvtier;

TEST(a_tier_starts_at_its_turn) {
    const tier_windows w;
    const tier expected[] = { tier::hot, tier::hot, tier::warm, tier::warm, tier::cold, tier::cold };
    for (uint64_t idle = 0; idle < 6; idle++) {
        CHECK(tier_of(idle, true, w) == expected[idle]);
        CHECK(tier_of(idle, false, w) == tier::cold);
    }
}

TEST(what_is_precious_scores_above_what_is_stale) {
    object_facts plain;
    plain.bytes = 10 << 20;
    const auto score = [](object_facts f) { return keep_score(f); };
    object_facts older = plain;
    older.age_ms = 86400000;
    CHECK(score(older) < score(plain));
    object_facts idle = plain;
    idle.idle_turns = 10;
    CHECK(score(idle) < score(plain));
    object_facts hit = plain;
    hit.hits = 3;
    CHECK(score(hit) > score(plain));
    object_facts larger = plain;
    larger.bytes *= 10;
    CHECK(score(larger) < score(plain));
    object_facts shared = older;
    shared.n_conversations = 2;
    CHECK(score(shared) > score(hit));
    object_facts prefix = older;
    prefix.static_prefix = true;
    CHECK(score(prefix) > score(hit));
    object_facts serving = older;
    serving.being_served = true;
    CHECK(score(serving) > score(shared));
    object_facts future = plain;
    future.age_ms = -1000; // a clock that was set back
    CHECK(score(future) == score(plain));
}

TEST(thinning_keeps_the_static_prefix_and_the_newest) {
    std::vector<anchor_facts> anchors;
    for (uint32_t i = 1; i <= 40; i++) {
        anchors.push_back({ i * 100, i == 3 });
    }
    const std::vector<size_t> dropped = thin_anchors(anchors, 8);
    CHECK(dropped.size() == 32);
    for (size_t i : dropped) {
        CHECK(i != 2 && i != 38 && i != 39);
    }
    CHECK(thin_anchors(anchors, 40).empty());
    CHECK(thin_anchors({}, 0).empty());
    CHECK(thin_anchors({ { 5, true } }, 0).empty());
}

TEST(the_faster_way_is_taken) {
    restore_facts f;
    CHECK(!restore_or_recompute(f).restore); // nothing to restore
    f.n_tokens   = 15500;
    f.bytes_disk = uint64_t(2500) << 20;
    CHECK(restore_or_recompute(f).restore); // nothing measured yet
    f.disk_bytes_per_s = 2.3e9;
    f.tokens_per_s     = 5000;
    CHECK(restore_or_recompute(f).restore);
    f.tokens_per_s = 50000;
    CHECK(!restore_or_recompute(f).restore);
    f.bytes_ram  = f.bytes_disk;
    f.bytes_disk = 0;
    CHECK(restore_or_recompute(f).restore);
}

static key numbered(uint8_t n) {
    key k{};
    k[0] = n;
    return k;
}

TEST(the_ram_tier_keeps_its_budget) {
    ram_tier ram(1000, {});
    std::vector<blob> held;
    for (uint8_t i = 0; i < 200; i++) {
        blob data = std::make_shared<buffer>(100);
        if (i % 3 == 0) {
            held.push_back(data); // in use elsewhere: dropping it would free nothing
        }
        ram.put(object_kind::page, {}, numbered(i), std::move(data), 1);
        CHECK(ram.bytes() <= 1000);
        if (i % 7 == 0) {
            held.clear();
        }
    }
    CHECK(ram.peak_bytes() <= 1000);
    CHECK(ram.size() > 0);
    CHECK(!ram.put(object_kind::page, {}, numbered(250), std::make_shared<buffer>(1001), 1));
}

TEST(what_is_in_use_is_not_dropped_for_nothing) {
    ram_tier ram(300, {});
    const blob used = std::make_shared<buffer>(300);
    CHECK(ram.put(object_kind::page, {}, numbered(1), used, 1));
    CHECK(!ram.put(object_kind::page, {}, numbered(2), std::make_shared<buffer>(10), 1));
    CHECK(ram.get(object_kind::page, numbered(1), 1) == used);
    CHECK(ram.get(object_kind::anchor, numbered(1), 1) == nullptr); // same key, another kind
}

TEST(one_users_burst_leaves_the_others_their_share) {
    ram_tier ram(1000, {});
    const key alice = numbered(1);
    const key bob   = numbered(2);
    for (uint8_t i = 0; i < 4; i++) {
        CHECK(ram.put(object_kind::page, alice, numbered(10 + i), std::make_shared<buffer>(100), 1));
    }
    for (uint8_t i = 0; i < 100; i++) {
        CHECK(ram.put(object_kind::page, bob, numbered(100 + i), std::make_shared<buffer>(100), 1));
        CHECK(ram.bytes() <= 1000);
    }
    for (uint8_t i = 0; i < 4; i++) {
        CHECK(ram.get(object_kind::page, numbered(10 + i), 1) != nullptr); // less than half: hers to keep
    }
    CHECK(ram.bytes() == 1000); // and what she does not take is his
    for (uint8_t i = 0; i < 10; i++) {
        CHECK(ram.put(object_kind::page, alice, numbered(20 + i), std::make_shared<buffer>(100), 1));
    }
    tier where = tier::cold;
    int  kept  = 0;
    for (uint8_t i = 0; i < 100; i++) {
        kept += ram.peek(object_kind::page, numbered(100 + i), 1, where) ? 1 : 0;
    }
    CHECK(kept == 5); // her burst leaves him his half
}

TEST(a_hit_makes_hot) {
    ram_tier ram(1000, {});
    tier     where = tier::cold;
    CHECK(ram.put(object_kind::page, {}, numbered(1), std::make_shared<buffer>(10), 1));
    CHECK(ram.peek(object_kind::page, numbered(1), 4, where) && where == tier::warm);
    ram.get(object_kind::page, numbered(1), 4);
    CHECK(ram.peek(object_kind::page, numbered(1), 5, where) && where == tier::hot);
    ram.begin_turn(numbered(9), 100); // another namespace's turn
    CHECK(ram.size() == 1);
    ram.begin_turn({}, 8);
    CHECK(ram.size() == 0);
}

TEST(a_fingerprint_depends_on_every_field_and_not_on_their_order) {
    const auto build = [](bool swapped, const std::string & kv, double scale) {
        fingerprint_builder b;
        if (swapped) {
            b.add("rope.scale", scale);
            b.add("kv", kv);
        } else {
            b.add("kv", kv);
            b.add("rope.scale", scale);
        }
        return b.finish();
    };
    CHECK(build(false, "f16", 1.0) == build(true, "f16", 1.0));
    CHECK(build(false, "f16", 1.0) != build(false, "q8_0", 1.0));
    CHECK(build(false, "f16", 1.0) != build(false, "f16", 2.0));
    fingerprint_builder twice, once;
    twice.add("ab", std::string("c"));
    once.add("a", std::string("bc"));
    CHECK(twice.finish() != once.finish());
}

int main() {
    return run_tests();
}

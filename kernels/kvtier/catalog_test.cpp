// What is stored, by itself: no file is there.
#include "kvtier/catalog.h"
#include "kvtier/testing.h"

#include <chrono>
#include <future>

using namespace kvtier;

namespace {

// A catalog that knows one anchor.
struct known_anchor {
    store_options options;
    file_layout   layout{ "/cache", key{ 1 } };
    ram_tier      ram{ 0, {} };
    counters      count;
    catalog       known{ options, layout, ram, count };

    std::shared_ptr<anchor> at = std::make_shared<anchor>();

    known_anchor() {
        object_graph found(layout, ram);
        found.add(at);
        known.begin(std::move(found));
    }

    size_t n_anchors() const {
        return known.read([](const object_graph & all) { return all.anchors.size(); });
    }
};

const status damaged = status::corrupt(damage::bad_checksum, "flipped");

} // namespace

TEST(files_of_what_is_lost_are_given_up_before_anybody_misses_it) {
    known_anchor        one;
    std::future<size_t> asked;
    doomed_files        given_up;
    CHECK(one.known.forget_lost(one.at, damaged, [&](const doomed_files & files) {
        given_up = files;
        asked    = std::async(std::launch::async, [&] { return one.n_anchors(); });
        CHECK(asked.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
    }));
    CHECK(asked.get() == 0);
    CHECK(given_up.size() == 1 && given_up[0].what == doomed_file::fate::set_aside);
}

TEST(what_has_taken_the_place_of_something_lost_stays) {
    known_anchor one;
    const auto   none = [](const doomed_files &) { CHECK(!"nothing is to be given up"); };
    CHECK(!one.known.forget_lost(std::make_shared<anchor>(), damaged, none));
    CHECK(!one.known.forget_lost(one.at, status::exhausted("no memory"), none));
    CHECK(one.n_anchors() == 1);
}

int main() {
    return run_tests();
}

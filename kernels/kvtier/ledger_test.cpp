// What is counted on disk: every file once, under its name, and room that is given back.
#include "kvtier/ledger.h"
#include "kvtier/testing.h"

using namespace kvtier;

namespace {

struct books {
    std::shared_ptr<disk_budget> budget = std::make_shared<disk_budget>(100);
    ledger                       bytes{ budget, "model" };
};

} // namespace

TEST(a_reservation_gives_itself_back) {
    books b;
    {
        reservation room;
        CHECK(b.bytes.reserve(60, room));
        CHECK(b.budget->used() == 60);
        reservation more;
        CHECK(!b.bytes.reserve(60, more));
        reservation moved = std::move(room);
        CHECK(b.budget->used() == 60);
    }
    CHECK(b.budget->used() == 0);
    CHECK(b.bytes.bytes() == 0);
}

TEST(what_a_file_uses_of_a_reservation_stays_counted) {
    books b;
    {
        reservation room;
        CHECK(b.bytes.reserve(60, room));
        b.bytes.count("/m/a", 40, room);
        CHECK(b.budget->used() == 60);
    }
    CHECK(b.budget->used() == 40);
    CHECK(b.bytes.bytes_of("/m/a") == 40);
    CHECK(b.bytes.remove("/m/a") == 40);
    CHECK(b.bytes.remove("/m/a") == 0);
    CHECK(b.budget->used() == 0);
}

TEST(a_file_takes_the_place_of_the_one_it_replaces) {
    books b;
    b.bytes.count("/m/a", 30);
    {
        reservation room;
        CHECK(b.bytes.reserve(50, room));
        CHECK(b.budget->used() == 80); // both are there until the name changes hands
        b.bytes.count("/m/a", 50, room);
    }
    CHECK(b.budget->used() == 50);
    b.bytes.count("/m/a", 20);
    CHECK(b.budget->used() == 20);
    b.bytes.count("/m/b", 10);
    b.bytes.move("/m/b", "/m/a");
    CHECK(b.budget->used() == 10);
    CHECK(!b.bytes.has("/m/b") && b.bytes.bytes_of("/m/a") == 10);
}

TEST(paths_in_a_folder_are_those_below_it_alone) {
    books b;
    for (const char * path : { "/m/u", "/m/u/b", "/m/u/b/c", "/m/users", "/m" }) {
        b.bytes.count(path, 1);
    }
    CHECK((b.bytes.paths_in("/m/u") == std::vector<std::string>{ "/m/u", "/m/u/b", "/m/u/b/c" }));
    CHECK(b.bytes.bytes() == 5);
}

TEST(a_ledger_that_goes_gives_back_what_it_counted_and_no_more) {
    auto budget = std::make_shared<disk_budget>(100);
    budget->add(7); // somebody else's
    {
        ledger bytes(budget, "model");
        bytes.begin();
        CHECK(budget->is_owned("model"));
        bytes.count("/m/a", 30);
        {
            ledger second(budget, "model"); // of a store that could not be opened
        }
        CHECK(budget->is_owned("model"));
    }
    CHECK(!budget->is_owned("model"));
    CHECK(budget->used() == 7);
}

int main() {
    return run_tests();
}

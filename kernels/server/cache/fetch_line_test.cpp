// What is fetched for one prompt is not fetched for another one at the same time, and nobody waits for what is not his.
#include "server/cache/fetch_line.h"

#include "kvtier/testing.h"

#include <atomic>
#include <optional>
#include <thread>

using namespace llama_run;

static kvtier::key key_of(uint8_t n) {
    kvtier::key out{};
    out[0] = n;
    return out;
}

TEST(prompts_that_begin_alike_wait_for_each_other_and_others_do_not) {
    fetch_line                      line;
    std::atomic<bool>               is_over{ false }, was_over{ false };
    std::optional<fetch_line::turn> first(std::in_place, line, std::set<kvtier::key>{ key_of(1), key_of(2) });
    std::thread([&] { const fetch_line::turn other(line, { key_of(3) }); }).join(); // It would never end if it waited.
    std::thread alike([&] {
        const fetch_line::turn mine(line, { key_of(2), key_of(4) });
        was_over = is_over.load();
    });
    is_over = true;
    first.reset();
    alike.join();
    CHECK(was_over);
}

int main() {
    return kvtier::run_tests();
}

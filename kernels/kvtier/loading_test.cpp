// A restore is used while it is being read.
#include "kvtier/file_names.h"
#include "kvtier/loading.h"
#include "kvtier/store_testing.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <thread>

using namespace kvtier;
using namespace kvtier::test;

namespace {

// A disk on which one file cannot be opened until it is let go.
class stuck_disk : public fault_env {
public:
    void hold(const std::string & path) {
        std::lock_guard<std::mutex> guard(held_mu);
        held = path;
        changed.notify_all();
    }

    status open_file(const std::string & path, std::unique_ptr<readable_file> & out) override {
        std::unique_lock<std::mutex> guard(held_mu);
        changed.wait(guard, [&] { return path != held; });
        guard.unlock();
        return fault_env::open_file(path, out);
    }

private:
    std::mutex              held_mu;
    std::condition_variable changed;
    std::string             held;
};

// The store of this fixture writes one page a file.
struct paged {
    model              m;
    std::vector<token> tokens = random_tokens(1, 20 * 16);

    store_options options() const {
        store_options o  = m.options();
        o.segment_bytes  = 1;
        o.n_read_threads = 3;
        return o;
    }

    std::vector<std::string> files(const fault_env & disk, const char * folder) const {
        std::vector<std::string> out;
        for (const std::string & path : disk.files()) {
            if (path.find(std::string("/") + folder + "/") != std::string::npos) {
                out.push_back(path);
            }
        }
        return out;
    }

    std::unique_ptr<loading> begin(store & s, const match & found) const {
        std::unique_ptr<loading> out;
        CHECK(s.begin_load(found, tokens.data(), tokens.size(), out).is_ok());
        return out;
    }

    bool is_right(const loading & state, size_t i) const {
        const loaded_run & r        = state.run(i);
        const blob         expected = rows(tokens, r.p0, r.p1, m.bytes_per_token);
        return r.data->size() == expected->size() && std::memcmp(r.data->data(), expected->data(), expected->size()) == 0;
    }
};

} // namespace

TEST(what_has_come_does_not_wait_for_the_rest) {
    stuck_disk  disk;
    const paged p;
    auto        s = open(disk, p.options());
    CHECK(p.m.save(*s, p.tokens).is_ok());
    const auto files = p.files(disk, names::pages);
    CHECK(files.size() == 20);
    const match found = p.m.lookup(*s, p.tokens);
    disk.hold(files[15]);
    const auto state = p.begin(*s, found);
    CHECK(state->n_tokens() == p.tokens.size() && state->n_runs() == 20);

    const size_t first = state->wait_for_runs(0, 1);
    CHECK(first > 0 && first <= 15);
    const size_t second = state->wait_for_runs(0, 15 * 16 * p.m.bytes_per_token);
    CHECK(second == 15);
    for (size_t i = 0; i < second; i++) {
        CHECK(p.is_right(*state, i));
    }
    CHECK(state->wait_until_left(1e9).is_ok());
    CHECK(s->stats().values.loads == 0); // not all of it is there

    disk.hold("");
    CHECK(state->wait_for_runs(15, 1) > 15);
    CHECK(state->wait_for_runs(15, 1 << 20) == 20);
    CHECK(state->wait().is_ok());
    CHECK(p.m.is_right(state->state(), p.tokens));
    CHECK(s->stats().values.loads == 1);
}

TEST(waiting_for_all_ends_at_the_end) {
    stuck_disk  disk;
    const paged p;
    auto        s = open(disk, p.options());
    CHECK(p.m.save(*s, p.tokens).is_ok());
    const match found = p.m.lookup(*s, p.tokens);
    disk.hold(p.files(disk, names::pages)[19]);
    const auto        state = p.begin(*s, found);
    std::atomic<bool> let_go{ false };
    std::thread       friendly([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        let_go = true;
        disk.hold("");
    });
    CHECK(state->wait_until_left(0).is_ok());
    CHECK(let_go);
    CHECK(state->wait_for_runs(0, 1 << 20) == 20);
    friendly.join();
}

TEST(a_damaged_page_leaves_those_before_it) {
    fault_env   disk;
    const paged p;
    auto        s = open(disk, p.options());
    CHECK(p.m.save(*s, p.tokens).is_ok());
    disk.damage(p.files(disk, names::pages)[12]);
    {
        const match found = p.m.lookup(*s, p.tokens);
        const auto  state = p.begin(*s, found);
        CHECK(state->wait_for_runs(0, 1 << 20) == 12);
        CHECK(state->wait_for_runs(12, 1) == 12);
        for (size_t i = 0; i < 12; i++) {
            CHECK(p.is_right(*state, i));
        }
        CHECK(state->wait().is_damaged());
        CHECK(state->wait_until_left(1e9).is_damaged());
    }
    CHECK(s->stats().values.load_failures == 1);
    CHECK(p.m.restore(*s, p.tokens) == 12 * 16);
}

TEST(a_damaged_anchor_is_not_given_out) {
    fault_env disk;
    paged     p;
    p.m.folded_size = 20 << 20; // several parts, read by several threads
    auto s = open(disk, p.options());
    CHECK(p.m.save(*s, p.tokens).is_ok());
    for (const bool damaged : { false, true }) {
        if (damaged) {
            disk.damage(p.files(disk, names::anchors).front());
        }
        const match found  = p.m.lookup(*s, p.tokens);
        const auto  state  = p.begin(*s, found);
        const blob  anchor = state->wait_for_anchor();
        CHECK((anchor == nullptr) == damaged);
        CHECK(state->wait().is_damaged() == damaged);
        CHECK(damaged || p.m.is_right(state->state(), p.tokens));
    }
}

TEST(a_restore_that_nobody_waits_for_is_not_read_to_the_end) {
    fault_env   disk;
    const paged p;
    auto        s = open(disk, p.options());
    CHECK(p.m.save(*s, p.tokens).is_ok());
    {
        const match found = p.m.lookup(*s, p.tokens);
        disk.set_delay_us(1000000); // for a busy machine: nobody waits for more than the reads that have begun
        const auto state = p.begin(*s, found);
    }
    disk.set_delay_us(0);
    CHECK(s->stats().values.bytes_read < p.tokens.size() * p.m.bytes_per_token);
    CHECK(s->stats().values.damaged_total() == 0);
    CHECK(p.m.restore(*s, p.tokens) == p.tokens.size());
}

TEST(what_is_in_ram_is_not_read_again) {
    fault_env   disk;
    const paged p;
    auto        options = p.options();
    options.ram_bytes   = 1 << 20;
    auto s = open(disk, options);
    CHECK(p.m.save(*s, p.tokens).is_ok());
    CHECK(p.m.restore(*s, p.tokens) == p.tokens.size());
    const uint64_t n_read = s->stats().values.bytes_read;
    const match    found  = p.m.lookup(*s, p.tokens);
    const auto     state  = p.begin(*s, found);
    CHECK(state->wait_for_runs(0, 1 << 20) == 20);
    CHECK(state->seconds_waited() == 0);
    CHECK(state->wait().is_ok());
    CHECK(s->stats().values.bytes_read == n_read);
}

int main() {
    return run_tests();
}

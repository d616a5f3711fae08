// After a start, what was used last is read into RAM before somebody asks.
#include "kvtier/store_testing.h"

#include <atomic>

using namespace kvtier;
using namespace kvtier::test;

namespace {

constexpr size_t n_talks = 5;

std::vector<token> talk(uint64_t i) {
    return random_tokens(100 + i, 64 + 16 * i);
}

// A disk on which these conversations were saved, each a second after the one before it.
void save_talks(fault_env & disk, const model & m) {
    const auto s = open(disk, m.options());
    for (uint64_t i = 0; i < n_talks; i++) {
        disk.set_now_ms(static_cast<int64_t>(1000000 + 1000 * i));
        CHECK(m.save(*s, talk(i)).is_ok());
    }
}

// What of a restore comes from the disk.
uint64_t read_for(store & s, const model & m, const std::vector<token> & tokens) {
    const uint64_t before = s.stats().values.bytes_read;
    CHECK(m.restore(s, tokens) == tokens.size());
    return s.stats().values.bytes_read - before;
}

} // namespace

TEST(after_a_start_nothing_is_read_for_a_request) {
    for (const size_t folded_size : { size_t(0), size_t(3000) }) {
        fault_env disk;
        model     m;
        m.folded_size = folded_size;
        save_talks(disk, m);
        store_options o = m.options();
        o.ram_bytes = 1 << 20;
        const auto        s = open(disk, o);
        std::atomic<bool> over{ false };
        s->read_ahead(over);
        CHECK(s->stats().values.bytes_read_ahead > 0);
        CHECK(s->stats().values.loads == 0); // nobody has asked
        for (uint64_t i = 0; i < n_talks; i++) {
            CHECK(m.lookup(*s, talk(i)).source == match_source::hot);
            CHECK(read_for(*s, m, talk(i)) == 0);
        }
        CHECK(s->stats().values.loads == n_talks);
    }
}

TEST(the_last_used_comes_first_and_takes_half_of_the_ram) {
    fault_env   disk;
    const model m;
    save_talks(disk, m);
    const uint64_t last = talk(n_talks - 1).size() * m.bytes_per_token;
    store_options  o    = m.options();
    o.ram_bytes = 2 * last + 2 * m.bytes_per_token;
    const auto        s = open(disk, o);
    std::atomic<bool> over{ false };
    s->read_ahead(over);
    CHECK(s->stats().ram_bytes == last);
    CHECK(read_for(*s, m, talk(n_talks - 1)) == 0);
    CHECK(read_for(*s, m, talk(0)) > 0);
}

TEST(the_last_question_can_be_asked_again_and_another_conversation_begun) {
    fault_env disk;
    model     m;
    m.folded_size = 3000;
    const std::vector<token> tokens = random_tokens(1, 200);
    constexpr uint32_t       n_static = 20;
    {
        const auto s = open(disk, m.options());
        CHECK(m.save(*s, tokens, n_static, true, { n_static, 60, 100, 150 }).is_ok());
    }
    store_options o = m.options();
    o.ram_bytes = 1 << 20;
    const auto        s = open(disk, o);
    std::atomic<bool> over{ false };
    s->read_ahead(over);
    for (const uint32_t at : { 200u, 150u, 100u, n_static }) {
        const match found = m.lookup(*s, { tokens.begin(), tokens.begin() + at });
        CHECK(found.n_tokens == at);
        CHECK(found.source == match_source::hot);
    }
    CHECK(m.lookup(*s, { tokens.begin(), tokens.begin() + 60 }).source == match_source::cold); // a turn that is over
}

TEST(a_request_ends_it) {
    // It comes while the first file is being opened.
    class asked_disk : public fault_env {
    public:
        status open_file(const std::string & path, std::unique_ptr<readable_file> & out) override {
            over = over || armed;
            return fault_env::open_file(path, out);
        }
        std::atomic<bool> armed{ false };
        std::atomic<bool> over{ false };
    };
    asked_disk  disk;
    const model m;
    save_talks(disk, m);
    store_options o = m.options();
    o.ram_bytes = 1 << 20;
    const auto s = open(disk, o);
    disk.armed = true;
    s->read_ahead(disk.over);
    CHECK(s->stats().values.bytes_read_ahead <= talk(n_talks - 1).size() * m.bytes_per_token);
    CHECK(s->stats().values.load_failures == 0);
    for (uint64_t i = 0; i < n_talks; i++) {
        CHECK(m.restore(*s, talk(i)) == talk(i).size());
    }
}

TEST(what_is_left_of_a_conversation_is_warmed_where_a_file_of_it_is_lost) {
    fault_env     disk;
    model         m;
    store_options o = m.options();
    o.ram_bytes = 10 << 20;
    auto               s      = open(disk, o);
    std::vector<token> tokens = random_tokens(1, 1100); // The first 1,024 name the conversation.
    CHECK(m.save(*s, tokens).is_ok());
    const std::vector<std::string> before = files_with(disk, ".seg");
    const std::vector<token>       first  = tokens;
    append(tokens, 2, 100);
    CHECK(m.save(*s, tokens).is_ok());
    s = nullptr;
    s = open(disk, o);
    for (const std::string & path : files_with(disk, ".seg")) {
        if (std::count(before.begin(), before.end(), path) == 0) {
            CHECK(disk.remove_file(path).is_ok());
        }
    }
    uint64_t n_read = 0;
    CHECK(s->warm({}, conversation_hash(tokens.data(), tokens.size()), n_read).is_ok());
    CHECK(n_read > 0);
    const match found = m.lookup(*s, first);
    CHECK(found.n_tokens == first.size() && found.bytes_disk == 0);
}

TEST(what_is_damaged_is_set_aside_before_it_is_asked_for) {
    fault_env   disk;
    const model m;
    save_talks(disk, m);
    store_options o = m.options();
    o.ram_bytes = 1 << 20;
    const auto s = open(disk, o);
    for (const std::string & path : disk.files()) {
        if (path.find(".seg") != std::string::npos) {
            disk.damage(path);
        }
    }
    std::atomic<bool> over{ false };
    s->read_ahead(over);
    CHECK(s->stats().values.damaged_total() == n_talks);
    CHECK(s->stats().ram_bytes == 0);
    for (uint64_t i = 0; i < n_talks; i++) {
        CHECK(m.lookup(*s, talk(i)).n_tokens == 0);
    }
}

int main() {
    return run_tests();
}

// What the disk does not let be read is not lost: it is missed while that lasts, and not a moment longer.
#include "kvtier/file_names.h"
#include "kvtier/session_testing.h"

#include <map>

using namespace kvtier;
using namespace kvtier::test;

TEST(a_file_that_is_missing_or_unreadable_is_stored_again) {
    model m;
    m.folded_size = 64;
    const std::vector<token> tokens = random_tokens(1, 64);
    for (const char * kind : { ".seg", ".anc" }) {
        for (const bool is_missing : { true, false }) {
            failing_env disk;
            auto        s = open(disk, m.options());
            CHECK(m.save(*s, tokens).is_ok());
            const std::string path = files_with(disk, kind).front();
            if (is_missing) {
                disk.erase(path);
            } else {
                disk.no_open = path;
            }
            CHECK(m.restore(*s, tokens) == 0);
            CHECK(counted(s->stats().values, damage::incomplete) == is_missing);
            CHECK((s->stats().values.read_errors == 0) == is_missing);
            CHECK(s->damaged().size() == 1);
            disk.no_open = "";
            CHECK(m.save(*s, tokens).is_ok());
            CHECK(m.restore(*s, tokens) == 64);
            CHECK(counts_what_is_there(*s, disk));
        }
    }
}

TEST(one_refused_read_throws_no_state_away) {
    failing_env disk;
    model       m;
    m.bytes_per_token = 400 << 10; // read in several parts
    const std::vector<token> tokens = random_tokens(1, 64);
    auto s = open(disk, m.options());
    CHECK(m.save(*s, tokens).is_ok());
    disk.no_open = ".seg";
    loaded_state state;
    CHECK(s->load(m.lookup(*s, tokens), tokens.data(), tokens.size(), state).is_io_error());
    disk.no_open = "";
    CHECK(m.restore(*s, tokens) == 64);
    // What is removed while it is being restored is not damaged.
    const match held  = m.lookup(*s, tokens);
    uint64_t    freed = 0;
    CHECK(s->remove_conversation({}, conversation_hash(tokens.data(), tokens.size()), freed).is_ok());
    CHECK(s->load(held, tokens.data(), tokens.size(), state).is_miss());
    CHECK(s->stats().values.damaged_total() == 0 && s->damaged().empty());
}

TEST(a_folder_that_cannot_be_read_costs_only_what_is_in_it) {
    failing_env disk;
    model       m, bob;
    bob.user = "bob";
    const std::vector<token> tokens = random_tokens(1, 64);
    {
        auto s = open(disk, m.options());
        CHECK(m.save(*s, tokens).is_ok());
        CHECK(bob.save(*s, tokens).is_ok());
    }
    const std::string aside = "/cache/" + hex(m.options().fingerprint) + "/quarantine";
    disk.put_folder(aside);
    disk.put_folder(aside + "/x");
    for (const std::string & closed : { std::string("/u/"), aside }) {
        disk.no_list = closed;
        std::unique_ptr<store> s;
        CHECK(store::open(disk, m.options(), s).is_ok());
        CHECK(s != nullptr && m.restore(*s, tokens) == 64);
        CHECK(s != nullptr && bob.restore(*s, tokens) == (closed == aside ? 64u : 0u));
    }
}

// Where a call that opens or lists such a path is refused for the time of one opening.
static void check_unread(const std::string & part, bool is_used) {
    failing_env disk;
    agent       a;
    const auto  life = [](uint64_t i) { return i % 2 != 0 ? ttl(forever_ms) : expire(7 * 86400000); };
    {
        auto s = open(disk, a.m.options());
        for (uint64_t i = 0; i < 4; i++) {
            CHECK(a.save(*s, i, life(i)).is_ok());
        }
    }
    disk.no_open = part;
    disk.no_list = part;
    {
        auto s = open(disk, a.m.options());
        CHECK(s->stats().values.read_errors > 0);
        if (is_used) {
            CHECK(a.save(*s, 2).is_ok() && is_listed(*s, 2));
        }
        sweep(*s);
        uint64_t freed = 0;
        CHECK(s->gc(freed).is_ok());
    }
    disk.no_open = "";
    disk.no_list = "";
    CHECK(files_with(disk, "/quarantine/").empty());
    auto s = open(disk, a.m.options());
    CHECK(s->list().size() == 4);
    for (uint64_t i = 0; i < 4; i++) {
        CHECK(is_listed(*s, i) && info(*s, i).life == life(i).applied_to({}));
        CHECK(a.use(*s, i) == 104);
    }
    CHECK(counts_what_is_there(*s, disk));
}

// The file with the pages of the system prompt, which all sessions begin with: the first that is written.
static const char * const first_segment = "/pages/0000000000000001.seg";

TEST(what_one_opening_cannot_read_costs_no_session_its_name_or_how_long_it_is_kept) {
    for (const bool is_used : { false, true }) {
        check_unread(first_segment, is_used);
        check_unread("/ckpt-1.bin", is_used);
    }
    check_unread("/pages", false); // Nothing is added there.
    check_unread("/index.bin", false);
}

TEST(a_session_that_could_not_be_read_is_removed) {
    for (const bool is_whole_user : { false, true }) {
        failing_env disk;
        agent       a;
        {
            auto s = open(disk, a.m.options());
            CHECK(a.save(*s, 1).is_ok() && a.save(*s, 2).is_ok());
        }
        disk.no_open = first_segment;
        auto     s = open(disk, a.m.options());
        uint64_t freed = 0;
        CHECK(s->list().empty());
        CHECK((is_whole_user ? s->remove_name_space({}, freed) : s->remove_conversation({}, agent::hash(1), freed)).is_ok());
        CHECK(s->remove_conversation({}, agent::hash(1), freed).is_miss());
        disk.no_open = "";
        s = nullptr;
        s = open(disk, a.m.options());
        const std::vector<token> gone = a.session(1);
        CHECK(!holds_tokens(disk, { gone.begin() + 64, gone.end() }));
        CHECK(!is_listed(*s, 1) && files_with(disk, hex(agent::hash(1))).empty());
    }
}

TEST(nothing_is_added_to_a_folder_that_could_not_be_read) {
    model alice, bob;
    alice.user = "alice";
    alice.folded_size = 64;
    bob.user   = "bob";
    const std::vector<token> tokens = random_tokens(1, 1100); // longer than a conversation's hash looks
    std::vector<token>       longer = tokens;
    append(longer, 2, 64);
    const std::string folder = "/u/" + hex(user_key("alice"));
    const std::string talk   = "/" + hex(conversation_hash(tokens.data(), tokens.size()));
    const auto is_state = [](const std::string & path) { return contains(path, ".seg") || contains(path, ".anc"); };
    for (const std::string & closed : { std::string("/u"), folder, folder + "/pages", folder + "/anchors", folder + talk }) {
        failing_env disk;
        CHECK(alice.save(*open(disk, alice.options()), tokens).is_ok());
        std::map<std::string, std::string> before;
        for (const std::string & path : files_with(disk, folder)) {
            before[path] = disk.get(path);
        }
        disk.no_list = closed;
        auto s = open(disk, alice.options());
        disk.no_list = "";
        const status refused = alice.save(*s, longer);
        CHECK(refused.is_io_error() && contains(refused.message(), closed) && contains(refused.message(), "restart"));
        CHECK(bob.save(*s, tokens).is_ok() == (closed != "/u"));
        for (const auto & [path, bytes] : before) {
            CHECK(!is_state(path) || disk.get(path) == bytes);
        }

        s = nullptr;
        s = open(disk, alice.options());
        CHECK(s->stats().values.damaged_total() == 0);
        CHECK(alice.restore(*s, tokens) == tokens.size());
        CHECK(bob.restore(*s, tokens) == (closed != "/u" ? tokens.size() : 0u));
        CHECK(alice.save(*s, longer).is_ok());
        CHECK(alice.restore(*s, longer) == longer.size());
        CHECK(counts_what_is_there(*s, disk));
    }
}

TEST(removing_a_user_whose_folder_could_not_be_read_makes_it_anew) {
    failing_env disk;
    model       alice;
    alice.user = "alice";
    const std::vector<token> tokens = random_tokens(1, 64);
    CHECK(alice.save(*open(disk, alice.options()), tokens).is_ok());
    disk.no_list = "/u/";
    auto s = open(disk, alice.options());
    disk.no_list = "";
    uint64_t freed = 0;
    CHECK(s->remove_name_space(user_key("alice"), freed).is_ok());
    CHECK(alice.save(*s, tokens).is_ok());
    CHECK(alice.restore(*s, tokens) == 64);
    CHECK(counts_what_is_there(*s, disk));
}

TEST(a_refused_file_counts_until_it_is_replaced) {
    model m;
    m.folded_size = 20000;
    const std::vector<token> tokens = random_tokens(1, 64);
    for (const char * kind : { ".anc", ".seg", "ckpt-", "index.bin" }) {
        for (const bool is_newer : { true, false }) {
            failing_env disk;
            CHECK(m.save(*open(disk, m.options()), tokens).is_ok());
            const std::string path  = files_with(disk, kind).front();
            std::string       bytes = disk.get(path);
            if (is_newer) {
                bytes[format::header_version] = format::version_extended + 1;
                disk.put(path, bytes);
            } else {
                disk.no_open = path;
            }
            auto s = open(disk, m.options());
            CHECK(counts_what_is_there(*s, disk));
            disk.no_open = "";
            CHECK(m.save(*s, tokens).is_ok());
            CHECK(m.restore(*s, tokens) == 64);
            CHECK(counts_what_is_there(*s, disk));
            CHECK(disk.get(path) == bytes || !contains(path, "ckpt-")); // the new one has another number
        }
    }
}

int main() {
    return run_tests();
}

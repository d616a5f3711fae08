// Whatever happens to the files, nothing crashes, no wrong state is given, and every damaged file counts under its reason.
#include "kvtier/file_names.h"
#include "kvtier/session_testing.h"

#include <map>

using namespace kvtier;
using namespace kvtier::test;

namespace {

// A small store with everything in it: shared pages, parts, anchors, two conversations, a user.
struct small_store {
    model                           m;
    model                           with_user;
    fault_env                       disk;
    std::vector<std::vector<token>> talks;
    std::vector<token>              users_talk;
    mutable size_t                  n_verified = 0; // damaged files that verify() named in the last survive()

    small_store() {
        m.page_size       = 8;
        m.bytes_per_token = 4;
        m.folded_size     = 24;
        with_user      = m;
        with_user.user = "somebody";
        talks.push_back(random_tokens(1, 12));
        talks.push_back(talks[0]);
        append(talks[1], 2, 9);
        talks.push_back(random_tokens(3, 10));
        users_talk = random_tokens(4, 9);
        auto s = open(disk, m.options());
        CHECK(m.save(*s, talks[0], 5, true, { 5 }).is_ok());
        CHECK(m.save(*s, talks[1], 5).is_ok());
        CHECK(m.save(*s, talks[2]).is_ok());
        CHECK(with_user.save(*s, users_talk).is_ok());
    }

    std::vector<std::string> state_files() const {
        std::vector<std::string> out;
        for (const std::string & path : disk.files()) {
            if (path.find("/lock") == std::string::npos && path.find("CACHEDIR") == std::string::npos) {
                out.push_back(path);
            }
        }
        return out;
    }

    // Opens the disk, restores all there is, and says what was counted. Wrong bytes fail the test inside restore().
    counter_values survive(env & e) const {
        std::unique_ptr<store> s;
        const status opened = store::open(e, m.options(), s);
        CHECK(opened.is_ok());
        if (!opened.is_ok()) {
            return {};
        }
        for (const auto & tokens : talks) {
            m.restore(*s, tokens);
        }
        with_user.restore(*s, users_talk);
        verify_report report;
        CHECK(s->verify(report).is_ok());
        CHECK(s->list().size() <= 4);
        counter_values values = s->stats().values;
        n_verified = report.damaged.size();
        // What was damaged does not keep the prompt from being stored again.
        for (const auto & tokens : talks) {
            CHECK(m.save(*s, tokens, 5, true, { 5 }).is_ok());
            CHECK(m.restore(*s, tokens) == tokens.size());
        }
        return values;
    }
};

uint64_t counted(const counter_values & values, damage reason) {
    return values.damaged[static_cast<size_t>(reason)];
}

} // namespace

TEST(a_flipped_byte_is_noticed) {
    const small_store base;
    size_t            n = 0;
    for (const std::string & path : base.state_files()) {
        const std::string sound = base.disk.get(path);
        for (size_t i = 0; i < sound.size(); i += one_in) {
            for (uint8_t flip : { 0x01, 0xff }) {
                auto        disk  = base.disk.clone();
                std::string bytes = sound;
                bytes[i] = static_cast<char>(bytes[i] ^ flip);
                disk->put(path, bytes);
                const counter_values values = base.survive(*disk);
                CHECK(values.damaged_total() == 1 || values.damaged_total() == 1 + counted(values, damage::incomplete) ||
                      base.n_verified == 1); // state that no restore wanted is found by reading every byte
                n++;
            }
        }
    }
    std::printf("  %zu flips\n", n);
}

TEST(a_truncated_file_is_noticed) {
    const small_store base;
    size_t            n = 0;
    for (const std::string & path : base.state_files()) {
        const std::string sound = base.disk.get(path);
        for (size_t length = 0; length < sound.size(); length += one_in) {
            auto disk = base.disk.clone();
            disk->put(path, sound.substr(0, length));
            const counter_values values = base.survive(*disk);
            CHECK(counted(values, damage::truncated) == 1);
            n++;
        }
        auto disk = base.disk.clone();
        disk->put(path, sound + "x");
        CHECK(counted(base.survive(*disk), damage::truncated) == 1);
    }
    std::printf("  %zu lengths\n", n);
}

TEST(swapped_files_are_not_believed) {
    const small_store              base;
    const std::vector<std::string> paths = base.state_files();
    for (const std::string & a : paths) {
        for (const std::string & b : paths) {
            if (a >= b) {
                continue;
            }
            auto disk = base.disk.clone();
            disk->put(a, base.disk.get(b));
            disk->put(b, base.disk.get(a));
            const counter_values values = base.survive(*disk);
            CHECK(counted(values, damage::misplaced) == 2);
        }
    }
}

TEST(a_copied_file_is_not_believed) {
    const small_store              base;
    const std::vector<std::string> paths = base.state_files();
    for (const std::string & from : paths) {
        for (const std::string & to : paths) {
            if (from != to) {
                auto disk = base.disk.clone();
                disk->put(to, base.disk.get(from));
                CHECK(counted(base.survive(*disk), damage::misplaced) == 1);
            }
        }
        // It lies beside itself, under a name that could be one, and under one that could not.
        const std::string folder = from.substr(0, from.rfind('/') + 1);
        for (const char * name : { "00000000000000ff.seg", "ckpt-77.bin", "ffffffffffffffffffffffffffffffff.anc", "copy" }) {
            auto disk = base.disk.clone();
            disk->put(folder + name, base.disk.get(from));
            CHECK(counted(base.survive(*disk), damage::misplaced) == 1);
        }
    }
}

TEST(a_stray_name_leaves_numbers_for_what_is_saved_next) {
    const model m;
    fault_env   base;
    std::vector<std::vector<token>> talks = { random_tokens(1, 1100) };
    CHECK(m.save(*open(base, m.options()), talks[0]).is_ok());
    for (size_t i = 1; i < 6; i++) { // turns of one conversation
        talks.push_back(talks.back());
        append(talks.back(), i, 20);
    }
    const auto beside = [&base](const std::string & kind, const std::string & name) {
        const std::string path = files_with(base, kind).front();
        return path.substr(0, path.rfind('/') + 1) + name;
    };
    for (const std::string & stray : { beside(".seg", "fffffffffffffffe.seg"), beside(".seg", "8000000000000000.seg"),
                                       beside(".seg", "7fffffffffffffff.seg"), beside("ckpt", "ckpt-999999999.bin"),
                                       beside("ckpt", "ckpt-4294967295.bin") }) {
        auto disk = base.clone();
        disk->put(stray, "x");
        {
            auto s = open(*disk, m.options());
            CHECK(s->stats().values.damaged_total() == 1);
            for (const auto & tokens : talks) {
                CHECK(m.save(*s, tokens).is_ok());
            }
        }
        auto s = open(*disk, m.options());
        CHECK(s->stats().values.damaged_total() == 0);
        CHECK(s->stats().n_checkpoints == talks.size() + 1);
        for (const auto & tokens : talks) {
            CHECK(m.restore(*s, tokens) == tokens.size());
        }
    }
}

TEST(a_folder_or_link_in_place_of_a_file_is_not_followed) {
    const small_store base;
    for (const std::string & path : base.state_files()) {
        for (bool link : { false, true }) {
            auto disk = base.disk.clone();
            disk->erase(path);
            if (link) {
                disk->put_link(path);
            } else {
                disk->put_folder(path);
                disk->put_folder(path + "/deeper");
                disk->put(path + "/deeper/file", "x");
            }
            CHECK(counted(base.survive(*disk), damage::wrong_type) == 1);
        }
    }
}

TEST(a_file_or_link_in_place_of_a_folder_is_set_aside) {
    const small_store  base;
    const std::string  dir   = "/cache/" + hex(base.m.root().fingerprint);
    const std::string  talk  = "/" + hex(conversation_hash(base.talks[0].data(), base.talks[0].size()));
    for (const std::string & folder : { dir + "/pages", dir + "/anchors", dir + "/u", dir + talk, dir + "/quarantine" }) {
        for (bool link : { false, true }) {
            auto disk = base.disk.clone();
            for (const std::string & path : disk->files()) {
                if (path.compare(0, folder.size() + 1, folder + "/") == 0) {
                    disk->erase(path);
                }
            }
            disk->erase(folder);
            link ? disk->put_link(folder) : disk->put(folder, "x");
            CHECK(counted(base.survive(*disk), damage::wrong_type) == 1);
        }
    }
}

TEST(a_removed_file_takes_only_its_checkpoints_along) {
    const small_store base;
    for (const std::string & path : base.state_files()) {
        auto disk = base.disk.clone();
        disk->erase(path);
        const counter_values values = base.survive(*disk);
        const bool is_pages = path.find(".seg") != std::string::npos;
        CHECK((counted(values, damage::incomplete) > 0) == is_pages); // checkpoints that named it
        CHECK(values.damaged_total() == counted(values, damage::incomplete));
    }
}

TEST(a_file_of_a_newer_format_is_left_as_it_is) {
    const small_store base;
    for (const std::string & path : base.state_files()) {
        auto        disk  = base.disk.clone();
        std::string bytes = disk->get(path);
        bytes[format::header_version] = format::version_extended + 1;
        disk->put(path, bytes);
        CHECK(counted(base.survive(*disk->clone()), damage::bad_version) == 1);
        {
            std::unique_ptr<store> s;
            CHECK(store::open(*disk, base.m.options(), s).is_ok());
        }
        // It is for a newer program, so it is neither moved nor changed. (The index of uses is written anew by whoever uses.)
        CHECK(disk->get(path) == bytes || path.find("index.bin") != std::string::npos);
    }
}

TEST(damage_while_the_store_is_open_does_not_reach_the_model) {
    const small_store base;
    for (const std::string & path : base.state_files()) {
        if (path.find(".seg") == std::string::npos && path.find(".anc") == std::string::npos) {
            continue;
        }
        auto        disk  = base.disk.clone();
        auto        s     = open(*disk, base.m.options());
        std::string bytes = disk->get(path);
        bytes.back() = static_cast<char>(bytes.back() ^ 0x40);
        disk->put(path, bytes);
        for (const auto & tokens : base.talks) {
            base.m.restore(*s, tokens);
        }
        base.with_user.restore(*s, base.users_talk);
        if (counted(s->stats().values, damage::bad_checksum) == 0) { // an anchor that no restore wanted
            verify_report report;
            CHECK(s->verify(report).is_ok());
            CHECK(report.damaged.size() == 1);
            continue;
        }
        CHECK(counted(s->stats().values, damage::bad_checksum) == 1);
        CHECK(!disk->exists(path)); // set aside
        CHECK(s->damaged().size() == 1);
        for (const auto & tokens : base.talks) {
            CHECK(base.m.save(*s, tokens).is_ok());
            CHECK(base.m.restore(*s, tokens) == tokens.size());
        }
        uint64_t freed = 0;
        CHECK(s->gc(freed).is_ok());
        CHECK(freed > 0);
        CHECK(counts_what_is_there(*s, *disk));
    }
}

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

TEST(what_is_set_aside_counts_once) {
    const small_store base;
    auto              disk = base.disk.clone();
    const auto        cut  = [&](const std::string & path) {
        if (disk->exists(path)) {
            disk->put(path, disk->get(path).substr(1));
        }
    };
    const auto files = base.state_files();
    cut(files[0]);
    CHECK(open(*disk, base.m.options()) != nullptr); // sets it aside
    for (size_t i = 1; i < files.size(); i++) {      // these follow it, before that folder is looked at
        cut(files[i]);
    }
    auto s = open(*disk, base.m.options());
    CHECK(counts_what_is_there(*s, *disk));
    uint64_t freed = 0;
    CHECK(s->gc(freed).is_ok());
    CHECK(freed > 0);
    CHECK(counts_what_is_there(*s, *disk));
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

// Files of pages that hold these tokens go, or (in_use) are found damaged by whoever reads them.
static void lose_pages(fault_env & disk, agent & a, std::unique_ptr<store> & s, const std::vector<token> & own, bool in_use) {
    if (in_use) {
        damage_pages_of(disk, own);
        CHECK(a.use(*s, 1, 320) == 0);
        return;
    }
    const auto options = s->options();
    s = nullptr;
    for (const std::string & path : files_with(disk, ".seg")) {
        if (contains(disk.get(path), { reinterpret_cast<const char *>(own.data()), own.size() * sizeof(token) })) {
            disk.erase(path);
        }
    }
    s = open(disk, options);
    CHECK(counted(s->stats().values, damage::incomplete) == 1 && s->damaged().size() == 1);
}

TEST(a_session_whose_end_is_damaged_can_be_listed_removed_and_expires) {
    for (const bool in_use : { true, false }) {
        for (const bool is_removed : { true, false }) {
            fault_env     disk;
            agent         a;
            store_options o = a.m.options();
            o.segment_bytes = 4096; // A turn takes several.
            auto s = open(disk, o);
            CHECK(a.save(*s, 1, expire(7 * 86400000), 320).is_ok());
            const std::vector<token> tokens = a.session(1, 320);
            const std::vector<token> other(tokens.begin(), tokens.begin() + 80); // goes on from its first page
            save_request             request = a.m.request(*s, other, 64);
            request.conversation = { agent::hash(3), 64 + 8, "", ttl(forever_ms) };
            CHECK(s->save(request).is_ok());
            lose_pages(disk, a, s, { tokens.end() - 16, tokens.end() }, in_use);
            const size_t n_left = a.use(*s, 1, 320);
            CHECK(n_left > 80 && n_left < tokens.size());
            for (int i = 0; i < 2; i++) { // A restart finds what this process knows.
                CHECK(is_listed(*s, 1) && info(*s, 1).n_tokens == n_left && info(*s, 1).title == "session 1");
                CHECK(info(*s, 1).life == expire(7 * 86400000).applied_to({}));
                CHECK(counts_what_is_there(*s, disk));
                s = nullptr;
                s = open(disk, o);
                CHECK(s->damaged().size() == (in_use && i == 0)); // It is told once.
            }
            if (is_removed) {
                uint64_t freed = 0;
                CHECK(s->remove_conversation({}, agent::hash(1), freed).is_ok());
            } else {
                disk.set_now_ms(disk.now_ms() + int64_t(8) * 86400000);
                CHECK(sweep(*s) > 0);
            }
            CHECK(!is_listed(*s, 1));
            for (size_t at = 80; at + 16 <= tokens.size(); at += 16) { // A page of its words.
                const auto page = tokens.begin() + static_cast<std::ptrdiff_t>(at);
                CHECK(!holds_tokens(disk, { page, page + 16 }));
            }
            CHECK(a.m.restore(*s, other) == other.size());
        }
    }
}

TEST(a_session_whose_last_anchor_is_damaged_can_be_listed) {
    fault_env disk;
    agent     a;
    a.m.folded_size = 64;
    auto s = open(disk, a.m.options());
    CHECK(a.save(*s, 1, expire(7 * 86400000)).is_ok());
    for (const std::string & path : files_with(disk, ".anc")) {
        disk.damage(path);
    }
    CHECK(a.m.restore(*s, a.session(1)) < 104);
    for (int i = 0; i < 2; i++) {
        CHECK(is_listed(*s, 1) && info(*s, 1).life == expire(7 * 86400000).applied_to({}));
        s = nullptr;
        s = open(disk, a.m.options());
    }
    uint64_t freed = 0;
    CHECK(s->remove_conversation({}, agent::hash(1), freed).is_ok());
    CHECK(!holds_tokens(disk, a.session(1)));
}

TEST(a_shorter_session_is_found_again_where_the_disk_was_full_or_the_power_went) {
    fault_env     base;
    agent         a;
    store_options o = a.m.options();
    o.segment_bytes = 4096;
    CHECK(a.save(*open(base, o), 1, ttl(forever_ms), 320).is_ok());
    base.erase(files_with(base, ".seg").back());
    bool met = true;
    for (const fault what : { fault::cut, fault::kill, fault::io_error, fault::no_space }) {
        met = true;
        for (size_t n = 1; met; n++) {
            auto                   disk = base.clone();
            std::unique_ptr<store> s;
            disk->fail_at(n, what);
            (void) store::open(*disk, o, s).is_ok();
            met = disk->calls() >= n;
            s   = nullptr;
            disk->power_cut(cut_mode::strict);
            s = open(*disk, o);
            CHECK(is_listed(*s, 1) && a.use(*s, 1, 320) > 80);
        }
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

TEST(a_link_in_quarantine_is_not_followed) {
    struct listing_env : failing_env {
        std::vector<std::string> listed;

        status list_dir(const std::string & path, std::vector<dir_entry> & out) override {
            listed.push_back(path);
            return failing_env::list_dir(path, out);
        }
    } disk;
    const model m;
    CHECK(open(disk, m.options()) != nullptr);
    const std::string aside = "/cache/" + hex(m.options().fingerprint) + "/quarantine";
    disk.put_folder(aside);
    disk.put_link(aside + "/link");
    disk.put_folder(aside + "/tree");
    disk.put(aside + "/tree/file", std::string(10000, 'x'));
    auto s = open(disk, m.options());
    CHECK(counts_what_is_there(*s, disk));
    disk.no_remove = aside; // then it is counted again
    uint64_t freed = 0;
    CHECK(s->gc(freed).is_io_error());
    CHECK(freed == 0 && disk.exists(aside + "/link"));
    CHECK(counts_what_is_there(*s, disk));
    CHECK(std::count(disk.listed.begin(), disk.listed.end(), aside + "/tree") > 0);
    CHECK(std::count(disk.listed.begin(), disk.listed.end(), aside + "/link") == 0);
}

TEST(damaged_files_that_cannot_be_set_aside_leave_room_in_the_budget) {
    failing_env disk;
    model       m;
    m.bytes_per_token = 256;
    store_options o = m.options();
    CHECK(m.save(*open(disk, o), random_tokens(1, 640)).is_ok());
    for (const std::string & path : files_with(disk, ".seg")) {
        disk.put(path, std::string(disk.get(path).size(), 'x'));
    }
    disk.no_make = "/quarantine";
    o.max_bytes  = 180 << 10;
    auto s = open(disk, o);
    CHECK(counts_what_is_there(*s, disk));
    CHECK(m.save(*s, random_tokens(2, 64)).is_ok());
    CHECK(counts_what_is_there(*s, disk));
}

TEST(inspecting_a_damaged_store_changes_nothing) {
    const small_store base;
    auto              disk = base.disk.clone();
    const std::string path = base.state_files().front();
    disk->put(path, "short");
    const auto before = disk->files();
    store_options o = base.m.options();
    o.inspect = true;
    {
        auto s = open(*disk, o);
        verify_report report;
        CHECK(s->verify(report).is_ok());
        CHECK(!report.damaged.empty());
        CHECK(!base.m.save(*s, base.talks[0]).is_ok());
    }
    CHECK(disk->files() == before);
    CHECK(disk->get(path) == "short");
}

int main() {
    return run_tests();
}

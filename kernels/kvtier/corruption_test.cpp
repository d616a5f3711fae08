// Whatever happens to the files, nothing crashes, no wrong state is given, and every damaged file counts under its reason.
#include "kvtier/file_names.h"
#include "kvtier/store_testing.h"

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

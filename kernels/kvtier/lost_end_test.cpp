// A session whose last part is damaged or gone keeps the rest, its name, and how long it is kept.
#include "kvtier/session_testing.h"

using namespace kvtier;
using namespace kvtier::test;

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

int main() {
    return run_tests();
}

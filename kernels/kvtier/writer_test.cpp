// The writer thread is never in the way, and never forgets anything without saying so.
#include "kvtier/store_testing.h"
#include "kvtier/writer.h"

#include <atomic>
#include <chrono>
#include <thread>

using namespace kvtier;
using namespace kvtier::test;

static plan_request planned(const model & m, const std::vector<token> & tokens) {
    plan_request p;
    p.root     = m.root();
    p.tokens   = tokens.data();
    p.n_tokens = tokens.size();
    return p;
}

namespace {

// A disk on which no file is made while its gate is shut: how long anything takes on a busy machine says nothing. It opens after a
// while, so that who waits for it fails and does not hang.
struct gated_disk : fault_env {
    std::atomic<bool> is_shut{ false };

    status create_file(const std::string & path, std::unique_ptr<writable_file> & out) override {
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(120);
        while (is_shut) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            if (std::chrono::steady_clock::now() >= until) {
                is_shut = false;
            }
        }
        return fault_env::create_file(path, out);
    }
};

} // namespace

TEST(a_slow_disk_does_not_delay_serving) {
    gated_disk  disk;
    const model m;
    auto        s = open(disk, m.options());
    disk.is_shut = true;
    writer w(*s, 1 << 20);
    std::vector<std::vector<token>> talks;
    for (uint64_t i = 0; i < 5; i++) {
        talks.push_back(random_tokens(i, 64));
        save_request request = w.plan(planned(m, talks.back()));
        m.fill(request);
        CHECK(w.enqueue(std::move(request)));
    }
    CHECK(w.queued() == 5);
    disk.is_shut = false;
    w.flush();
    CHECK(w.queued() == 0);
    for (const auto & tokens : talks) {
        CHECK(m.restore(*s, tokens) == 64);
    }
}

TEST(trouble_is_told_once_until_it_is_over) {
    fault_env           disk;
    const model         m;
    auto                s = open(disk, m.options());
    std::vector<status> told;
    writer              w(*s, 1 << 20, [&](const status & result) { told.push_back(result); });
    const auto save = [&](uint64_t seed) {
        save_request request = w.plan(planned(m, random_tokens(seed, 64)));
        m.fill(request);
        CHECK(w.enqueue(std::move(request)));
        w.flush();
    };
    save(1);
    CHECK(told.empty());
    disk.set_read_only(true);
    save(2);
    save(3);
    CHECK(told.size() == 1 && told[0].is_io_error() && !told[0].message().empty());
    CHECK(!w.last_error().empty());
    disk.set_read_only(false);
    save(4);
    save(5);
    CHECK(told.size() == 2 && told[1].is_ok());
    CHECK(w.last_error().empty());
}

static lookup_request asked(const model & m, const std::vector<token> & tokens) {
    lookup_request r;
    r.root     = m.root();
    r.tokens   = tokens.data();
    r.n_tokens = tokens.size();
    r.limit    = tokens.size();
    r.folded   = m.folded_size > 0;
    return r;
}

// Restores what is stored and queued; wrong bytes fail the test.
static size_t restore(const model & m, store & s, const writer & w, const std::vector<token> & tokens) {
    const match found = w.find(asked(m, tokens));
    if (found.n_tokens > 0) {
        loaded_state state;
        CHECK(s.load(found, tokens.data(), tokens.size(), state).is_ok());
        CHECK(state.n_tokens == found.n_tokens && m.is_right(state, tokens));
        s.touch(found);
    }
    return found.n_tokens;
}

// A turn that ends with so many of the tokens.
static void queue_turn(const model & m, writer & w, std::vector<token> tokens, size_t n) {
    tokens.resize(n);
    plan_request p = planned(m, tokens);
    if (m.folded_size > 0) {
        p.anchors = { static_cast<uint32_t>(n) };
    }
    save_request request = w.plan(p);
    m.fill(request);
    CHECK(w.enqueue(std::move(request)));
}

TEST(what_is_queued_is_found) {
    for (const size_t folded_size : { size_t(0), size_t(100) }) {
        fault_env disk;
        model     m;
        m.folded_size = folded_size;
        auto                     s      = open(disk, m.options());
        const std::vector<token> tokens = random_tokens(1, 200);
        writer                   w(*s, 1 << 20);
        queue_turn(m, w, tokens, 40);
        w.flush();
        w.hold(true);
        CHECK(restore(m, *s, w, tokens) == 40);
        queue_turn(m, w, tokens, 90);
        queue_turn(m, w, tokens, 160);
        CHECK(m.restore(*s, tokens) == 40);
        CHECK(restore(m, *s, w, tokens) == 160);

        std::vector<token> branch = tokens;
        branch[100]++;
        CHECK(restore(m, *s, w, branch) == (folded_size > 0 ? 90 : 100));
        branch[20]++;
        CHECK(restore(m, *s, w, branch) == (folded_size > 0 ? 0 : 20));
        branch = tokens;
        branch[60]++;
        const match parted = w.find(asked(m, branch)); // Also where no anchor lies between what is stored and where they part.
        CHECK(parted.n_common == 60 && parted.n_tokens == (folded_size > 0 ? 40 : 60));
        CHECK(parted.reason == (folded_size > 0 ? miss_reason::no_anchor : miss_reason::diverged));
        lookup_request part = asked(m, tokens);
        part.limit = 120;
        CHECK(w.find(part).n_tokens == (folded_size > 0 ? 90 : 120));
        model other = m;
        other.user  = "somebody else";
        CHECK(restore(other, *s, w, tokens) == 0);

        // It may be written, and leave the queue, before it is read.
        const match before = w.find(asked(m, tokens));
        w.flush();
        loaded_state state;
        CHECK(s->load(before, tokens.data(), tokens.size(), state).is_ok());
        CHECK(state.n_tokens == 160 && m.is_right(state, tokens));
        s->touch(before);
        CHECK(m.restore(*s, tokens) == 160 && restore(m, *s, w, tokens) == 160);

        // It parts from what is stored within a page, where that has a little more in common with the prompt than the page before.
        w.hold(true);
        branch      = tokens;
        branch[100]++;
        queue_turn(m, w, branch, 180);
        CHECK(restore(m, *s, w, branch) == 180);
        branch[150]++;
        CHECK(restore(m, *s, w, branch) == (folded_size > 0 ? 90 : 150));
    }
}

namespace {

// It cannot be had, and says so from the n-th time on that it is asked.
class never_there : public arriving_data {
public:
    explicit never_there(int silent_for) : silent_for(silent_for) {}
    bool wait() const override { return false; }
    bool is_there() const override { return silent_for-- <= 0; }

private:
    mutable int silent_for;
};

} // namespace

TEST(what_is_queued_and_could_not_be_copied_is_not_restored) {
    for (const int silent_for : { 0, 1, 1000 }) {
        fault_env                disk;
        const model              m;
        auto                     s      = open(disk, m.options());
        const std::vector<token> tokens = random_tokens(1, 64);
        writer                   w(*s, 1 << 20);
        w.hold(true);
        save_request request = w.plan(planned(m, tokens));
        m.fill(request);
        request.arriving.push_back(std::make_shared<never_there>(silent_for));
        CHECK(w.enqueue(std::move(request)));
        const match  found = w.find(asked(m, tokens));
        loaded_state state;
        CHECK(found.n_tokens == (silent_for == 0 ? 0 : 64));
        CHECK(s->load(found, tokens.data(), tokens.size(), state).is_miss());
    }
}

TEST(a_full_queue_refuses_at_once_and_counts_it) {
    fault_env   disk;
    const model m;
    auto        s = open(disk, m.options());
    writer   w(*s, 2000);
    uint64_t refused = 0;
    w.hold(true); // However slowly this thread goes on, nothing leaves the queue meanwhile.
    for (uint64_t i = 0; i < 20; i++) {
        const std::vector<token> tokens  = random_tokens(i, 64);
        save_request             request = w.plan(planned(m, tokens));
        m.fill(request);
        refused += !w.enqueue(std::move(request));
        CHECK(w.queued_bytes() <= 2000);
    }
    CHECK(refused == 18); // One has 768 bytes.
    CHECK(s->stats().values.skipped_queue_full == refused);
    CHECK(!w.has_room(2001));
    CHECK(s->stats().values.skipped_queue_full == refused + 1);
    w.stop();
    CHECK(w.queued_bytes() == 0 && !w.has_room(1)); // it has stopped
    CHECK(s->stats().values.checkpoints_written == 20 - refused);
    CHECK(!w.enqueue({}));
}

TEST(pages_on_their_way_are_not_copied_again) {
    fault_env   disk;
    const model m;
    auto        s = open(disk, m.options());
    disk.set_delay_us(30000);
    writer             w(*s, 1 << 20);
    std::vector<token> tokens = random_tokens(1, 100);
    save_request       prompt = w.plan(planned(m, tokens));
    m.fill(prompt);
    prompt.checkpoint = false; // the answer is still being generated
    CHECK(prompt.runs.size() == 7);
    CHECK(w.enqueue(std::move(prompt)));
    append(tokens, 2, 20);
    save_request turn = w.plan(planned(m, tokens));
    CHECK(turn.runs.size() == 2); // [100, 112) and [112, 120)
    CHECK(turn.runs.at(0).p0 == 100);
    m.fill(turn);
    CHECK(w.enqueue(std::move(turn)));
    w.stop();
    CHECK(m.restore(*s, tokens) == 120);
    CHECK(s->stats().values.runs_written == 9);
}

TEST(a_failed_save_is_made_up_for_by_the_next) {
    fault_env   disk;
    const model m;
    auto        s = open(disk, m.options());
    writer             w(*s, 1 << 20);
    std::vector<token> tokens = random_tokens(1, 40);
    disk.set_read_only(true);
    save_request request = w.plan(planned(m, tokens));
    m.fill(request);
    CHECK(w.enqueue(std::move(request)));
    w.flush();
    CHECK(w.last_error().find("Read-only") != std::string::npos);
    disk.set_read_only(false);
    append(tokens, 2, 40);
    request = w.plan(planned(m, tokens));
    CHECK(request.runs.at(0).p0 == 0);
    m.fill(request);
    CHECK(w.enqueue(std::move(request)));
    w.flush();
    CHECK(w.last_error().empty());
    CHECK(m.restore(*s, tokens) == 80);
}

TEST(readers_and_the_writer_do_not_trip_over_each_other) {
    fault_env     disk;
    model         m;
    store_options o = m.options();
    o.max_bytes = 300 << 10;
    o.ram_bytes = 20 << 10;
    auto   s = open(disk, o);
    writer w(*s, 1 << 20);
    std::atomic<bool>        done{ false };
    std::vector<std::thread> readers;
    for (uint64_t t = 0; t < 3; t++) {
        readers.emplace_back([&, t] {
            random_source r{ t };
            while (!done) {
                m.restore(*s, random_tokens(r.below(60), 200));
                s->list();
                s->stats();
            }
        });
    }
    for (uint64_t i = 0; i < 200; i++) {
        const std::vector<token> tokens  = random_tokens(i % 60, 200);
        save_request             request = w.plan(planned(m, tokens));
        m.fill(request);
        w.enqueue(std::move(request));
        if (i % 20 == 0) {
            uint64_t freed = 0;
            CHECK(s->gc(freed).is_ok());
        }
    }
    w.stop();
    done = true;
    for (std::thread & t : readers) {
        t.join();
    }
    CHECK(s->stats().values.damaged_total() == 0);
    CHECK(disk.disk_bytes() <= o.max_bytes);
}

TEST(damage_found_by_a_reader_does_not_harm_the_writer) {
    fault_env     disk;
    model         m;
    store_options o = m.options();
    o.max_bytes = 500 << 10;
    auto s = open(disk, o);
    std::atomic<bool> done{ false };
    std::thread vandal([&] {
        random_source r{ 5 };
        while (!done) {
            const auto files = disk.files();
            const std::string & path = files[r.below(static_cast<uint32_t>(files.size()))];
            if (path.find(".seg") != std::string::npos) {
                disk.damage(path); // where it lies: put() would bring back a file that was just removed
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    });
    std::thread reader([&] {
        random_source r{ 6 };
        while (!done) {
            std::vector<token> tokens = random_tokens(r.below(20), 100);
            append(tokens, 7, 100);
            m.restore(*s, tokens);
        }
    });
    // A busy machine may run this thread alone for a while: it goes on until the others have met.
    for (uint64_t i = 0; i < 300 || (i < 100000 && s->stats().values.damaged_total() == 0); i++) {
        std::vector<token> tokens = random_tokens(i % 20, 100);
        append(tokens, 7, 1 + i % 100);
        const status saved = m.save(*s, tokens);
        CHECK(saved.is_ok() || saved.is_miss());
    }
    done = true;
    vandal.join();
    reader.join();
    uint64_t freed = 0;
    CHECK(s->gc(freed).is_ok());
    CHECK(counts_what_is_there(*s, disk));
    CHECK(s->stats().values.damaged_total() > 0);
}

// A reader gives up a file that the save under way, which began before, writes again.
struct reader_beside_a_save {
    model                  m;
    failing_env            disk;
    std::unique_ptr<store> s;

    reader_beside_a_save() {
        m.folded_size = 64;
        s = open(disk, m.options());
    }

    void damage(const char * kind) {
        for (const std::string & path : files_with(disk, kind)) {
            disk.damage(path);
        }
    }

    void load_damaged(const match & found, const std::vector<token> & tokens) {
        loaded_state state;
        CHECK(s->load(found, tokens.data(), tokens.size(), state).is_damaged());
    }

    void save_while_reading(const std::vector<token> & read, const std::vector<token> & saved,
                            const std::vector<uint32_t> & anchors) {
        damage(".anc");
        const match found = m.lookup(*s, read);
        const match twice = m.lookup(*s, read);
        disk.renamed   = ".seg";
        disk.meanwhile = [&] { load_damaged(found, read); };
        CHECK(m.save(*s, saved, 0, true, anchors).is_ok());
        CHECK(!disk.meanwhile);
        damage(".anc");
        load_damaged(twice, read); // it names the object that is gone: what has taken its place stays
        damage(".anc");            // a second time makes it sound again
        uint64_t freed = 0;
        CHECK(s->gc(freed).is_ok());
        CHECK(counts_what_is_there(*s, disk));
    }
};

TEST(a_removal_put_off_leaves_the_checkpoint_that_has_its_number_since) {
    reader_beside_a_save     on;
    const std::vector<token> a = random_tokens(1, 48), b = random_tokens(2, 48);
    std::vector<token>       c = b;
    append(c, 3, 50);
    const auto save = [&](const std::vector<token> & tokens) {
        save_request request = on.m.request(*on.s, tokens);
        request.conversation.hash = 7;
        return on.s->save(request);
    };
    CHECK(save(a).is_ok());
    const match found = on.m.lookup(*on.s, a);
    on.damage(".seg");
    on.disk.renamed   = ".seg";
    on.disk.meanwhile = [&] { on.load_damaged(found, a); }; // The conversation has lost all, and begins anew.
    CHECK(save(b).is_ok());
    CHECK(!on.disk.meanwhile);
    uint64_t freed = 0;
    CHECK(on.s->gc(freed).is_ok());
    CHECK(files_with(on.disk, "/ckpt-").size() == 1);
    CHECK(save(c).is_ok());
    CHECK(on.s->stats().n_checkpoints == 2);
    CHECK(on.m.restore(*on.s, c) == c.size());
    CHECK(counts_what_is_there(*on.s, on.disk));
}

TEST(a_removal_put_off_leaves_the_anchor_that_has_been_written_since) {
    reader_beside_a_save on;
    const std::vector<token> b = random_tokens(1, 98);
    const std::vector<token> a(b.begin(), b.begin() + 48);
    CHECK(on.m.save(*on.s, a).is_ok());
    on.save_while_reading(a, b, { 48 });
    CHECK(files_with(on.disk, ".anc").size() == 2);
    CHECK(on.m.restore(*on.s, a) == 48);
    CHECK(on.m.restore(*on.s, b) == b.size());
    CHECK(counts_what_is_there(*on.s, on.disk));
}

TEST(a_users_removal_takes_along_what_readers_give_up_meanwhile) {
    reader_beside_a_save     on;
    const std::vector<token> a = random_tokens(1, 48), b = random_tokens(2, 48), c = random_tokens(3, 48);
    CHECK(on.m.save(*on.s, a).is_ok());
    CHECK(on.m.save(*on.s, b).is_ok());
    on.damage(".anc");
    const match of_a = on.m.lookup(*on.s, a);
    const match of_b = on.m.lookup(*on.s, b);
    on.disk.renamed   = ".seg";
    on.disk.meanwhile = [&] { on.load_damaged(of_a, a); }; // its file is left to the next writer
    CHECK(on.m.save(*on.s, c).is_ok());
    on.disk.renamed   = "/quarantine/";
    on.disk.meanwhile = [&] { on.load_damaged(of_b, b); };
    uint64_t freed = 0;
    CHECK(on.s->remove_name_space({}, freed).is_ok());
    CHECK(!on.disk.meanwhile);
    CHECK(files_with(on.disk, ".seg").empty() && files_with(on.disk, ".anc").empty());
    CHECK(files_with(on.disk, "/ckpt-").empty());
    CHECK(counts_what_is_there(*on.s, on.disk));
}

int main() {
    return run_tests();
}

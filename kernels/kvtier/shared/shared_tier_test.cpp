// A folder that servers share: what one has saved the others restore, and whatever happens to the folder, nobody is the worse for it.
#include "kvtier/shared/shared_tier.h"

#include "kvtier/file_names.h"
#include "kvtier/store_testing.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

using namespace kvtier;
using namespace kvtier::test;
using namespace std::chrono_literals;

namespace {

constexpr char shared_dir[] = "/shared";

// A network's disk: its calls hang for as long as a test wants, and it goes on existing for calls that nobody waits for.
struct network_disk : failing_env {
    network_disk() { put_folder(shared_dir); }

    std::atomic<bool> hangs{ false };
    std::atomic<bool> is_stale{ false }; // files are listed that are gone
    std::atomic<int>  ms_per_name{ 0 };  // that a list takes

    status open_file(const std::string & path, std::unique_ptr<readable_file> & out) override {
        wait();
        return is_stale && contains(path, ".seg") ? status::miss(path + ": Stale file handle") : failing_env::open_file(path, out);
    }
    status create_file(const std::string & path, std::unique_ptr<writable_file> & out) override {
        wait();
        return failing_env::create_file(path, out);
    }
    status list_dir(const std::string & path, std::vector<dir_entry> & out) override {
        wait();
        return failing_env::list_dir(path, out);
    }
    status scan_dir(const std::string & path, const entry_visitor & found) override {
        return failing_env::scan_dir(path, [&](dir_entry && entry) {
            std::this_thread::sleep_for(std::chrono::milliseconds(ms_per_name));
            found(std::move(entry));
        });
    }

private:
    void wait() const {
        while (hangs) {
            std::this_thread::sleep_for(5ms);
        }
    }
};

shared_options quick() {
    shared_options o;
    o.dir          = shared_dir;
    o.backend      = "cpu";
    o.limit        = uint64_t(1) << 30;
    o.timeout      = 400ms;
    o.off_for      = 100ms;
    o.refresh      = 10ms;
    o.idle_refresh = 20ms;
    o.term         = 200ms;
    o.unfinished   = 300ms;
    o.touch        = 0ms;
    return o;
}

// A server's cache: a disk of its own, and the folder.
struct server {
    explicit server(network_disk & network, const model & m = {}, const shared_options & o = quick())
        : m(m), s(open(disk, m.options())), tier(s->share(network, o)) {}

    size_t fetch(const std::vector<token> & tokens) const {
        lookup_request r;
        r.root     = m.root();
        r.tokens   = tokens.data();
        r.n_tokens = tokens.size();
        r.limit    = tokens.size();
        r.folded   = m.folded_size > 0;
        const shared_match found   = tier->find(r, s->lookup(r));
        uint64_t           n_bytes = 0;
        return found.n_tokens > 0 && tier->fetch(r.root, found, 10s, n_bytes).is_ok() ? found.n_tokens : 0;
    }

    // What a request would restore of it.
    size_t restore(const std::vector<token> & tokens) const {
        (void) fetch(tokens);
        return m.restore(*s, tokens);
    }

    bool save_as(uint64_t conversation, const std::vector<token> & tokens) const {
        save_request request = m.request(*s, tokens);
        request.conversation.hash = conversation;
        return s->save(request).is_ok();
    }

    // It ends and starts again, on the same disk.
    void restart(network_disk & network) {
        tier.reset();
        s.reset();
        s    = open(disk, m.options());
        tier = s->share(network, quick());
    }

    bool save(const std::vector<token> & tokens, uint32_t n_static = 0) const { return m.save(*s, tokens, n_static).is_ok(); }
    bool save_and_publish(const std::vector<token> & tokens, uint32_t n_static = 0) const {
        return save(tokens, n_static) && tier->publish(10s);
    }

    fault_env                    disk;
    const model                  m;
    std::unique_ptr<store>       s;
    std::unique_ptr<shared_tier> tier;
};

bool within(std::chrono::milliseconds time, const std::function<bool()> & holds) {
    for (const auto until = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < until;) {
        if (holds()) {
            return true;
        }
        std::this_thread::sleep_for(5ms);
    }
    return holds();
}

std::vector<std::string> objects(const network_disk & network) {
    std::vector<std::string> out;
    for (const std::string & path : files_with(network, shared_dir)) {
        if (contains(path, ".seg") || contains(path, ".anc")) {
            out.push_back(path);
        }
    }
    return out;
}

} // namespace

TEST(what_one_server_has_saved_another_restores) {
    for (const size_t folded_size : { size_t(0), size_t(3000) }) {
        network_disk network;
        model        m;
        m.folded_size = folded_size;
        const server       a(network, m);
        const server       b(network, m);
        std::vector<token> talk = random_tokens(1, 100);
        CHECK(a.save_and_publish(talk, 32));
        CHECK(within(10s, [&] { return b.restore(talk) == 100; }));
        append(talk, 2, 60); // It goes on at the other one, and back.
        CHECK(b.save_and_publish(talk, 32));
        CHECK(within(10s, [&] { return a.restore(talk) == 160; }));
        const server c(network, m);
        CHECK(within(10s, [&] { return c.restore(talk) == 160; }));
    }
}

TEST(what_has_come_from_there_is_stored_here) {
    network_disk network;
    const server a(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    server b(network);
    CHECK(within(10s, [&] { return b.restore(talk) == 100; }));
    b.tier.reset();
    b.s.reset();
    b.s = open(b.disk, b.m.options());
    CHECK(b.m.restore(*b.s, talk) == 100);
}

TEST(a_prompt_that_parts_within_a_page_uses_the_rows_before) {
    network_disk network;
    const server a(network), b(network);
    auto         talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    talk.resize(90);
    append(talk, 3, 30);
    CHECK(within(10s, [&] { return b.restore(talk) == 90; }));
}

TEST(what_is_there_is_not_published_again) {
    network_disk network;
    const server a(network), b(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    const uint64_t written = network.bytes_appended();
    CHECK(b.save_and_publish(talk));
    CHECK(b.tier->stats().published == 0);
    CHECK(network.bytes_appended() - written < 1000); // leases alone
}

TEST(only_what_is_missing_is_fetched) {
    network_disk network;
    const server a(network), b(network);
    const auto   prefix = random_tokens(1, 64);
    auto         talk   = prefix;
    append(talk, 2, 64);
    CHECK(a.save_and_publish(talk));
    CHECK(b.save(prefix));
    CHECK(within(10s, [&] { return b.restore(talk) == 128; }));
    CHECK(b.tier->stats().bytes_fetched == 64 * b.m.bytes_per_token);
}

TEST(users_are_apart_and_shared_only_when_said) {
    network_disk network;
    model        named;
    named.user = "ann";
    const auto   talk = random_tokens(1, 100);
    const server a(network, named);
    CHECK(a.save_and_publish(talk));
    CHECK(objects(network).empty());

    shared_options o = quick();
    o.users = true;
    const server c(network, named, o), d(network, named, o), nobody(network, {}, o);
    CHECK(c.save_and_publish(talk));
    CHECK(within(10s, [&] { return d.restore(talk) == 100; }));
    CHECK(nobody.restore(talk) == 0);
    CHECK(a.tier->stats().n_usable == 0);
}

TEST(what_another_backend_has_computed_is_used_only_when_said) {
    network_disk network;
    const auto   talk = random_tokens(1, 100);
    const server a(network); // It saves as cpu.
    CHECK(a.save_and_publish(talk));
    shared_options o = quick();
    o.backend = "CUDA";
    const server b(network, {}, o);
    CHECK(within(10s, [&] { return b.tier->stats().is_on; }));
    CHECK(b.restore(talk) == 0);
    o.all_backends = true;
    const server c(network, {}, o);
    CHECK(within(10s, [&] { return c.restore(talk) == 100; }));
}

TEST(a_damaged_file_is_a_miss_and_is_published_again) {
    network_disk network;
    server       a(network);
    const server b(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    CHECK(within(10s, [&] { return b.tier->stats().n_usable > 0; }));
    for (const std::string & path : objects(network)) {
        network.damage(path); // its payload
    }
    CHECK(b.restore(talk) == 0);
    CHECK(within(10s, [&] { return objects(network).empty(); }));
    CHECK(b.tier->stats().damaged == 1);
    a.disk.set_now_ms(a.disk.now_ms() + 1000);
    CHECK(a.m.restore(*a.s, talk) == 100); // It is used, so it is published.
    CHECK(a.tier->publish(10s));
    CHECK(within(10s, [&] { return b.restore(talk) == 100; }));
}

TEST(files_of_anybody_are_refused) {
    network_disk network;
    const server a(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    const std::string sound = network.get(objects(network).front());
    const std::string path  = objects(network).front();
    for (size_t i = 0; i < sound.size(); i += 7 * one_in) {
        network_disk other;
        std::string  bytes = sound;
        bytes[i] = static_cast<char>(bytes[i] ^ 0x40);
        for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
            other.put_folder(path.substr(0, at));
        }
        other.put(path, bytes);
        const server b(other);
        CHECK(within(10s, [&] { return b.tier->stats().is_on; }));
        CHECK(b.restore(talk) == 0);
    }
}

TEST(files_that_have_gone_meanwhile_are_a_miss) {
    network_disk network;
    const server a(network), b(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    CHECK(within(10s, [&] { return b.tier->stats().n_usable > 0; }));
    network.is_stale = true;
    CHECK(b.restore(talk) == 0);
    CHECK(b.tier->stats().is_on);
    network.is_stale = false;
    CHECK(within(10s, [&] { return b.restore(talk) == 100; }));
}

TEST(a_folder_that_hangs_holds_nobody_up_and_is_used_again_afterwards) {
    static network_disk network; // Calls on it may outlast the test.
    const auto          talk = random_tokens(1, 100);
    const auto          more = random_tokens(2, 100);
    const auto          began = std::chrono::steady_clock::now();
    {
        const server a(network), b(network);
        CHECK(a.save_and_publish(talk));
        CHECK(within(10s, [&] { return b.tier->stats().n_usable > 0; }));
        network.hangs = true;
        CHECK(b.restore(talk) == 0);
        CHECK(within(10s, [&] { return !b.tier->stats().is_on && b.tier->stats().stalls == 1; }));
        CHECK(a.save(more));
        CHECK(!a.tier->publish(10s));
        CHECK(b.restore(talk) == 0);
        CHECK(contains(b.tier->stats().why, "answer"));
        network.hangs = false;
        CHECK(within(10s, [&] { return b.restore(talk) == 100; }));
        CHECK(within(10s, [&] { return b.restore(more) == 100; }));
        network.hangs = true;
    } // They stop while it hangs.
    CHECK(std::chrono::steady_clock::now() - began < 30s);
    network.hangs = false;
    std::this_thread::sleep_for(100ms);
}

TEST(a_folder_that_is_not_there_is_not_made) {
    network_disk network;
    shared_options o = quick();
    o.dir = "/unmounted";
    const server a(network, {}, o);
    CHECK(a.save(random_tokens(1, 100)));
    CHECK(!a.tier->publish(10s));
    CHECK(contains(a.tier->stats().why, "no such folder"));
    CHECK(files_with(network, "unmounted").empty());
}

TEST(a_full_disk_keeps_nothing_from_being_read) {
    network_disk network;
    const server a(network), b(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    network.set_capacity(1);
    CHECK(a.save(random_tokens(2, 100)));
    CHECK(!a.tier->publish(10s));
    CHECK(within(10s, [&] { return b.restore(talk) == 100; }));
    CHECK(files_with(network, "incoming/").empty());
    network.set_capacity(0);
    CHECK(within(10s, [&] { return a.tier->publish(10s); }));
}

TEST(the_budget_holds_and_beginnings_stay_the_longest) {
    network_disk   network;
    shared_options o = quick();
    o.limit = 40 * disk_block;
    const server a(network, {}, o);
    auto         talk = random_tokens(1, 64);
    for (uint64_t i = 0; i < 80; i++) {
        append(talk, 100 + i, 16);
        CHECK(a.save(talk));
        (void) a.tier->publish(10s);
        uint64_t n_bytes = 0;
        for (const std::string & path : objects(network)) {
            n_bytes += disk_size(network.get(path).size());
        }
        CHECK(n_bytes <= o.limit);
    }
    CHECK(within(10s, [&] { return a.tier->stats().evicted > 0; }));
    CHECK(a.tier->stats().evicts);
    const server b(network, {}, o);
    CHECK(within(10s, [&] { return b.restore(talk) >= 64; }));
}

// KVTIER_SOAK_SECONDS makes it longer, and KVTIER_SOAK_DIR gives it a file system.
TEST(four_writers_and_an_evictor_keep_a_budget_of_a_tenth_and_the_beginning_that_all_use) {
    const char *      seconds = std::getenv("KVTIER_SOAK_SECONDS");
    const char *      where   = std::getenv("KVTIER_SOAK_DIR");
    const temp_folder temporary;
    const auto        until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds == nullptr ? 0 : std::atoi(seconds));
    shared_options    o     = quick();
    o.dir = where == nullptr ? temporary.path : where;
    model m;
    m.bytes_per_token = 100;
    o.limit           = 4 * 25 * uint64_t(112 * 100) / 10; // of what is written at least
    o.timeout         = 10s;
    o.term            = 2s;
    o.unfinished      = 30s;

    const auto        prefix = random_tokens(1, 64);
    std::atomic<bool> over{ false };
    std::atomic<uint64_t> most{ 0 }, n_wrong{ 0 }, n_saved{ 0 };
    std::thread watcher([&] {
        shared_folder folder(posix_env(), o.dir);
        while (!over) {
            shared_listing now;
            if (folder.list(now).is_ok()) {
                most = std::max<uint64_t>(most, now.bytes - now.bytes_claimed);
            }
            std::this_thread::sleep_for(5ms);
        }
    });
    std::vector<std::thread> writers;
    for (uint64_t w = 0; w < 4; w++) {
        writers.emplace_back([&, w] {
            fault_env  disk;
            const auto s    = open(disk, m.options());
            const auto tier = s->share(posix_env(), o);
            for (uint64_t i = 0; i < 25 || std::chrono::steady_clock::now() < until; i++) {
                auto talk = prefix;
                append(talk, 1000 * (w + 1) + i, 48);
                disk.set_now_ms(disk.now_ms() + 1000);
                n_wrong += !m.save(*s, talk, 64).is_ok();
                (void) tier->publish(100ms);
                n_wrong += m.restore(*s, talk) != talk.size(); // It is in use, here.
                n_saved++;
                uint64_t freed = 0;
                n_wrong += i % 8 == 7 && !s->remove_name_space(key{}, freed).is_ok(); // The local store stays small.
            }
        });
    }
    for (std::thread & writer : writers) {
        writer.join();
    }
    over = true;
    watcher.join();
    CHECK(n_wrong == 0);
    CHECK(most > 0);
    CHECK(most <= o.limit + 3 * disk_block); // The watcher may count a file that goes and one that comes in its place.
    fault_env      disk;
    const auto     s    = open(disk, m.options());
    const auto     tier = s->share(posix_env(), o);
    lookup_request r;
    r.root     = m.root();
    r.tokens   = prefix.data();
    r.n_tokens = r.limit = prefix.size();
    CHECK(within(10s, [&] { return tier->find(r, s->lookup(r)).n_tokens == prefix.size(); }));
    shared_listing left;
    CHECK(within(60s, [&] { // What a writer was at when it stopped goes, some time.
        left = {};
        return shared_folder(posix_env(), o.dir).list(left).is_ok() && left.unfinished.empty();
    }));
    std::printf("  %llu saved, at most %llu of %llu bytes\n", static_cast<unsigned long long>(n_saved),
                static_cast<unsigned long long>(most), static_cast<unsigned long long>(o.limit));
}

TEST(what_a_killed_writer_has_left_goes) {
    network_disk network;
    const server a(network);
    CHECK(a.save_and_publish(random_tokens(1, 100)));
    const std::string left = std::string(shared_dir) + "/incoming/0123456789abcdef-0000000000001000";
    network.put(left, "half");
    CHECK(within(10s, [&] { return !network.exists(left); }));
}

TEST(whoever_looks_removes_what_a_killed_writer_has_left) {
    network_disk   network;
    shared_options o = quick();
    o.term = std::chrono::hours(1);
    network.put(std::string(shared_dir) + "/evictor.lease", "llama-run evictor 1\nsomebody 1\n");
    const server a(network, {}, o);
    CHECK(a.save_and_publish(random_tokens(1, 100)));
    const std::string left = std::string(shared_dir) + "/incoming/0123456789abcdef-0000000000001000";
    network.put(left, "half");
    CHECK(within(10s, [&] { return !network.exists(left); }));
    CHECK(!a.tier->stats().evicts);
}

TEST(a_file_that_is_being_written_is_never_taken_for_one_that_was_left) {
    using clock = unfinished_watch::clock;
    const clock::time_point start{};
    unfinished_watch        watch(600s);
    // One grows, of one only the time changes (by a clock that is set back), and one was left.
    std::vector<unfinished_file> files = { { "grows", 0, 5000 }, { "touched", 0, 5000 }, { "left", 0, 5000 } };
    for (int minute = 0; minute < 30; minute++) {
        files[0].bytes += 1;
        files[1].modified_ms -= 1000;
        const std::vector<std::string> nobodys = watch.look(files, start + std::chrono::minutes(minute));
        CHECK(nobodys == (minute < 10 ? std::vector<std::string>() : std::vector<std::string>{ "left" }));
    }
    CHECK(watch.look({ files[0], files[1] }, start + 2400s).size() == 2); // They were last seen to change ten minutes before.
    files[2].name = "another";
    CHECK(watch.look({ files[2] }, start + 9000s).empty()); // What is seen for the first time is not old, whatever it says.
}

TEST(removing_a_conversation_removes_it_from_the_folder_too) {
    network_disk network;
    const server a(network);
    const auto   prefix = random_tokens(1, 64);
    auto         kept = prefix, gone = prefix;
    append(kept, 2, 64);
    append(gone, 3, 64);
    save_request first = a.m.request(*a.s, kept, 64), second;
    first.conversation.hash = 1;
    CHECK(a.s->save(first).is_ok());
    second = a.m.request(*a.s, gone, 64);
    second.conversation.hash = 2;
    CHECK(a.s->save(second).is_ok());
    CHECK(a.tier->publish(10s));
    const server b(network);
    CHECK(within(10s, [&] { return b.tier->stats().n_usable > 0; }));

    uint64_t       freed = 0, n_files = 0;
    shared_removal removal = a.tier->begin_removal(key{}, { 2 });
    CHECK(a.s->remove_conversation(key{}, 2, freed).is_ok());
    CHECK(a.tier->finish_removal(removal, 10s, n_files));
    CHECK(n_files == 1);
    CHECK(a.tier->publish(10s));
    CHECK(within(10s, [&] { return b.restore(gone) == 64; }));
    CHECK(b.restore(kept) == 128);

    removal = a.tier->begin_removal(key{});
    CHECK(a.s->remove_name_space(key{}, freed).is_ok());
    CHECK(a.tier->finish_removal(removal, 10s, n_files));
    CHECK(objects(network).empty());
}

TEST(what_conversations_share_goes_with_the_last_of_them) {
    network_disk network;
    const server a(network);
    const auto   prefix = random_tokens(1, 64);
    CHECK(a.save_as(1, prefix) && a.tier->publish(10s));
    for (uint64_t c = 1; c <= 3; c++) {
        auto talk = prefix;
        append(talk, 10 + c, 64);
        CHECK(a.save_as(c, talk));
    }
    CHECK(a.tier->publish(10s));
    CHECK(objects(network).size() == 4);
    const auto remove = [&](const std::vector<uint64_t> & conversations) {
        uint64_t             freed = 0, n_files = 0;
        const shared_removal removal = a.tier->begin_removal(key{}, conversations);
        for (const uint64_t c : conversations) {
            CHECK(a.s->remove_conversation(key{}, c, freed).is_ok());
        }
        CHECK(a.tier->finish_removal(removal, 10s, n_files));
    };
    remove({ 3 });
    CHECK(objects(network).size() == 3);
    remove({ 1, 2 });
    CHECK(objects(network).empty());
}

TEST(what_cannot_be_removed_now_is_removed_later) {
    static network_disk network;
    const server        a(network);
    const auto          talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    network.no_remove = ".seg";
    uint64_t       freed = 0, n_files = 0;
    shared_removal removal = a.tier->begin_removal(key{});
    CHECK(a.s->remove_name_space(key{}, freed).is_ok());
    CHECK(!a.tier->finish_removal(removal, 10s, n_files));
    network.no_remove = "";
    CHECK(within(10s, [&] { return objects(network).empty(); }));
}

TEST(what_is_evicted_here_while_something_else_is_removed_stays_in_the_folder) {
    network_disk network;
    const server a(network), b(network);
    const auto   gone = random_tokens(1, 100), kept = random_tokens(2, 100);
    CHECK(a.save_as(1, gone) && a.save_as(2, kept));
    CHECK(a.tier->publish(10s));
    uint64_t             freed = 0, n_files = 0;
    const shared_removal removal = a.tier->begin_removal(key{}, { 1 });
    CHECK(a.s->remove_conversation(key{}, 1, freed).is_ok());
    CHECK(a.s->remove_conversation(key{}, 2, freed).is_ok()); // as an eviction would
    CHECK(a.tier->finish_removal(removal, 10s, n_files));
    CHECK(within(10s, [&] { return b.restore(kept) == 100; }));
    CHECK(b.restore(gone) == 0);
}

TEST(what_is_being_removed_is_not_fetched_meanwhile) {
    network_disk network;
    server       a(network);
    const auto   talk = random_tokens(1, 100);
    for (const bool everything : { false, true }) {
        a.disk.set_now_ms(a.disk.now_ms() + 1000);
        CHECK(a.save_as(1, talk) && a.tier->publish(10s));
        uint64_t             freed = 0, n_files = 0;
        const shared_removal removal = everything ? a.tier->begin_removal(key{}) : a.tier->begin_removal(key{}, { 1 });
        CHECK(a.s->remove_conversation(key{}, 1, freed).is_ok());
        CHECK(a.restore(talk) == 0);
        CHECK(a.tier->finish_removal(removal, 10s, n_files));
        CHECK(n_files > 0);
        CHECK(a.restore(talk) == 0);
    }
    CHECK(objects(network).empty());
}

TEST(a_removal_that_the_folder_has_refused_outlasts_the_process) {
    network_disk network;
    server       a(network);
    const auto   gone = random_tokens(1, 100), kept = random_tokens(2, 100);
    CHECK(a.save_as(1, gone) && a.save_as(2, kept));
    CHECK(a.tier->publish(10s));
    network.no_remove = ".seg";
    uint64_t             freed = 0, n_files = 0;
    const shared_removal removal = a.tier->begin_removal(key{}, { 1 });
    CHECK(a.s->remove_conversation(key{}, 1, freed).is_ok());
    CHECK(!a.tier->finish_removal(removal, 10s, n_files));
    a.restart(network);
    CHECK(within(10s, [&] { return a.tier->stats().is_on; }));
    CHECK(a.restore(gone) == 0); // It is still there, and nobody fetches it.
    a.tier.reset();
    network.no_remove = "";
    a.restart(network);
    CHECK(within(10s, [&] { return objects(network).size() == 1; }));
    CHECK(a.restore(gone) == 0);
    CHECK(a.restore(kept) == 100);
    a.restart(network);
    CHECK(within(10s, [&] { return a.tier->stats().is_on; }));
    CHECK(a.save_as(1, gone)); // It is evaluated again, and nobody remembers the removal.
    CHECK(a.tier->publish(10s));
    CHECK(objects(network).size() == 2);
}

TEST(what_could_not_be_read_when_it_was_to_be_removed_is_removed_later) {
    for (const bool is_folder : { false, true }) {
        network_disk network;
        server       a(network);
        const auto   gone = random_tokens(1, 100);
        CHECK(a.save_as(1, gone) && a.tier->publish(10s));
        const std::string path = objects(network).front();
        a.tier.reset();
        (is_folder ? network.no_list : network.no_open) = is_folder ? path.substr(0, path.rfind('/')) : path;
        a.disk.set_now_ms(a.disk.now_ms() + 1000); // It is not in use any more, and not written again.
        a.restart(network);
        uint64_t             freed = 0, n_files = 0;
        const shared_removal removal = a.tier->begin_removal(key{}, { 1 });
        CHECK(a.s->remove_conversation(key{}, 1, freed).is_ok());
        CHECK(!a.tier->finish_removal(removal, 10s, n_files));
        a.tier.reset();
        network.no_open = network.no_list = "";
        a.restart(network);
        CHECK(within(10s, [&] { return objects(network).empty(); }));
        CHECK(a.restore(gone) == 0);
    }
}

TEST(a_file_that_cannot_be_removed_does_not_keep_others_from_being_removed) {
    network_disk network;
    server       a(network);
    CHECK(a.save_as(1, random_tokens(1, 100)) && a.save_as(2, random_tokens(2, 100)) && a.tier->publish(10s));
    CHECK(objects(network).size() == 2);
    network.no_remove = objects(network).front();
    uint64_t             freed = 0, n_files = 0;
    const shared_removal removal = a.tier->begin_removal(key{});
    CHECK(a.s->remove_name_space(key{}, freed).is_ok());
    CHECK(!a.tier->finish_removal(removal, 10s, n_files));
    CHECK(objects(network).size() == 1);
}

TEST(a_file_or_a_folder_that_cannot_be_read_is_passed_over_and_told) {
    network_disk network;
    const server a(network);
    const auto   bad = random_tokens(1, 100), sound = random_tokens(2, 100);
    CHECK(a.save_and_publish(bad));
    network.no_open = objects(network).front();
    CHECK(a.save_and_publish(sound));
    const std::string folder = std::string(shared_dir) + "/00000000000000000000000000000000";
    network.put_folder(folder);
    network.no_list = folder;
    std::atomic<int> n_told{ 0 };
    shared_options   o = quick();
    o.on_unreadable = [&](const std::string & what) { n_told += contains(what, "cannot be read"); };
    const server b(network, {}, o);
    CHECK(within(10s, [&] { return b.restore(sound) == 100; }));
    CHECK(b.restore(bad) == 0);
    CHECK(b.tier->stats().is_on);
    CHECK(b.tier->stats().unreadable == 2);
    CHECK(contains(b.tier->stats().why, "cannot be read"));
    CHECK(n_told == 1);
    network.no_open = "";
    CHECK(within(10s, [&] { return b.restore(bad) == 100; }));
}

TEST(a_file_that_cannot_be_removed_does_not_keep_others_from_being_evicted) {
    network_disk   network;
    shared_options o = quick();
    o.limit = 20 * disk_block;
    const server a(network, {}, o);
    CHECK(a.save_and_publish(random_tokens(1, 16)));
    network.no_remove = objects(network).front();
    for (uint64_t i = 0; i < 40; i++) {
        CHECK(a.save(random_tokens(100 + i, 16)));
        (void) a.tier->publish(10s);
    }
    CHECK(a.tier->stats().evicted > 10);
    CHECK(a.tier->stats().is_on);
}

TEST(a_large_folder_on_a_slow_disk_does_not_hang) {
    network_disk network;
    const server a(network);
    for (uint64_t i = 0; i < 30; i++) {
        CHECK(a.save(random_tokens(i, 16)));
    }
    CHECK(a.tier->publish(10s));
    network.ms_per_name = 20; // all of them more than the time-out of 400 ms
    const server b(network);
    CHECK(within(10s, [&] { return b.restore(random_tokens(7, 16)) == 16; }));
    CHECK(b.tier->stats().stalls == 0);
}

TEST(what_the_local_store_has_no_room_for_is_not_fetched_again_and_again) {
    network_disk   network;
    const server   a(network);
    const auto     talk = random_tokens(1, 100);
    shared_options o    = quick();
    o.off_for = 60s;
    server b(network, {}, o);
    CHECK(a.save_and_publish(talk));
    CHECK(within(10s, [&] { return b.tier->stats().n_usable > 0; }));
    b.disk.set_capacity(1);
    for (int i = 0; i < 5; i++) {
        CHECK(b.restore(talk) == 0);
    }
    CHECK(b.tier->stats().failed_fetches == 1);
}

TEST(a_prompt_does_not_wait_for_what_is_being_published) {
    network_disk      network;
    std::atomic<bool> is_publishing{ false }, is_answered{ false };
    network.renamed   = ".seg";
    network.meanwhile = [&] {
        is_publishing = true;
        (void) within(10s, [&] { return is_answered.load(); });
    };
    shared_options o = quick();
    o.timeout      = 60s;
    o.longest_look = 60s; // A prompt that waited would wait until the file has its name.
    const server a(network, {}, o);
    CHECK(within(10s, [&] { return a.tier->stats().is_on; }));
    CHECK(a.save(random_tokens(1, 100)));
    CHECK(within(10s, [&] { return is_publishing.load(); }));
    std::this_thread::sleep_for(2 * o.refresh); // The last look is too old for it.
    CHECK(a.fetch(random_tokens(99, 100)) == 0);
    CHECK(objects(network).empty());
    is_answered = true;
    CHECK(a.tier->publish(10s));
    CHECK(objects(network).size() == 1);
}

TEST(what_others_have_written_since_the_last_look_counts) {
    network_disk   network;
    shared_options o = quick();
    o.limit = 20 * disk_block;
    network.no_remove = ".seg"; // Nothing is evicted.
    network.renamed   = ".seg";
    std::unique_ptr<server> b;
    network.meanwhile = [&] { // The first server is at its first file of many.
        for (uint64_t i = 0; i < 20; i++) {
            CHECK(b->save(random_tokens(100 + i, 16)));
        }
        CHECK(!b->tier->publish(10s));
    };
    o.timeout = 60s;
    const server a(network, {}, o);
    b = std::make_unique<server>(network, model(), o);
    a.tier->hold(true);
    for (uint64_t i = 0; i < 15; i++) {
        CHECK(a.save(random_tokens(i, 16)));
    }
    a.tier->hold(false);
    CHECK(!a.tier->publish(20s));
    uint64_t n_bytes = 0;
    for (const std::string & path : objects(network)) {
        n_bytes += disk_size(network.get(path).size());
    }
    CHECK(n_bytes <= o.limit);
    CHECK(n_bytes > o.limit / 2);
}

TEST(an_empty_mount_point_is_not_filled) {
    network_disk network;
    server       a(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    const auto mounted = network.clone();
    for (const std::string & path : files_with(network, shared_dir)) {
        network.erase(path);
    }
    CHECK(within(10s, [&] { return !a.tier->stats().is_on; }));
    CHECK(contains(a.tier->stats().why, "mount"));
    a.restart(network);
    CHECK(a.save(random_tokens(2, 100)));
    CHECK(!a.tier->publish(10s));
    CHECK(contains(a.tier->stats().why, "mount"));
    CHECK(files_with(network, shared_dir).empty());
    for (const std::string & path : files_with(*mounted, shared_dir)) {
        network.put(path, mounted->get(path));
    }
    CHECK(within(10s, [&] { return a.tier->publish(10s); }));
}

TEST(what_was_just_published_is_not_the_oldest_because_of_a_slow_clock) {
    network_disk   network;
    shared_options o = quick();
    o.limit = 20 * disk_block;
    o.touch = 60s; // A round that touches all of them would make all of them equally new.
    server a(network, {}, o);
    a.disk.set_now_ms(network.now_ms() - 3600 * 1000);
    for (uint64_t i = 0; i < 60; i++) { // Its clock is an hour behind the folder's, whose own goes on.
        network.set_now_ms(network.now_ms() + 120 * 1000);
        a.disk.set_now_ms(a.disk.now_ms() + 120 * 1000);
        CHECK(a.save(random_tokens(i, 16)));
        CHECK(within(10s, [&] { return a.tier->publish(10s); }));
        lookup_request r;
        const auto     talk = random_tokens(i, 16);
        r.root     = a.m.root();
        r.tokens   = talk.data();
        r.n_tokens = r.limit = talk.size();
        fault_env  empty;
        const auto other = open(empty, a.m.options());
        CHECK(a.tier->find(r, other->lookup(r)).n_tokens == 16);
    }
    CHECK(a.tier->stats().evicted > 0);
}

TEST(a_clock_that_is_set_back_does_not_keep_anything_from_being_published) {
    network_disk network;
    server       a(network);
    CHECK(a.save_and_publish(random_tokens(1, 100)));
    a.disk.set_now_ms(a.disk.now_ms() - 3600 * 1000);
    CHECK(a.save_and_publish(random_tokens(2, 100)));
    CHECK(objects(network).size() == 2);
}

TEST(a_lease_passes_on_after_a_term_without_change_whatever_clocks_say) {
    using clock = eviction_lease::clock;
    eviction_lease          a("a", 60s), b("b", 60s);
    const clock::time_point start{}, far = start + std::chrono::hours(1000); // Nothing relates one machine's clock to another's.
    std::string             file;
    const auto look = [&](eviction_lease & who, clock::time_point now) {
        if (const auto text = who.look(file, now)) {
            file = *text;
        }
        return who.is_held();
    };
    CHECK(!look(a, start)); // It has to read it back first.
    CHECK(look(a, start + 2s));
    for (int i = 0; i < 10; i++) { // It is renewed, and nobody else's.
        CHECK(!look(b, far + i * 30s));
        (void) look(a, start + 2s + i * 30s);
        CHECK(look(a, start + 3s + i * 30s));
    }
    CHECK(!look(b, far + 330s)); // The first has died.
    CHECK(!look(b, far + 380s));
    CHECK(!look(b, far + 391s));
    CHECK(look(b, far + 392s));
    CHECK(!look(a, start + 1000s)); // It was only asleep, and has lost it.
}

int main() {
    return run_tests();
}

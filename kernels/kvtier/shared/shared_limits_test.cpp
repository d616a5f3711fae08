// What bounds the shared folder: its budget, who evicts and what goes first, and what killed writers left.
#include "kvtier/shared/shared_testing.h"

#include <cstdlib>

using namespace kvtier;
using namespace kvtier::test;
using namespace std::chrono_literals;

static constexpr uint64_t no_limit = uint64_t(1) << 30;

TEST(the_budget_holds_and_beginnings_stay_the_longest) {
    network_disk & network = new_network_disk();
    shared_options o = quick();
    o.limit = 40 * disk_block;
    o.touch = 60s;
    server a(network, {}, o);
    auto   talk = random_tokens(1, 64);
    for (uint64_t i = 0; i < 80; i++) {
        const int64_t now = network.now_ms() + 7000; // Uses are told less often than there are turns.
        network.set_now_ms(now);
        a.disk.set_now_ms(now);
        append(talk, 100 + i, 16);
        CHECK(a.save(talk));
        (void) a.tier->publish(patience);
        uint64_t n_bytes = 0;
        for (const std::string & path : objects(network)) {
            n_bytes += disk_size(network.get(path).size());
        }
        CHECK(n_bytes <= o.limit);
    }
    CHECK(within(patience, [&] { return a.tier->stats().evicted > 0; }));
    CHECK(a.tier->stats().evicts);
    const server b(network, {}, o);
    CHECK(within(patience, [&] { return b.restore(talk) >= 64; }));
}

TEST(a_prompt_that_took_minutes_to_write_loses_its_end_first) {
    network_disk & network = new_network_disk();
    network.ms_per_file    = 40000;
    shared_options o = quick();
    o.limit = 40 * disk_block;
    o.touch = 60s;
    const server a(network, {}, o);
    CHECK(within(patience, [&] { return a.tier->stats().is_on; }));
    a.tier->hold(true);
    auto talk = random_tokens(1, 64);
    for (uint64_t i = 0; i < 20; i++) {
        append(talk, 100 + i, 16);
        CHECK(a.save(talk));
    }
    a.tier->hold(false);
    CHECK(a.tier->publish(patience));
    auto other = random_tokens(2, 64);
    for (uint64_t i = 0; i < 40 && a.tier->stats().evicted == 0; i++) {
        append(other, 200 + i, 16);
        CHECK(a.save(other));
        (void) a.tier->publish(patience);
    }
    const uint64_t evicted = a.tier->stats().evicted;
    CHECK(evicted > 0 && evicted < 20);
    const server b(network, {}, o);
    CHECK(within(patience, [&] { return b.restore(talk) >= 64; }));
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
    o.term            = 2s;
    o.unfinished      = 30s;

    const auto        prefix = random_tokens(1, 64);
    std::atomic<bool> over{ false };
    std::atomic<uint64_t> most{ 0 }, n_wrong{ 0 }, n_saved{ 0 };
    std::thread watcher([&] {
        shared_folder folder(posix_env(), o.dir);
        for (bool is_last = false; !is_last;) { // On a busy machine it may come to look when all is over.
            is_last = over;
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
                (void) tier->publish(i == 0 ? patience : 100ms); // However slow the disk is, something is published.
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
    CHECK(within(patience, [&] { return tier->find(r, s->lookup(r)).n_tokens == prefix.size(); }));
    shared_listing left;
    CHECK(within(patience, [&] { // What a writer was at when it stopped goes, some time.
        left = {};
        return shared_folder(posix_env(), o.dir).list(left).is_ok() && left.unfinished.empty();
    }));
    std::printf("  %llu saved, at most %llu of %llu bytes\n", static_cast<unsigned long long>(n_saved),
                static_cast<unsigned long long>(most), static_cast<unsigned long long>(o.limit));
}

TEST(what_others_have_written_since_the_last_look_counts) {
    network_disk & network = new_network_disk();
    shared_options o = quick();
    o.limit = 20 * disk_block;
    network.no_remove = ".seg"; // Nothing is evicted.
    network.renamed   = ".seg";
    std::unique_ptr<server> b;
    network.meanwhile = [&] { // The first server is at its first file of many.
        for (uint64_t i = 0; i < 20; i++) {
            CHECK(b->save(random_tokens(100 + i, 16)));
        }
        CHECK(!b->tier->publish(patience));
    };
    const server a(network, {}, o);
    b = std::make_unique<server>(network, model(), o);
    a.tier->hold(true);
    for (uint64_t i = 0; i < 15; i++) {
        CHECK(a.save(random_tokens(i, 16)));
    }
    a.tier->hold(false);
    CHECK(!a.tier->publish(patience));
    uint64_t n_bytes = 0;
    for (const std::string & path : objects(network)) {
        n_bytes += disk_size(network.get(path).size());
    }
    CHECK(n_bytes <= o.limit);
    CHECK(n_bytes > o.limit / 2);
}

TEST(the_folder_is_not_counted_anew_for_every_file) {
    network_disk & network = new_network_disk();
    shared_options o = quick();
    o.refresh = o.idle_refresh = 60s; // It is looked at when somebody asks alone.
    const server a(network, {}, o);
    CHECK(a.tier->publish(patience));
    for (uint64_t i = 0; i < 30; i++) {
        CHECK(a.save(random_tokens(i, 16)));
    }
    const int before = network.n_counted;
    CHECK(a.tier->publish(patience));
    CHECK(objects(network).size() == 30);
    CHECK(network.n_counted - before <= 3); // the look of the round, and those of what is written with one count
}

TEST(a_file_that_cannot_be_removed_does_not_keep_others_from_being_evicted) {
    network_disk & network = new_network_disk();
    shared_options o = quick();
    o.limit = 20 * disk_block;
    const server a(network, {}, o);
    CHECK(a.save_and_publish(random_tokens(1, 16)));
    network.no_remove = objects(network).front();
    for (uint64_t i = 0; i < 40; i++) {
        CHECK(a.save(random_tokens(100 + i, 16)));
        (void) a.tier->publish(patience);
    }
    CHECK(within(patience, [&] { return a.tier->stats().evicted > 10; }));
    CHECK(a.tier->stats().is_on);
}

TEST(what_was_just_published_is_not_the_oldest_because_of_a_slow_clock) {
    network_disk & network = new_network_disk();
    shared_options o = quick();
    o.limit = 20 * disk_block;
    o.touch = 60s; // A round that touches all of them would make all of them equally new.
    server a(network, {}, o);
    a.disk.set_now_ms(network.now_ms() - 3600 * 1000);
    for (uint64_t i = 0; i < 60; i++) { // Its clock is an hour behind the folder's, whose own goes on.
        network.set_now_ms(network.now_ms() + 120 * 1000);
        a.disk.set_now_ms(a.disk.now_ms() + 120 * 1000);
        CHECK(a.save(random_tokens(i, 16)));
        CHECK(within(patience, [&] { return a.tier->publish(patience); }));
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

TEST(servers_whose_clocks_are_an_hour_apart_share_and_keep_the_budget_and_one_of_them_evicts) {
    for (const bool times_are_writers : { false, true }) { // Some file systems write down the time of whoever writes.
        network_disk & network = new_network_disk();
        shared_options o = quick();
        o.limit      = 40 * disk_block;
        o.term       = 2s; // Whoever is stopped for longer loses the lease.
        o.unfinished = 300ms;
        server       fast(network, {}, o), slow(network, {}, o);
        const auto   turn = [&](server & writer, uint64_t i) {
            writer.disk.set_now_ms(writer.disk.now_ms() + 1000);
            if (times_are_writers) {
                network.set_now_ms(writer.disk.now_ms());
            }
            CHECK(writer.save(random_tokens(i, 16)));
            CHECK(within(patience, [&] { return writer.tier->publish(patience); }));
            uint64_t n_bytes = 0;
            for (const std::string & path : objects(network)) {
                n_bytes += disk_size(network.get(path).size());
            }
            CHECK(n_bytes <= o.limit);
        };
        slow.disk.set_now_ms(network.now_ms() - 3600 * 1000);
        turn(fast, 1);
        CHECK(within(patience, [&] { return slow.restore(random_tokens(1, 16)) == 16; }));
        turn(slow, 2);
        CHECK(within(patience, [&] { return fast.restore(random_tokens(2, 16)) == 16; }));
        for (uint64_t i = 10; i < 70; i += 2) {
            turn(fast, i);
            turn(slow, i + 1);
        }
        bool fast_evicts = false;
        CHECK(within(patience, [&] {
            fast_evicts = fast.tier->stats().evicts;
            return fast_evicts != slow.tier->stats().evicts;
        }));
        server & evictor = fast_evicts ? fast : slow;
        server & other   = fast_evicts ? slow : fast;
        CHECK(fast.tier->stats().evicted + slow.tier->stats().evicted > 0);
        evictor.tier.reset(); // It dies, and what it was writing stays.
        const std::string left = std::string(shared_dir) + "/incoming/0123456789abcdef-0000000000001000";
        network.put(left, "half");
        CHECK(within(patience, [&] { return other.tier->stats().evicts && !network.exists(left); }));
    }
}

TEST(what_was_seen_to_be_used_last_stays_the_longest_whatever_the_time_of_a_file_says) {
    using clock = shared_index::clock;
    const auto   start = clock::time_point() + std::chrono::hours(1);
    const auto   hour  = int64_t(3600) * 1000;
    shared_index index({});
    const auto   file = [](uint8_t k, int64_t modified_ms) {
        shared_name name;
        name.k[0] = k;
        return shared_file{ name, disk_block, modified_ms };
    };
    const auto look = [&](std::vector<shared_file> files, clock::time_point now) {
        shared_listing listing;
        listing.files = std::move(files);
        index.update(listing, {}, now);
        std::string order;
        for (const shared_file & one : index.victims()) {
            order += std::to_string(one.name.k[0]);
        }
        return order;
    };
    CHECK(look({ file(1, 9 * hour), file(2, 8 * hour) }, start) == "21"); // Of what was there before, only the time is known.
    // From a machine whose clock is slow come a new file, and then a use.
    CHECK(look({ file(1, 9 * hour), file(2, 8 * hour), file(3, 7 * hour) }, start + 300s) == "213");
    CHECK(look({ file(1, 9 * hour), file(2, 6 * hour), file(3, 7 * hour) }, start + 600s) == "132");
}

// Files as a server publishes them.
static std::vector<shared_copy> copies_of_talks(uint64_t n) {
    network_disk & network = new_network_disk();
    const server   a(network);
    for (uint64_t i = 0; i < n; i++) {
        CHECK(a.save_and_publish(random_tokens(i, 100)));
    }
    std::vector<shared_copy> out;
    shared_listing           there;
    CHECK(shared_folder(network, shared_dir).list(there).is_ok());
    for (const shared_file & file : there.files) {
        const std::string bytes = network.get(names::join(shared_dir, file.name.path()));
        out.push_back({ file.name, { bytes.begin(), bytes.end() }, {} });
    }
    CHECK(out.size() == n);
    return out;
}

TEST(who_was_faster_keeps_the_name_when_two_write_the_same_file) {
    const std::vector<shared_copy> copies = copies_of_talks(1);
    for (const bool is_damaged : { false, true }) {
        network_disk &    network = new_network_disk();
        shared_folder     folder(network, shared_dir);
        const std::string path      = names::join(shared_dir, copies[0].name.path());
        bool              is_marked = false, is_first = true;
        CHECK(folder.prepare(false, is_marked).is_ok());
        const auto another_writes_it = [&] {
            if (std::exchange(is_first, false)) {
                const shared_written faster = folder.write(copies, no_limit, [] { return true; }, 60s)[0];
                CHECK(faster.result.is_ok() && !faster.was_there);
                network.set_now_ms(network.now_ms() + 1000);
                if (is_damaged) {
                    network.put(path, "LRKVTIER, and nothing else");
                }
            }
            return true;
        };
        const shared_written slower = folder.write(copies, no_limit, another_writes_it, 60s)[0];
        CHECK(slower.result.is_ok());
        CHECK(slower.was_there == !is_damaged);
        CHECK(network.get(path) == std::string(copies[0].head.begin(), copies[0].head.end()));
        shared_listing there;
        CHECK(folder.list(there).is_ok());
        CHECK(there.unfinished.empty());
        CHECK(there.files.size() == 1);
        CHECK((there.files[0].modified_ms == network.now_ms()) == is_damaged); // The slower one's replaces what is damaged alone.
    }
}

TEST(what_waits_for_its_turn_is_not_taken_for_what_a_killed_writer_left) {
    const std::vector<shared_copy>      copies  = copies_of_talks(5);
    network_disk &                      network = new_network_disk();
    shared_folder                       folder(network, shared_dir);
    unfinished_watch                    watch(600s);
    unfinished_watch::clock::time_point now{};
    bool                                is_marked = false;
    CHECK(folder.prepare(false, is_marked).is_ok());
    const auto five_minutes_later = [&] { // The network is that slow.
        shared_listing there;
        network.set_now_ms(network.now_ms() + 300 * 1000);
        now += 300s;
        CHECK(folder.list(there).is_ok());
        CHECK(watch.look(there.unfinished, now).empty());
        return true;
    };
    for (const shared_written & written : folder.write(copies, no_limit, five_minutes_later, 0ms)) {
        CHECK(written.result.is_ok() && !written.was_there);
    }
    CHECK(now > unfinished_watch::clock::time_point() + 1200s);
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

TEST(what_a_killed_writer_has_left_goes) {
    network_disk & network = new_network_disk();
    shared_options o = quick();
    o.unfinished = 300ms;
    const server a(network, {}, o);
    CHECK(a.save_and_publish(random_tokens(1, 100)));
    const std::string left = std::string(shared_dir) + "/incoming/0123456789abcdef-0000000000001000";
    network.put(left, "half");
    CHECK(within(patience, [&] { return !network.exists(left); }));
}

TEST(whoever_looks_removes_what_a_killed_writer_has_left) {
    network_disk & network = new_network_disk();
    shared_options o = quick();
    o.term       = std::chrono::hours(1);
    o.unfinished = 300ms;
    network.put(std::string(shared_dir) + "/evictor.lease", "llama-run evictor 1\nsomebody 1\n");
    const server a(network, {}, o);
    CHECK(a.save_and_publish(random_tokens(1, 100)));
    const std::string left = std::string(shared_dir) + "/incoming/0123456789abcdef-0000000000001000";
    network.put(left, "half");
    CHECK(within(patience, [&] { return !network.exists(left); }));
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

int main() {
    return run_tests();
}

// A folder that servers share: what one has saved the others restore, and whatever happens to the folder, nobody is the worse for it.
#include "kvtier/shared/shared_testing.h"

using namespace kvtier;
using namespace kvtier::test;
using namespace std::chrono_literals;

TEST(what_one_server_has_saved_another_restores) {
    for (const size_t folded_size : { size_t(0), size_t(3000) }) {
        network_disk & network = new_network_disk();
        model        m;
        m.folded_size = folded_size;
        const server       a(network, m);
        const server       b(network, m);
        std::vector<token> talk = random_tokens(1, 100);
        CHECK(a.save_and_publish(talk, 32));
        CHECK(within(patience, [&] { return b.restore(talk) == 100; }));
        append(talk, 2, 60); // It goes on at the other one, and back.
        CHECK(b.save_and_publish(talk, 32));
        CHECK(within(patience, [&] { return a.restore(talk) == 160; }));
        const server c(network, m);
        CHECK(within(patience, [&] { return c.restore(talk) == 160; }));
    }
}

TEST(an_anchor_that_is_written_after_its_rows_were_published_is_published_too) {
    network_disk & network = new_network_disk();
    model        m;
    m.folded_size = 3000;
    const server a(network, m), b(network, m);
    const auto   talk   = random_tokens(1, 100);
    save_request rows   = m.request(*a.s, talk);
    save_request anchor = rows;
    rows.anchors.clear();
    anchor.runs.clear();
    CHECK(a.s->save(rows).is_ok());
    CHECK(a.tier->publish(patience));
    CHECK(objects(network).size() == 1);
    CHECK(a.s->save(anchor).is_ok());
    CHECK(a.tier->publish(patience));
    CHECK(objects(network).size() == 2);
    CHECK(within(patience, [&] { return b.restore(talk) == 100; }));
}

TEST(what_has_come_from_there_is_stored_here) {
    network_disk & network = new_network_disk();
    const server a(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    server b(network);
    CHECK(within(patience, [&] { return b.restore(talk) == 100; }));
    b.tier.reset();
    b.s.reset();
    b.s = open(b.disk, b.m.options());
    CHECK(b.m.restore(*b.s, talk) == 100);
}

TEST(a_prompt_that_parts_within_a_page_uses_the_rows_before) {
    network_disk & network = new_network_disk();
    const server a(network), b(network);
    auto         talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    talk.resize(90);
    append(talk, 3, 30);
    CHECK(within(patience, [&] { return b.restore(talk) == 90; }));
}

TEST(what_is_there_is_not_published_again) {
    network_disk & network = new_network_disk();
    shared_options o = quick();
    o.term = 1h; // What is written to renew a lease is counted below, and a slow machine would renew it many times.
    const server a(network, {}, o), b(network, {}, o);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    const uint64_t written = network.bytes_appended();
    CHECK(b.save_and_publish(talk));
    CHECK(b.tier->stats().published == 0);
    CHECK(network.bytes_appended() - written < 1000); // leases alone
}

TEST(only_what_is_missing_is_fetched) {
    network_disk & network = new_network_disk();
    const server a(network), b(network);
    const auto   prefix = random_tokens(1, 64);
    auto         talk   = prefix;
    append(talk, 2, 64);
    CHECK(a.save_and_publish(talk));
    CHECK(b.save(prefix));
    CHECK(within(patience, [&] { return b.restore(talk) == 128; }));
    CHECK(b.tier->stats().bytes_fetched == 64 * b.m.bytes_per_token);
}

TEST(users_are_apart_and_shared_only_when_said) {
    network_disk & network = new_network_disk();
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
    CHECK(within(patience, [&] { return d.restore(talk) == 100; }));
    CHECK(nobody.restore(talk) == 0);
    CHECK(a.tier->stats().n_usable == 0);
}

TEST(what_another_backend_has_computed_is_used_only_when_said) {
    network_disk & network = new_network_disk();
    const auto   talk = random_tokens(1, 100);
    const server a(network); // It saves as cpu.
    CHECK(a.save_and_publish(talk));
    shared_options o = quick();
    o.backend = "CUDA";
    const server b(network, {}, o);
    CHECK(within(patience, [&] { return b.tier->stats().is_on; }));
    CHECK(b.restore(talk) == 0);
    o.all_backends = true;
    const server c(network, {}, o);
    CHECK(within(patience, [&] { return c.restore(talk) == 100; }));
}

TEST(a_damaged_file_is_a_miss_and_is_published_again) {
    network_disk & network = new_network_disk();
    server       a(network);
    const server b(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    CHECK(within(patience, [&] { return b.sees_files(); }));
    for (const std::string & path : objects(network)) {
        network.damage(path); // its payload
    }
    CHECK(b.restore(talk) == 0);
    CHECK(within(patience, [&] { return objects(network).empty(); }));
    CHECK(b.tier->stats().damaged == 1);
    a.disk.set_now_ms(a.disk.now_ms() + 1000);
    CHECK(a.m.restore(*a.s, talk) == 100); // It is used, so it is published.
    CHECK(a.tier->publish(patience));
    CHECK(within(patience, [&] { return b.restore(talk) == 100; }));
}

TEST(a_sound_file_that_has_taken_the_name_of_another_stays) {
    network_disk & network = new_network_disk();
    network_disk & other   = new_network_disk();
    model        wide;
    wide.bytes_per_token = 16; // The same name, and other bytes.
    const auto   talk = random_tokens(1, 100);
    CHECK(server(other, wide).save_and_publish(talk));
    const server a(network);
    CHECK(a.save_and_publish(talk));
    shared_options o = quick();
    o.refresh = o.idle_refresh = 1h;
    const server b(network, {}, o);
    CHECK(within(patience, [&] { return b.sees_files(); }));
    const std::string path = objects(network).front();
    CHECK(objects(other).front() == path);
    network.put(path, other.get(path));
    CHECK(b.restore(talk) == 0);
    CHECK(b.tier->stats().damaged == 0);
    CHECK(network.get(path) == other.get(path));
}

TEST(a_damaged_file_that_somebody_replaces_is_read_again) {
    network_disk & network = new_network_disk();
    const auto   talk = random_tokens(1, 100);
    CHECK(server(network).save_and_publish(talk));
    const std::string path  = objects(network).front();
    const std::string sound = network.get(path);
    network.put(path, sound.substr(0, sound.size() / 2));
    network.no_remove = ".seg";
    const server b(network);
    CHECK(within(patience, [&] { return b.tier->stats().damaged > 0; }));
    CHECK(b.restore(talk) == 0);
    network.put(path, sound);
    network.set_now_ms(network.now_ms() + 1000);
    CHECK(network.touch(path).is_ok());
    CHECK(within(patience, [&] { return b.restore(talk) == 100; }));
}

TEST(a_folder_that_cannot_be_used_is_off_and_says_why) {
    network_disk & network = new_network_disk();
    network.put_link(std::string(shared_dir) + "/incoming");
    const server a(network);
    CHECK(a.save(random_tokens(1, 100)));
    CHECK(!a.tier->publish(patience));
    CHECK(!a.tier->stats().is_on);
    CHECK(contains(a.tier->stats().why, "incoming"));
}

TEST(what_is_not_published_while_writes_are_held_is_told) {
    network_disk & network = new_network_disk();
    const server a(network);
    a.tier->hold(true);
    CHECK(!a.save_and_publish(random_tokens(1, 100)));
    CHECK(a.tier->stats().unpublished == 1);
    CHECK(!a.tier->stats().why.empty());
    CHECK(objects(network).empty());
    a.tier->hold(false);
    CHECK(a.tier->publish(patience));
    CHECK(a.tier->stats().why.empty());
    CHECK(objects(network).size() == 1);
}

TEST(files_of_anybody_are_refused) {
    network_disk & network = new_network_disk();
    const server a(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    const std::string sound = network.get(objects(network).front());
    const std::string path  = objects(network).front();
    for (size_t i = 0; i < sound.size(); i += 7 * one_in) {
        network_disk & other = new_network_disk();
        std::string  bytes = sound;
        bytes[i] = static_cast<char>(bytes[i] ^ 0x40);
        for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
            other.put_folder(path.substr(0, at));
        }
        other.put(path, bytes);
        const server b(other);
        CHECK(within(patience, [&] { return b.tier->stats().is_on; }));
        CHECK(b.restore(talk) == 0);
    }
}

TEST(files_that_have_gone_meanwhile_are_a_miss) {
    network_disk & network = new_network_disk();
    const server a(network), b(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    CHECK(within(patience, [&] { return b.sees_files(); }));
    network.is_stale = true;
    CHECK(b.restore(talk) == 0);
    CHECK(b.tier->stats().is_on);
    network.is_stale = false;
    CHECK(within(patience, [&] { return b.restore(talk) == 100; }));
}

TEST(a_handle_that_goes_stale_is_opened_again_once) {
    network_disk & network = new_network_disk();
    const server a(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    for (const int n_stale : { 1, 2 }) {
        const server b(network);
        CHECK(within(patience, [&] { return b.sees_files(); }));
        network.n_stale_reads = n_stale;
        CHECK(b.restore(talk) == (n_stale == 1 ? 100 : 0)); // What is stale again is evaluated.
        CHECK(b.tier->stats().failed_fetches == (n_stale == 1 ? 0 : 1));
        CHECK(b.tier->stats().is_on);
    }
}

TEST(a_folder_that_hangs_holds_nobody_up_and_is_used_again_afterwards) {
    network_disk & network = new_network_disk();
    const auto          talk = random_tokens(1, 100);
    const auto          more = random_tokens(2, 100);
    const auto          began = std::chrono::steady_clock::now();
    shared_options      o    = quick();
    o.timeout = 2s;
    {
        const server a(network, {}, o), b(network, {}, o);
        CHECK(a.save(talk));
        CHECK(within(patience, [&] { return a.tier->publish(patience); })); // A busy machine may look like a folder that hangs.
        CHECK(within(patience, [&] { return b.sees_files(); }));
        network.hangs = true;
        CHECK(b.restore(talk) == 0);
        CHECK(within(patience, [&] { return !b.tier->stats().is_on; }));
        CHECK(contains(b.tier->stats().why, "answer"));
        CHECK(within(patience, [&] { return b.tier->stats().stalls >= 1; }));
        CHECK(a.save(more));
        CHECK(!a.tier->publish(patience));
        CHECK(b.restore(talk) == 0);
        CHECK(contains(b.tier->stats().why, "answer"));
        network.hangs = false;
        CHECK(within(patience, [&] { return b.restore(talk) == 100; }));
        CHECK(within(patience, [&] { return b.restore(more) == 100; }));
        network.hangs = true;
    } // They stop while it hangs.
    CHECK(std::chrono::steady_clock::now() - began < 300s);
    network.hangs = false;
    std::this_thread::sleep_for(100ms);
}

TEST(a_folder_that_is_not_there_is_not_made) {
    network_disk & network = new_network_disk();
    shared_options o = quick();
    o.dir = "/unmounted";
    const server a(network, {}, o);
    CHECK(a.save(random_tokens(1, 100)));
    CHECK(!a.tier->publish(patience));
    CHECK(contains(a.tier->stats().why, "no such folder"));
    CHECK(files_with(network, "unmounted").empty());
}

TEST(a_full_disk_keeps_nothing_from_being_read) {
    network_disk & network = new_network_disk();
    const server a(network), b(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    network.set_capacity(1);
    CHECK(a.save(random_tokens(2, 100)));
    CHECK(!a.tier->publish(patience));
    CHECK(within(patience, [&] { return b.restore(talk) == 100; }));
    // Both go on writing leases there, and meet the same; before 60 s have passed nobody else removes what they left.
    CHECK(within(30s, [&] { return files_with(network, "incoming/").empty(); }));
    network.set_capacity(0);
    CHECK(within(patience, [&] { return a.tier->publish(patience); }));
}

TEST(a_file_or_a_folder_that_cannot_be_read_is_passed_over_and_told) {
    network_disk & network = new_network_disk();
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
    CHECK(within(patience, [&] { return b.restore(sound) == 100; }));
    CHECK(b.restore(bad) == 0);
    CHECK(b.tier->stats().is_on);
    CHECK(b.tier->stats().unreadable == 2);
    CHECK(contains(b.tier->stats().why, "cannot be read"));
    CHECK(n_told == 1);
    network.no_open = "";
    CHECK(within(patience, [&] { return b.restore(bad) == 100; }));
}

TEST(a_large_folder_on_a_slow_disk_does_not_hang) {
    network_disk & network = new_network_disk();
    const server a(network);
    for (uint64_t i = 0; i < 30; i++) {
        CHECK(a.save(random_tokens(i, 16)));
    }
    CHECK(a.tier->publish(patience));
    network.ms_per_name = 120; // all of them more than the time-out
    shared_options o = quick();
    o.timeout = 3s;
    const server b(network, {}, o);
    CHECK(within(patience, [&] { return b.restore(random_tokens(7, 16)) == 16; }));
    CHECK(b.tier->stats().stalls == 0);
}

TEST(what_the_local_store_has_no_room_for_is_not_fetched_again_and_again) {
    network_disk & network = new_network_disk();
    const server   a(network);
    const auto     talk = random_tokens(1, 100);
    shared_options o    = quick();
    o.off_for = 60s;
    server b(network, {}, o);
    CHECK(a.save_and_publish(talk));
    CHECK(within(patience, [&] { return b.sees_files(); }));
    b.disk.set_capacity(1);
    for (int i = 0; i < 5; i++) {
        CHECK(b.restore(talk) == 0);
    }
    CHECK(b.tier->stats().failed_fetches == 1);
}

TEST(a_prompt_does_not_wait_for_what_is_being_published) {
    network_disk & network = new_network_disk();
    std::atomic<bool> is_publishing{ false }, is_answered{ false };
    network.renamed   = ".seg";
    network.meanwhile = [&] {
        is_publishing = true;
        (void) within(patience, [&] { return is_answered.load(); });
    };
    shared_options o = quick();
    o.timeout      = 5 * patience;
    o.longest_look = 5 * patience; // A prompt that waited would wait until the file has its name.
    const server a(network, {}, o);
    CHECK(within(patience, [&] { return a.tier->stats().is_on; }));
    CHECK(a.save(random_tokens(1, 100)));
    CHECK(within(patience, [&] { return is_publishing.load(); }));
    std::this_thread::sleep_for(2 * o.refresh); // The last look is too old for it.
    CHECK(a.fetch(random_tokens(99, 100)) == 0);
    CHECK(objects(network).empty());
    is_answered = true;
    CHECK(a.tier->publish(patience));
    CHECK(objects(network).size() == 1);
}

TEST(an_empty_mount_point_is_not_filled) {
    network_disk & network = new_network_disk();
    server       a(network);
    const auto   talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    const auto mounted = network.clone();
    for (const std::string & path : files_with(network, shared_dir)) {
        network.erase(path);
    }
    CHECK(within(patience, [&] { return !a.tier->stats().is_on; }));
    CHECK(contains(a.tier->stats().why, "mount"));
    for (const std::string & path : files_with(network, shared_dir)) { // A round that had begun may have written its lease.
        network.erase(path);
    }
    a.restart(network);
    CHECK(a.save(random_tokens(2, 100)));
    CHECK(!a.tier->publish(patience));
    CHECK(contains(a.tier->stats().why, "mount"));
    CHECK(files_with(network, shared_dir).empty());
    for (const std::string & path : files_with(*mounted, shared_dir)) {
        network.put(path, mounted->get(path));
    }
    CHECK(within(patience, [&] { return a.tier->publish(patience); }));
}

TEST(a_clock_that_is_set_back_does_not_keep_anything_from_being_published) {
    network_disk & network = new_network_disk();
    server       a(network);
    CHECK(a.save_and_publish(random_tokens(1, 100)));
    a.disk.set_now_ms(a.disk.now_ms() - 3600 * 1000);
    CHECK(a.save_and_publish(random_tokens(2, 100)));
    CHECK(objects(network).size() == 2);
}

int main() {
    return run_tests();
}

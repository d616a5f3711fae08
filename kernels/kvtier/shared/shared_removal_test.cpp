// What is removed here goes from the shared folder, too, whatever the folder says to it, and nothing else does.
#include "kvtier/shared/shared_notes.h"
#include "kvtier/shared/shared_testing.h"

using namespace kvtier;
using namespace kvtier::test;
using namespace std::chrono_literals;

TEST(removing_a_conversation_removes_it_from_the_folder_too) {
    network_disk & network = new_network_disk();
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
    CHECK(a.tier->publish(patience));
    const server b(network);
    CHECK(within(patience, [&] { return b.sees_files(); }));

    uint64_t       freed = 0, n_files = 0;
    shared_removal removal = a.tier->begin_removal(key{}, { 2 });
    CHECK(a.s->remove_conversation(key{}, 2, freed).is_ok());
    CHECK(a.tier->finish_removal(removal, patience, n_files));
    CHECK(n_files == 1);
    CHECK(a.tier->publish(patience));
    CHECK(within(patience, [&] { return b.restore(gone) == 64; }));
    CHECK(b.restore(kept) == 128);
    CHECK(b.tier->publish(patience)); // It sees that what it has is there.

    removal = a.tier->begin_removal(key{});
    CHECK(a.s->remove_name_space(key{}, freed).is_ok());
    CHECK(a.tier->finish_removal(removal, patience, n_files));
    CHECK(objects(network).empty());
    CHECK(b.tier->publish(patience));
    CHECK(objects(network).empty()); // What was fetched is not put back by whoever has it.
}

TEST(what_others_have_begun_with_the_same_static_prefix_stays) {
    for (const size_t folded_size : { size_t(0), size_t(3000) }) {
        network_disk & network = new_network_disk();
        model        m;
        m.folded_size = folded_size;
        const server a(network, m), b(network, m);
        const auto   prefix = random_tokens(1, 64);
        auto         mine = prefix, theirs = prefix;
        append(mine, 2, 64);
        append(theirs, 3, 64);
        const auto save = [&](const server & at, uint64_t conversation, const std::vector<token> & talk) {
            save_request request = m.request(*at.s, talk, 64, true, folded_size > 0 ? std::vector<uint32_t>{ 64 } : std::vector<uint32_t>{});
            request.conversation.hash = conversation;
            return at.s->save(request).is_ok() && at.tier->publish(patience);
        };
        const auto remove = [&](const server & at, uint64_t conversation) {
            uint64_t             freed = 0, n_files = 0;
            const shared_removal removal = at.tier->begin_removal(key{}, { conversation });
            CHECK(at.s->remove_conversation(key{}, conversation, freed).is_ok());
            CHECK(at.tier->finish_removal(removal, patience, n_files));
        };
        CHECK(save(a, 1, mine) && save(b, 2, theirs));
        remove(a, 1);
        const server c(network, m);
        CHECK(within(patience, [&] { return c.restore(theirs) == 128; }));
        CHECK(c.restore(mine) == 64);
        remove(b, 2);
        CHECK(objects(network).empty());
        CHECK(c.tier->publish(patience));
        CHECK(objects(network).empty());
    }
}

TEST(a_static_prefix_goes_with_the_last_of_several_removals) {
    network_disk & network = new_network_disk();
    const server a(network);
    for (const uint64_t c : { 1, 2 }) {
        auto talk = random_tokens(1, 64);
        append(talk, 10 + c, 64);
        save_request request = a.m.request(*a.s, talk, 64);
        request.conversation.hash = c;
        CHECK(a.s->save(request).is_ok());
    }
    CHECK(a.tier->publish(patience));
    CHECK(objects(network).size() == 3);
    network.no_remove = ".seg";
    for (const uint64_t c : { 1, 2 }) {
        uint64_t             freed = 0, n_files = 0;
        const shared_removal removal = a.tier->begin_removal(key{}, { c });
        CHECK(a.s->remove_conversation(key{}, c, freed).is_ok());
        CHECK(!a.tier->finish_removal(removal, patience, n_files));
    }
    network.no_remove = "";
    CHECK(within(patience, [&] { return objects(network).empty(); }));
}

TEST(a_prompt_whose_turn_never_ended_goes_with_its_conversation) {
    network_disk & network = new_network_disk();
    const server a(network);
    const auto   talk    = random_tokens(1, 100);
    save_request request = a.m.request(*a.s, talk, 0, false);
    request.conversation.hash = 5;
    CHECK(a.s->save(request).is_ok() && a.tier->publish(patience));
    CHECK(objects(network).size() == 1);
    uint64_t             freed = 0, n_files = 0;
    const shared_removal removal = a.tier->begin_removal(key{}, { 5 });
    CHECK(a.s->remove_conversation(key{}, 5, freed).is_ok());
    CHECK(a.tier->finish_removal(removal, patience, n_files));
    CHECK(n_files == 1 && objects(network).empty());
}

TEST(what_conversations_share_goes_with_the_last_of_them) {
    network_disk & network = new_network_disk();
    const server a(network);
    const auto   prefix = random_tokens(1, 64);
    CHECK(a.save_as(1, prefix) && a.tier->publish(patience));
    for (uint64_t c = 1; c <= 3; c++) {
        auto talk = prefix;
        append(talk, 10 + c, 64);
        CHECK(a.save_as(c, talk));
    }
    CHECK(a.tier->publish(patience));
    CHECK(objects(network).size() == 4);
    const auto remove = [&](const std::vector<uint64_t> & conversations) {
        uint64_t             freed = 0, n_files = 0;
        const shared_removal removal = a.tier->begin_removal(key{}, conversations);
        for (const uint64_t c : conversations) {
            CHECK(a.s->remove_conversation(key{}, c, freed).is_ok());
        }
        CHECK(a.tier->finish_removal(removal, patience, n_files));
    };
    remove({ 3 });
    CHECK(objects(network).size() == 3);
    remove({ 1, 2 });
    CHECK(objects(network).empty());
}

TEST(what_cannot_be_removed_now_is_removed_later) {
    network_disk & network = new_network_disk();
    const server        a(network);
    const auto          talk = random_tokens(1, 100);
    CHECK(a.save_and_publish(talk));
    network.no_remove = ".seg";
    uint64_t       freed = 0, n_files = 0;
    shared_removal removal = a.tier->begin_removal(key{});
    CHECK(a.s->remove_name_space(key{}, freed).is_ok());
    CHECK(!a.tier->finish_removal(removal, patience, n_files));
    network.no_remove = "";
    CHECK(within(patience, [&] { return objects(network).empty(); }));
}

TEST(what_is_evicted_here_while_something_else_is_removed_stays_in_the_folder) {
    network_disk & network = new_network_disk();
    const server a(network), b(network);
    const auto   gone = random_tokens(1, 100), kept = random_tokens(2, 100);
    CHECK(a.save_as(1, gone) && a.save_as(2, kept));
    CHECK(a.tier->publish(patience));
    uint64_t             freed = 0, n_files = 0;
    const shared_removal removal = a.tier->begin_removal(key{}, { 1 });
    CHECK(a.s->remove_conversation(key{}, 1, freed).is_ok());
    CHECK(a.s->remove_conversation(key{}, 2, freed).is_ok()); // as an eviction would
    CHECK(a.tier->finish_removal(removal, patience, n_files));
    CHECK(within(patience, [&] { return b.restore(kept) == 100; }));
    CHECK(b.restore(gone) == 0);
}

TEST(what_is_being_removed_is_not_fetched_meanwhile) {
    network_disk & network = new_network_disk();
    server       a(network);
    const auto   talk = random_tokens(1, 100);
    for (const bool everything : { false, true }) {
        a.disk.set_now_ms(a.disk.now_ms() + 1000);
        CHECK(a.save_as(1, talk) && a.tier->publish(patience));
        uint64_t             freed = 0, n_files = 0;
        const shared_removal removal = everything ? a.tier->begin_removal(key{}) : a.tier->begin_removal(key{}, { 1 });
        CHECK(a.s->remove_conversation(key{}, 1, freed).is_ok());
        CHECK(a.restore(talk) == 0);
        CHECK(a.tier->finish_removal(removal, patience, n_files));
        CHECK(n_files > 0);
        CHECK(a.restore(talk) == 0);
    }
    CHECK(objects(network).empty());
}

TEST(a_removal_that_the_folder_has_refused_outlasts_the_process) {
    network_disk & network = new_network_disk();
    server       a(network);
    const auto   gone = random_tokens(1, 100), kept = random_tokens(2, 100);
    CHECK(a.save_as(1, gone) && a.save_as(2, kept));
    CHECK(a.tier->publish(patience));
    network.no_remove = ".seg";
    uint64_t             freed = 0, n_files = 0;
    const shared_removal removal = a.tier->begin_removal(key{}, { 1 });
    CHECK(a.s->remove_conversation(key{}, 1, freed).is_ok());
    CHECK(!a.tier->finish_removal(removal, patience, n_files));
    a.restart(network);
    CHECK(within(patience, [&] { return a.tier->stats().is_on; }));
    CHECK(a.restore(gone) == 0); // It is still there, and nobody fetches it.
    a.tier.reset();
    network.no_remove = "";
    a.restart(network);
    CHECK(within(patience, [&] { return objects(network).size() == 1; }));
    CHECK(a.restore(gone) == 0);
    CHECK(a.restore(kept) == 100);
    a.restart(network);
    CHECK(within(patience, [&] { return a.tier->stats().is_on; }));
    CHECK(a.save_as(1, gone)); // It is evaluated again, and nobody remembers the removal.
    CHECK(a.tier->publish(patience));
    CHECK(objects(network).size() == 2);
}

TEST(what_could_not_be_read_when_it_was_to_be_removed_is_removed_later) {
    for (const bool is_folder : { false, true }) {
        network_disk & network = new_network_disk();
        server       a(network);
        const auto   gone = random_tokens(1, 100);
        CHECK(a.save_as(1, gone) && a.tier->publish(patience));
        const std::string path = objects(network).front();
        a.tier.reset();
        (is_folder ? network.no_list : network.no_open) = is_folder ? path.substr(0, path.rfind('/')) : path;
        a.disk.set_now_ms(a.disk.now_ms() + 1000); // It is not in use any more, and not written again.
        a.restart(network);
        uint64_t             freed = 0, n_files = 0;
        const shared_removal removal = a.tier->begin_removal(key{}, { 1 });
        CHECK(a.s->remove_conversation(key{}, 1, freed).is_ok());
        CHECK(!a.tier->finish_removal(removal, patience, n_files));
        a.tier.reset();
        network.no_open = "";
        network.no_list = "";
        a.restart(network);
        CHECK(within(patience, [&] { return objects(network).empty(); }));
        CHECK(a.restore(gone) == 0);
    }
}

TEST(a_file_that_cannot_be_removed_does_not_keep_others_from_being_removed) {
    network_disk & network = new_network_disk();
    server       a(network);
    CHECK(a.save_as(1, random_tokens(1, 100)) && a.save_as(2, random_tokens(2, 100)) && a.tier->publish(patience));
    CHECK(objects(network).size() == 2);
    network.no_remove = objects(network).front();
    uint64_t             freed = 0, n_files = 0;
    const shared_removal removal = a.tier->begin_removal(key{});
    CHECK(a.s->remove_name_space(key{}, freed).is_ok());
    CHECK(!a.tier->finish_removal(removal, patience, n_files));
    CHECK(objects(network).size() == 1);
}

TEST(what_was_fetched_for_a_conversation_goes_with_it) {
    network_disk &           network = new_network_disk();
    const std::vector<token> tokens  = random_tokens(3, 1300); // It has a name by its first tokens, too, which is not its own.
    server                   a(network), b(network);
    CHECK(a.save_as(77, tokens) && a.tier->publish(patience));
    CHECK(within(patience, [&] { return b.fetch(tokens, 77) > 0; }));
    CHECK(b.save_as(77, tokens));
    uint64_t freed = 0;
    CHECK(b.s->remove_conversation(key{}, 77, freed).is_ok());
    CHECK(files_with(b.disk, ".seg").empty());
}

TEST(what_the_folder_owes_is_known_after_a_power_cut) {
    const std::string file = std::string(root_dir) + "/removals";
    fault_env         disk;
    disk.put_folder(root_dir);
    {
        shared_notes   notes(disk, file);
        shared_removal removal;
        removal.runs.insert(key{});
        notes.begin(removal);
        CHECK(notes.due().empty()); // The local store has it still.
    }
    disk.power_cut(cut_mode::strict);
    CHECK(shared_notes(disk, file).due().size() == 1);
    {
        shared_notes notes(disk, file);
        notes.is_done(notes.due().at(0).id);
    }
    disk.power_cut(cut_mode::strict);
    CHECK(shared_notes(disk, file).due().empty());
}

int main() {
    return run_tests();
}

// What is left in the spool: once, in order, complete or not at all. That pyrun/memory reads it is tested in
// tests/server/test_endless.py.
#include "server/overflow/archive_spool.h"

#include "kvtier/fault_env.h"
#include "kvtier/file_names.h"
#include "kvtier/testing.h"

#include <chrono>
#include <thread>

using namespace llama_run;
using kvtier::fault_env;

namespace {

const std::string folder = "/memory/spool";

void ignore(const std::string &) {}

// Of a file: hashing that much takes no time, also under a sanitizer.
constexpr uint64_t small = uint64_t(64) << 10;

std::vector<archive_spool::message> history(size_t n) {
    std::vector<archive_spool::message> out;
    for (size_t i = 0; i < n; i++) {
        out.push_back({ i + 1, "{\"role\":\"user\",\"content\":\"" + std::to_string(i) + "\"}" });
    }
    return out;
}

// What it has left is on disk when it is gone.
void leave(fault_env & files, const std::string & user, std::vector<std::vector<archive_spool::message>> histories) {
    archive_spool spool(files, folder, ignore);
    for (auto & h : histories) {
        spool.leave(user, 7, std::move(h));
    }
}

std::vector<std::string> complete(const fault_env & files) {
    std::vector<std::string> out;
    for (const std::string & path : files.files()) {
        if (path.size() > 6 && path.substr(path.size() - 6) == ".spool") {
            out.push_back(path);
        }
    }
    return out;
}

size_t n_messages(const fault_env & files) {
    size_t n = 0;
    for (const std::string & path : complete(files)) {
        const std::string text = files.get(path);
        for (size_t at = text.find("\"seq\":"); at != std::string::npos; at = text.find("\"seq\":", at + 1)) {
            n++;
        }
    }
    return n;
}

} // namespace

TEST(a_file_has_a_header_and_a_line_for_each_message) {
    fault_env files;
    files.set_now_ms(1794814764966);
    leave(files, "", { history(2) });
    const auto found = complete(files);
    CHECK(found.size() == 1);
    const std::string user(32, '0');
    CHECK(found[0].rfind(folder + "/" + user + "/0000000000000007-1794814764966-", 0) == 0);
    const std::string text = files.get(found[0]);
    CHECK(text.find(" {\"spool\":1,\"user\":\"" + user + "\",\"conversation\":\"0000000000000007\",\"created\":1794814764966," +
                    "\"n\":2}\n") == 32);
    CHECK(text.find(" {\"seq\":1,\"message\":{\"role\":\"user\",\"content\":\"0\"}}\n") != std::string::npos);
    CHECK(text.find(" {\"seq\":2,\"message\":{\"role\":\"user\",\"content\":\"1\"}}\n") != std::string::npos);
    CHECK(text.back() == '\n');
}

TEST(what_was_left_is_not_left_again) {
    fault_env files;
    leave(files, "", { history(4), history(4), history(6), history(6) });
    CHECK(complete(files).size() == 2);
    CHECK(n_messages(files) == 6);
}

TEST(a_history_that_was_rewritten_is_left_anew) {
    fault_env files;
    auto      other = history(6);
    other[1].json   = "{\"role\":\"user\",\"content\":\"no\"}";
    leave(files, "", { history(4), other });
    CHECK(n_messages(files) == 10);
}

TEST(users_have_folders_of_their_own) {
    fault_env files;
    leave(files, "alice", { history(2) });
    leave(files, "bob", { history(2) });
    const auto found = complete(files);
    CHECK(found.size() == 2);
    CHECK(kvtier::names::parent(found[0]) != kvtier::names::parent(found[1]));
}

TEST(wherever_the_power_goes_a_file_is_complete_or_not_there_and_comes_again) {
    fault_env whole;
    leave(whole, "", { history(3) });
    const size_t n_calls = whole.calls();
    CHECK(n_calls > 5);
    for (size_t n = 1; n <= n_calls; n++) {
        for (const kvtier::cut_mode mode : { kvtier::cut_mode::strict, kvtier::cut_mode::names_first, kvtier::cut_mode::torn }) {
            fault_env files;
            files.fail_at(n, kvtier::fault::cut);
            leave(files, "", { history(3) });
            files.power_cut(mode);
            CHECK(n_messages(files) == 0 || n_messages(files) == 3);
            leave(files, "", { history(3) });
            CHECK(n_messages(files) == 3 || n_messages(files) == 6);
        }
    }
}

TEST(what_could_not_be_written_comes_with_the_next_request) {
    fault_env   files;
    std::string said;
    archive_spool spool(files, folder, [&](const std::string & trouble) { said = trouble; });
    files.set_read_only(true);
    spool.leave("", 7, history(3));
    while (spool.count().n_refused == 0) {
        std::this_thread::yield();
    }
    CHECK(!said.empty());
    files.set_read_only(false);
    spool.leave("", 7, history(3));
    while (spool.count().n_left == 0) {
        std::this_thread::yield();
    }
    CHECK(n_messages(files) == 3);
}

TEST(chats_that_begin_alike_and_take_turns_are_left_once_each) {
    fault_env files;
    auto      other = history(6);
    other[3].json   = "{\"role\":\"user\",\"content\":\"no\"}";
    leave(files, "", { history(6), other, history(6), other, history(7), other });
    CHECK(n_messages(files) == 13);
}

TEST(more_than_may_wait_is_counted_and_comes_with_the_next_requests) {
    fault_env  files;
    const auto large = [] {
        std::vector<archive_spool::message> out;
        for (uint64_t i = 0; i < 2; i++) {
            out.push_back({ i, "{\"content\":\"" + std::string(size_t(33) << 10, 'a') + "\"}" });
        }
        return out;
    };
    archive_spool spool(files, folder, ignore, small);
    const auto    wait_for = [&](size_t n_left) {
        while (spool.count().n_left < n_left) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    };
    spool.leave("", 7, large());
    CHECK(spool.count().n_refused == 1);
    wait_for(1);
    spool.leave("", 7, large());
    wait_for(2);
    CHECK(n_messages(files) == 2);
}

TEST(a_message_that_is_too_large_holds_up_none_of_the_others) {
    fault_env   files;
    std::string said;
    {
        archive_spool spool(files, folder, [&](const std::string & trouble) { said = trouble; }, small);
        auto          h = history(3);
        h[1].json       = "{\"content\":\"" + std::string(size_t(65) << 10, 'a') + "\"}";
        for (int i = 0; i < 2; i++) {
            spool.leave("", 7, std::vector<archive_spool::message>(h));
        }
        CHECK(spool.count().n_refused == 1);
    }
    CHECK(n_messages(files) == 2);
    CHECK(said.find("is too large for the spool") != std::string::npos);
}

int main() {
    return kvtier::run_tests();
}

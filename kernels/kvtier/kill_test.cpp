// Real kills on real files: a child process saves turn after turn and is killed at a random moment, again and again.
// It reports each turn that was committed; every one reported must restore afterwards.
//
//   kill_test [KILLS]      200 unless told, fewer under sanitizers
#include "kvtier/store_testing.h"

#include <cerrno>
#include <cstdlib>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace kvtier;
using namespace kvtier::test;

static int n_kills = one_in == 1 ? 200 : 50;

static std::vector<token> talk(uint32_t id, uint32_t turn) {
    std::vector<token> tokens = random_tokens(1, 40); // shared by all
    for (uint32_t i = 0; i <= turn; i++) {
        append(tokens, 1000 * id + i, 30);
    }
    return tokens;
}

static constexpr uint32_t n_turns = 6;

// Saves conversations from `first` on until it is killed; writes the number of each committed turn to the pipe.
[[noreturn]] static void child(const model & m, const store_options & o, uint32_t first, int pipe_fd) {
    std::unique_ptr<store> s;
    if (!store::open(posix_env(), o, s).is_ok()) {
        ::_exit(3);
    }
    for (uint32_t n = first;; n++) {
        if (!m.save(*s, talk(n / n_turns, n % n_turns), 40, true, { 40 }).is_ok()) {
            ::_exit(4);
        }
        if (::write(pipe_fd, &n, sizeof(n)) != sizeof(n)) {
            ::_exit(5);
        }
    }
}

TEST(a_kill_loses_no_committed_turn) {
    char name[] = "/tmp/kvtier-kill-XXXXXX";
    const std::string folder = ::mkdtemp(name);
    model m;
    m.bytes_per_token = 512;
    m.folded_size     = 4096;
    store_options o = m.options();
    o.root_dir = folder + "/cache";
    o.max_conversations = 100000;
    random_source r{ 7 };
    uint32_t      next = 0, committed = 0, unfinished = 0;
    for (int kill_number = 0; kill_number < n_kills; kill_number++) {
        int ends[2];
        CHECK(::pipe(ends) == 0);
        std::fflush(stdout);
        const pid_t pid = ::fork();
        if (pid == 0) {
            ::close(ends[0]);
            child(m, o, next, ends[1]);
        }
        ::close(ends[1]);
        std::vector<uint32_t> done;
        uint32_t              n = 0;
        if (kill_number % 10 == 0) { // However slow the disk is, something is committed now and then.
            CHECK(::read(ends[0], &n, sizeof(n)) == sizeof(n));
            done.push_back(n);
        }
        ::usleep(2000 + r.below(25000));
        ::kill(pid, SIGKILL);
        int how = 0;
        CHECK(::waitpid(pid, &how, 0) == pid);
        CHECK(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        while (::read(ends[0], &n, sizeof(n)) == sizeof(n)) {
            done.push_back(n);
        }
        ::close(ends[0]);

        auto s = open(posix_env(), o);
        if (s == nullptr) {
            break;
        }
        for (uint32_t turn : done) {
            const std::vector<token> tokens = talk(turn / n_turns, turn % n_turns);
            CHECK(m.restore(*s, tokens) == tokens.size());
            next = turn + 1;
            committed++;
        }
        const std::vector<token> half = talk(next / n_turns, next % n_turns);
        m.restore(*s, half); // whatever is there of it is right
        if (kill_number % 20 == 19 || kill_number + 1 == n_kills) {
            verify_report report;
            CHECK(s->verify(report).is_ok());
            CHECK(report.damaged.empty());
        }
        CHECK(s->stats().values.damaged_total() == 0);
        unfinished += s->stats().values.temporary_removed > 0;
    }
    for (uint32_t turn = 0; turn < next; turn++) { // all of them, from the first kill on
        auto tokens = talk(turn / n_turns, turn % n_turns);
        if (turn % 7 == 0) {
            auto s = open(posix_env(), o);
            CHECK(m.restore(*s, tokens) == tokens.size());
            if (turn > 70) {
                break;
            }
        }
    }
    std::printf("  %d kills, %u turns committed, %u kills left unfinished files\n", n_kills, committed, unfinished);
    CHECK(committed > 0);
    CHECK(remove_tree(posix_env(), folder, nullptr).is_ok());
}

int main(int argc, char ** argv) {
    if (argc > 1) {
        n_kills = std::atoi(argv[1]);
    }
    return run_tests();
}

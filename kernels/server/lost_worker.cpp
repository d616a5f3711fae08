#include "server/lost_worker.h"

#include "kvtier/thread_annotations.h"

#include "ggml-backend.h"
#include "ggml.h"
#include "log.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

extern "C" void ggml_print_backtrace(void); // ggml's own; it stands in no public header

namespace llama_run {

using std::chrono::seconds;

// HTTP workers look once a second whether there is something to tell.
static constexpr seconds TELLING_TIME{ 2 };

// Saves that wait for the lost worker never end; those before them are on disk by then.
static constexpr seconds LONGEST_SAVING{ 10 };

// A silent machine is given up after KEEP_IDLE + KEEP_COUNT*KEEP_STEP seconds.
static constexpr int KEEP_IDLE  = 10;
static constexpr int KEEP_STEP  = 5;
static constexpr int KEEP_COUNT = 4;
static constexpr int MOST_FILES = 4096; // connections to workers are among a server's first

static kvtier::mutex         mu;
static std::function<void()> teller GUARDED_BY(mu);
static std::function<void()> saver GUARDED_BY(mu);
static std::string           names GUARDED_BY(mu); // of the workers, for people
static std::atomic<bool>     is_lost{ false };

// HOST:PORT of each.
static std::vector<std::string> workers() {
    std::vector<std::string> out;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), "RPC") == 0) {
            const std::string endpoint = ggml_backend_dev_description(device);
            if (std::find(out.begin(), out.end(), endpoint) == out.end()) {
                out.push_back(endpoint); // a worker may have several devices
            }
        }
    }
    return out;
}

static void set_option(int socket, int level, int name, int value) {
    setsockopt(socket, level, name, &value, sizeof(value));
}

// Nothing is sent while a batch is waited for. A machine without power or cable would never be missed, if nobody asked for it.
static void keep_asking(const std::vector<std::string> & endpoints) {
    for (int file = 0; file < MOST_FILES; file++) {
        sockaddr_in peer{};
        socklen_t   size = sizeof(peer);
        if (getpeername(file, reinterpret_cast<sockaddr *>(&peer), &size) != 0 || peer.sin_family != AF_INET) {
            continue;
        }
        // The port is enough: somebody else's connection is not harmed.
        const std::string port = ":" + std::to_string(ntohs(peer.sin_port));
        const bool ours = std::any_of(endpoints.begin(), endpoints.end(), [&](const std::string & endpoint) {
            return endpoint.size() > port.size() && endpoint.compare(endpoint.size() - port.size(), port.size(), port) == 0;
        });
        if (ours) {
            set_option(file, SOL_SOCKET, SO_KEEPALIVE, 1);
#if defined(__APPLE__)
            set_option(file, IPPROTO_TCP, TCP_KEEPALIVE, KEEP_IDLE);
#else
            set_option(file, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE);
#endif
            set_option(file, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_STEP);
            set_option(file, IPPROTO_TCP, TCP_KEEPCNT, KEEP_COUNT);
        }
    }
}

// What ggml-rpc.cpp says when a worker does not answer any more, or not at all.
static bool is_about_worker(const char * message) {
    return strstr(message, "Remote RPC server crashed") != nullptr || strstr(message, "Failed to connect to ") != nullptr ||
           strstr(message, "RPC handshake failed") != nullptr;
}

// It runs on the thread that found out, which may hold any lock but ours: what takes locks is left to other threads.
static void on_abort(const char * message) {
    if (!is_about_worker(message)) {
        fprintf(stderr, "%s\n", message);
        ggml_print_backtrace();
        return;
    }
    if (is_lost.exchange(true)) {
        std::this_thread::sleep_for(TELLING_TIME + LONGEST_SAVING); // the thread that was first ends the process
        return;
    }
    const auto saved = std::make_shared<std::atomic<bool>>(false);
    std::function<void()> tell;
    std::function<void()> save;
    {
        kvtier::mutex_lock lock(mu);
        tell = teller;
        save = saver;
    }
    LOG_ERR("workers: %s (%s)\n", lost_worker_message().c_str(), message);
    std::thread([tell] { tell(); }).detach();
    std::thread([save, saved] {
        save();
        *saved = true;
    }).detach();
    const auto start = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(TELLING_TIME);
    while (!*saved && std::chrono::steady_clock::now() - start < LONGEST_SAVING) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    common_log_flush(common_log_main());
    std::_Exit(lost_worker_code);
}

void watch_workers(std::function<void()> tell, std::function<void()> save) {
    const std::vector<std::string> endpoints = workers();
    if (endpoints.empty()) {
        return;
    }
    keep_asking(endpoints);
    kvtier::mutex_lock lock(mu);
    teller = std::move(tell);
    saver  = std::move(save);
    names.clear();
    for (const std::string & endpoint : endpoints) {
        names += (names.empty() ? "" : ", ") + endpoint;
    }
    ggml_set_abort_callback(on_abort);
}

void forget_workers() {
    kvtier::mutex_lock lock(mu);
    teller = [] {};
    saver  = [] {};
}

std::string lost_worker_message() {
    kvtier::mutex_lock lock(mu);
    return is_lost ? "a worker that holds a part of the model was lost (one of " + names +
                     "): the server ends, and llama-run starts it again when the worker is back"
                   : std::string();
}

} // namespace llama_run

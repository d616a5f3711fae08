// How the store grows: searching among many conversations, and opening a store that holds them.
//
//   scale_bench [CONVERSATIONS [PAGES [BYTES_PER_PAGE]]]      10000 60 64 unless told
//
// Half of the conversations share a system prompt, which makes one node of the index very wide; a tenth of the lookups
// departs from what is stored. Prints a table; the promise is lookup among 10,000 at most 2 x that among 10, and opening
// in less than 2 s.
#include "kvtier/file_names.h"
#include "kvtier/store.h"
#include "kvtier/unsynced_env.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

using namespace kvtier;

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static std::vector<token> conversation_tokens(size_t i, size_t n) {
    std::vector<token> tokens(n);
    const size_t n_shared = i % 2 == 0 ? 0 : std::min<size_t>(n, 2000);
    for (size_t p = 0; p < n; p++) {
        tokens[p] = static_cast<token>(mix((p < n_shared ? 0 : i + 1) * 1000003 + p) % 150000);
    }
    return tokens;
}

struct figures {
    double save_s, open_s, lookup_us;
    store_stats stats;
};

static figures measure(const std::string & folder, size_t n_conversations, size_t n_pages, size_t page_bytes) {
    store_options o;
    o.root_dir = folder + "/cache-" + std::to_string(n_conversations);
    o.fingerprint[0]    = 1;
    o.max_conversations = 1u << 30;
    o.max_checkpoints   = 1u << 30;
    o.max_cold          = 1u << 30;
    chain_root root = { o.fingerprint, o.page_size, "", {} };
    figures    out{};
    const size_t n = n_pages * o.page_size;

    unsynced_env           fast;
    std::unique_ptr<store> s;
    if (status opened = store::open(fast, o, s); !opened.is_ok()) {
        std::fprintf(stderr, "%s\n", opened.message().c_str());
        std::exit(1);
    }
    double start = now();
    for (size_t i = 0; i < n_conversations; i++) {
        const std::vector<token> tokens = conversation_tokens(i, n);
        plan_request p;
        p.root     = root;
        p.tokens   = tokens.data();
        p.n_tokens = tokens.size();
        p.n_static = i % 2 == 0 ? 0 : 2000;
        save_request request = s->plan(p);
        for (save_run & r : request.runs) {
            auto data = std::make_shared<buffer>(page_bytes);
            std::fill(data->data(), data->data() + page_bytes, uint8_t(1));
            r.data = data;
            
        }
        if (status saved = s->save(request); !saved.is_ok()) {
            std::fprintf(stderr, "%s\n", saved.message().c_str());
            std::exit(1);
        }
    }
    out.save_s = now() - start;
    s = nullptr;

    start = now();
    if (status opened = store::open(posix_env(), o, s); !opened.is_ok()) {
        std::fprintf(stderr, "%s\n", opened.message().c_str());
        std::exit(1);
    }
    out.open_s = now() - start;

    const size_t        n_lookups = 2000;
    std::vector<double> times;
    for (size_t i = 0; i < n_lookups; i++) {
        std::vector<token> tokens = conversation_tokens(mix(i) % n_conversations, n);
        if (i % 10 == 0) {
            tokens[mix(i + 1) % n] ^= 1;
        }
        lookup_request request = { root, tokens.data(), tokens.size(), tokens.size() - 1, false };
        const double before = now();
        const match  m      = s->lookup(request);
        times.push_back(now() - before);
        if (m.n_tokens == 0 && i % 10 != 0) {
            std::fprintf(stderr, "lookup failed\n");
            std::exit(1);
        }
    }
    std::sort(times.begin(), times.end());
    out.lookup_us = 1e6 * times[times.size() / 2];
    out.stats     = s->stats();
    s = nullptr;
    (void) remove_tree(posix_env(), o.root_dir, nullptr).is_ok();
    return out;
}

int main(int argc, char ** argv) {
    const size_t n_conversations = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 10000;
    const size_t n_pages         = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 60;
    const size_t page_bytes      = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 64;
    char         name[]          = "/tmp/kvtier-scale-XXXXXX";
    const std::string folder = ::mkdtemp(name);
    std::printf("conversations    pages   segments   save s   open s   lookup us (median)   index MiB\n");
    for (size_t n : { size_t(10), n_conversations }) {
        const figures f = measure(folder, n, n_pages, page_bytes);
        std::printf("%13zu %8llu %10llu %8.2f %8.3f %20.1f %11.1f\n", n, static_cast<unsigned long long>(f.stats.n_runs),
                    static_cast<unsigned long long>(f.stats.n_segments), f.save_s, f.open_s, f.lookup_us,
                    static_cast<double>(f.stats.index_bytes) / (1 << 20));
    }
    (void) remove_tree(posix_env(), folder, nullptr).is_ok();
    return 0;
}

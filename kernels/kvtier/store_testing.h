// Stand-ins for a model: tokens, and state that depends on every token before it, as real state does. A test can
// therefore tell from the bytes alone whether a restored state belongs to a prompt.
#pragma once

#include "kvtier/fault_env.h"
#include "kvtier/store.h"
#include "kvtier/testing.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvtier {
namespace test {

constexpr char root_dir[] = "/cache";

// A real folder, which goes with the object.
struct temp_folder {
    std::string path;
    temp_folder() {
        char name[] = "/tmp/kvtier-test-XXXXXX";
        path = ::mkdtemp(name);
    }
    ~temp_folder() { CHECK(remove_tree(posix_env(), path, nullptr).is_ok()); }
};

inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

inline bool contains(const std::string & text, const std::string & part) {
    return text.find(part) != std::string::npos;
}

// A random source that gives the same numbers in every run.
struct random_source {
    uint64_t state;
    uint64_t next() { return state = mix(state); }
    uint32_t below(uint32_t n) { return static_cast<uint32_t>(next() % n); }
};

inline std::vector<token> random_tokens(uint64_t seed, size_t n) {
    random_source      r{ seed };
    std::vector<token> out(n);
    for (token & t : out) {
        t = static_cast<token>(r.below(50000));
    }
    return out;
}

inline void append(std::vector<token> & tokens, uint64_t seed, size_t n) {
    const std::vector<token> more = random_tokens(seed, n);
    tokens.insert(tokens.end(), more.begin(), more.end());
}

// Gives the rows of [p0, p1): each has bytes_per_token bytes and depends on tokens [0, p].
inline blob rows(const std::vector<token> & tokens, size_t p0, size_t p1, size_t bytes_per_token) {
    auto     out   = std::make_shared<buffer>((p1 - p0) * bytes_per_token);
    uint64_t state = 1;
    for (size_t p = 0; p < p1; p++) {
        state = mix(state ^ static_cast<uint32_t>(tokens[p]));
        if (p >= p0) {
            uint64_t word = state;
            for (size_t i = 0; i < bytes_per_token; i++) {
                if (i % 8 == 0) {
                    word = mix(word);
                }
                out->data()[(p - p0) * bytes_per_token + i] = static_cast<uint8_t>(word >> (8 * (i % 8)));
            }
        }
    }
    return out;
}

// Gives the folded state at n.
inline blob folded(const std::vector<token> & tokens, size_t n, size_t size) {
    auto     out   = std::make_shared<buffer>(size);
    uint64_t state = 2;
    for (size_t p = 0; p < n; p++) {
        state = mix(state ^ static_cast<uint32_t>(tokens[p]));
    }
    for (size_t i = 0; i < size; i++) {
        state = i % 8 == 0 ? mix(state) : state;
        out->data()[i] = static_cast<uint8_t>(state >> (8 * (i % 8)));
    }
    return out;
}

struct model {
    uint32_t    page_size       = 16;
    size_t      bytes_per_token = 8;
    size_t      folded_size     = 0; // 0: attention only
    std::string user;

    chain_root root() const {
        key fingerprint{};
        fingerprint[0] = 0xf1;
        return { fingerprint, page_size, user, {} };
    }

    store_options options() const {
        store_options o;
        o.root_dir    = root_dir;
        o.fingerprint = root().fingerprint;
        o.page_size   = page_size;
        o.written_by  = "0.1.0";
        return o;
    }

    save_request request(const store & s, const std::vector<token> & tokens, uint32_t n_static = 0,
                         bool checkpoint = true, std::vector<uint32_t> anchors = {}) const {
        plan_request p;
        p.root             = root();
        p.root.fingerprint = s.options().fingerprint; // Some tests have stores of several models.
        p.tokens           = tokens.data();
        p.n_tokens         = tokens.size();
        p.n_static         = n_static;
        if (folded_size > 0) {
            anchors.push_back(static_cast<uint32_t>(tokens.size()));
            p.anchors = anchors;
        }
        save_request out = s.plan(p);
        fill(out);
        out.checkpoint = checkpoint;
        return out;
    }

    void fill(save_request & out) const {
        out.backend = "cpu";
        out.folded  = folded_size > 0;
        for (save_run & r : out.runs) {
            r.data = rows(out.tokens, r.p0, r.p1, bytes_per_token);
        }
        for (save_anchor & a : out.anchors) {
            a.data = folded(out.tokens, a.n_tokens, folded_size);
        }
    }

    status save(store & s, const std::vector<token> & tokens, uint32_t n_static = 0, bool checkpoint = true,
                std::vector<uint32_t> anchors = {}) const {
        return s.save(request(s, tokens, n_static, checkpoint, std::move(anchors)));
    }

    match lookup(const store & s, const std::vector<token> & tokens) const {
        lookup_request r;
        r.root     = root();
        r.tokens   = tokens.data();
        r.n_tokens = tokens.size();
        r.limit    = tokens.size();
        r.folded   = folded_size > 0;
        return s.lookup(r);
    }

    bool is_right(const loaded_state & state, const std::vector<token> & tokens) const {
        uint32_t at = 0;
        for (const loaded_run & r : state.runs) {
            const uint32_t p1 = std::min<uint32_t>(r.p1, static_cast<uint32_t>(state.n_tokens));
            if (r.p0 != at || r.data == nullptr || r.data->size() != (r.p1 - r.p0) * bytes_per_token) {
                return false;
            }
            const blob expected = rows(tokens, r.p0, p1, bytes_per_token);
            if (std::memcmp(expected->data(), r.data->data(), expected->size()) != 0) {
                return false;
            }
            at = r.p1;
        }
        if (at < state.n_tokens) {
            return false;
        }
        if (folded_size > 0) {
            const blob expected = folded(tokens, state.n_tokens, folded_size);
            return state.anchor != nullptr && state.anchor->size() == folded_size &&
                   std::memcmp(expected->data(), state.anchor->data(), folded_size) == 0;
        }
        return true;
    }

    // Restores as a server would: on a damaged file, it looks again. Returns the tokens restored; wrong bytes fail the test.
    size_t restore(store & s, const std::vector<token> & tokens) const {
        for (int attempt = 0; attempt < 100; attempt++) {
            const match m = lookup(s, tokens);
            if (m.n_tokens == 0) {
                return 0;
            }
            loaded_state state;
            if (!s.load(m, tokens.data(), tokens.size(), state).is_ok()) {
                continue;
            }
            CHECK(state.n_tokens == m.n_tokens);
            CHECK(is_right(state, tokens));
            s.touch(m);
            return state.n_tokens;
        }
        CHECK(!"a restore that never settles");
        return 0;
    }
};

inline std::unique_ptr<store> open(env & e, const store_options & options) {
    std::unique_ptr<store> out;
    const status s = store::open(e, options, out);
    if (!s.is_ok()) {
        std::printf("  open: %s\n", s.message().c_str());
    }
    CHECK(s.is_ok());
    return out;
}

// A disk of which a part fails for as long as a test wants: every such call fails whose path contains the text.
struct failing_env : fault_env {
    // A part of paths, none when it is empty. A test may set it while a thread of the store looks.
    class part_of_path {
    public:
        part_of_path & operator=(std::string part) {
            mutex_lock guard(mu);
            text = std::move(part);
            return *this;
        }
        bool is_in(const std::string & path) const {
            mutex_lock guard(mu);
            return !text.empty() && contains(path, text);
        }

    private:
        mutable mutex mu;
        std::string   text GUARDED_BY(mu);
    };
    part_of_path no_open, no_list, no_sync, no_remove, no_make;

    status open_file(const std::string & path, std::unique_ptr<readable_file> & out) override {
        return no_open.is_in(path) ? refused(path) : fault_env::open_file(path, out);
    }
    status list_dir(const std::string & path, std::vector<dir_entry> & out) override {
        out.clear();
        return no_list.is_in(path) ? refused(path) : fault_env::list_dir(path, out);
    }
    status sync_dir(const std::string & path) override {
        return no_sync.is_in(path) ? refused(path) : fault_env::sync_dir(path);
    }
    status remove_file(const std::string & path) override {
        return no_remove.is_in(path) ? refused(path) : fault_env::remove_file(path);
    }
    status make_dir(const std::string & path) override {
        return no_make.is_in(path) ? refused(path) : fault_env::make_dir(path);
    }

    // It is called once, in another thread, before the first rename to such a path. A test sets and reads both while nobody renames;
    // several may rename at once, and one of them takes it.
    std::string           renamed;
    std::function<void()> meanwhile;

    status rename(const std::string & from, const std::string & to) override {
        std::function<void()> now;
        {
            mutex_lock guard(taking);
            if (meanwhile && contains(to, renamed)) {
                now = std::exchange(meanwhile, nullptr);
            }
        }
        if (now) {
            std::thread(std::move(now)).join();
        }
        return fault_env::rename(from, to);
    }

private:
    mutex taking;

    static status refused(const std::string & path) { return status::io_error(path + ": Input/output error"); }
};

inline uint64_t counted(const counter_values & values, damage reason) {
    return values.damaged[static_cast<size_t>(reason)];
}

inline std::vector<std::string> files_with(const fault_env & disk, const std::string & text) {
    std::vector<std::string> out;
    for (const std::string & path : disk.files()) {
        if (contains(path, text)) {
            out.push_back(path);
        }
    }
    return out;
}

// Empty files (lock, tag after a cut) count as a block each; nothing else may differ.
inline bool counts_what_is_there(const store & s, const fault_env & disk) {
    const uint64_t counted = s.stats().disk_bytes;
    return counted >= disk.disk_bytes() && counted <= disk.disk_bytes() + 2 * disk_block;
}

} // namespace test
} // namespace kvtier

// For tests of sessions: those of an agent, and what a store and its disk have of them.
#pragma once

#include "kvtier/store_testing.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace kvtier::test {

inline lifetime_change ttl(int64_t ms) {
    lifetime_change out;
    out.ttl_ms = ms;
    return out;
}

inline lifetime_change expire(int64_t ms) {
    lifetime_change out;
    out.expire_ms = ms;
    return out;
}

inline uint64_t sweep(store & s) {
    uint64_t freed = 0;
    CHECK(s.remove_expired(s.expired(), freed).is_ok());
    return freed;
}

// An agent's sessions: one system prompt, and words of their own behind it.
struct agent {
    model              m;
    std::vector<token> system = random_tokens(7, 64);

    agent() { m.bytes_per_token = 64; }

    std::vector<token> session(uint64_t number, size_t n_own = 40) const {
        std::vector<token> tokens = system;
        append(tokens, 1000 + number, n_own);
        return tokens;
    }

    static uint64_t hash(uint64_t number) { return conversation_of_key("session " + std::to_string(number)); }

    status save(store & s, uint64_t number, const lifetime_change & change = {}, size_t n_own = 40) const {
        save_request request = m.request(s, session(number, n_own), 64);
        request.conversation = { hash(number), 64 + 8, "session " + std::to_string(number), change };
        return s.save(request);
    }

    // A request that goes on from what is stored of a session.
    size_t use(store & s, uint64_t number, size_t n_own = 40) const {
        const std::vector<token> tokens = session(number, n_own);
        lookup_request r;
        r.root         = m.root();
        r.tokens       = tokens.data();
        r.n_tokens     = tokens.size();
        r.limit        = tokens.size();
        r.conversation = hash(number);
        const match  found = s.lookup(r);
        loaded_state state;
        if (!s.load(found, tokens.data(), tokens.size(), state).is_ok()) {
            return 0;
        }
        s.touch(found);
        return state.n_tokens;
    }
};

inline std::set<uint64_t> listed(const store & s) {
    std::set<uint64_t> out;
    for (const conversation_info & c : s.list()) {
        out.insert(c.hash);
    }
    return out;
}

inline bool is_listed(const store & s, uint64_t number) {
    return listed(s).count(agent::hash(number)) != 0;
}

inline conversation_info info(const store & s, uint64_t number) {
    for (const conversation_info & c : s.list()) {
        if (c.hash == agent::hash(number)) {
            return c;
        }
    }
    CHECK(!"the session is listed");
    return {};
}

inline bool holds_tokens(fault_env & disk, const std::vector<token> & own) {
    std::string wanted(reinterpret_cast<const char *>(own.data()), own.size() * sizeof(token));
    const std::vector<std::string> files = disk.files();
    return std::any_of(files.begin(), files.end(), [&](const std::string & path) { return contains(disk.get(path), wanted); });
}

// Damages the files of pages that hold these tokens.
inline void damage_pages_of(fault_env & disk, const std::vector<token> & own) {
    const std::string wanted(reinterpret_cast<const char *>(own.data()), own.size() * sizeof(token));
    for (const std::string & path : files_with(disk, ".seg")) {
        if (contains(disk.get(path), wanted)) {
            disk.damage(path);
        }
    }
}

} // namespace kvtier::test

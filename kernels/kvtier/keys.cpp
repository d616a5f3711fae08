#include "kvtier/keys.h"

#include "kvtier/blake2b.h"
#include "kvtier/coding.h"

#include <algorithm>
#include <cstring>

namespace kvtier {

// Each kind of key starts its hash with a name of its own, so that no root can equal a page.
static constexpr char domain_root[] = "llama-run root 1";
static constexpr char domain_page[] = "llama-run page 1";
static constexpr char domain_conversation_key[]    = "llama-run conversation key 1";
static constexpr char domain_conversation_tokens[] = "llama-run conversation tokens 1";

// Feeds values to a hash as little-endian bytes, strings and lists behind their length.
class key_hasher {
public:
    explicit key_hasher(const char * domain) : hash(sizeof(key)) {
        hash.update(domain, std::strlen(domain));
    }

    void add(uint32_t value) {
        const uint8_t bytes[4] = {
            static_cast<uint8_t>(value),
            static_cast<uint8_t>(value >> 8),
            static_cast<uint8_t>(value >> 16),
            static_cast<uint8_t>(value >> 24),
        };
        hash.update(bytes, sizeof(bytes));
    }

    void add(float value) {
        uint32_t bits;
        static_assert(sizeof(bits) == sizeof(value), "IEEE 754 single precision");
        std::memcpy(&bits, &value, sizeof(bits));
        add(bits);
    }

    void add(const key & value) {
        hash.update(value.data(), value.size());
    }

    void add(const std::string & value) {
        add(static_cast<uint32_t>(value.size()));
        hash.update(value.data(), value.size());
    }

    void add(const token * tokens, size_t n_tokens) {
        add(static_cast<uint32_t>(n_tokens));
        for (size_t i = 0; i < n_tokens; i++) {
            add(static_cast<uint32_t>(tokens[i]));
        }
    }

    key finish() {
        key out;
        hash.finish(out.data());
        return out;
    }

private:
    blake2b hash;
};

static uint64_t first_bytes(const key & k) {
    return load_le<uint64_t>(k.data());
}

uint64_t conversation_of_key(const std::string & key) {
    key_hasher hasher(domain_conversation_key);
    hasher.add(key);
    return first_bytes(hasher.finish());
}

uint64_t conversation_through(const token * tokens, size_t n_tokens) {
    key_hasher hasher(domain_conversation_tokens);
    hasher.add(tokens, n_tokens);
    return first_bytes(hasher.finish());
}

uint64_t conversation_hash(const token * tokens, size_t n_tokens) {
    uint64_t hash = 0xcbf29ce484222325; // FNV-1a offset basis
    for (size_t i = 0; i < std::min(n_tokens, n_conversation_tokens); i++) {
        const uint32_t value = static_cast<uint32_t>(tokens[i]);
        for (int shift = 0; shift < 32; shift += 8) {
            hash ^= value >> shift & 0xff;
            hash *= 0x100000001b3; // FNV prime
        }
    }
    return hash;
}

key root_key(const chain_root & root) {
    key_hasher hasher(domain_root);
    hasher.add(root.fingerprint);
    hasher.add(root.page_size);
    hasher.add(root.user);
    hasher.add(static_cast<uint32_t>(root.adapters.size()));
    for (const adapter & a : root.adapters) {
        hasher.add(a.content);
        hasher.add(a.scale);
    }
    return hasher.finish();
}

key next_key(const key & previous, const token * tokens, size_t n_tokens) {
    key_hasher hasher(domain_page);
    hasher.add(previous);
    hasher.add(tokens, n_tokens);
    return hasher.finish();
}

std::vector<key> page_keys(const chain_root & root, const token * tokens, size_t n_tokens) {
    std::vector<key> keys;
    keys.reserve(n_tokens / root.page_size);
    key previous = root_key(root);
    for (size_t end = root.page_size; end <= n_tokens; end += root.page_size) {
        previous = next_key(previous, tokens + end - root.page_size, root.page_size);
        keys.push_back(previous);
    }
    return keys;
}

} // namespace kvtier

// Known answers: keys are file names, so a changed hash would silently orphan every user's store. The expected
// values were computed independently with Python's hashlib; tests/unit/test_kernels.py computes them again.
#include "kvtier/blake2b.h"
#include "kvtier/keys.h"
#include "kvtier/testing.h"

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

using namespace kvtier;

static std::string hex(const uint8_t * bytes, size_t size) {
    static const char digits[] = "0123456789abcdef";
    std::string out;
    for (size_t i = 0; i < size; i++) {
        out += digits[bytes[i] >> 4];
        out += digits[bytes[i] & 15];
    }
    return out;
}

static std::string hex(const key & k) {
    return hex(k.data(), k.size());
}

static std::string blake2b_hex(const std::string & text, size_t digest_size) {
    std::vector<uint8_t> digest(digest_size);
    blake2b hash(digest_size);
    hash.update(text.data(), text.size());
    hash.finish(digest.data());
    return hex(digest.data(), digest.size());
}

static std::vector<token> counting_tokens(size_t n) {
    std::vector<token> tokens(n);
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
}

static chain_root example_root() {
    key fingerprint;
    std::iota(fingerprint.begin(), fingerprint.end(), uint8_t(0));
    return { fingerprint, 4, "", {} };
}

TEST(blake2b_is_the_one_of_the_rfc) {
    CHECK(blake2b_hex("abc", 64) ==
          "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
          "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923");
    CHECK(blake2b_hex("", 16) == "cae66941d9efbd404e4d88758ea67670");
}

TEST(blake2b_does_not_depend_on_how_the_input_is_cut) {
    const std::string text(1000, 'x');
    for (size_t cut : { size_t(0), size_t(1), size_t(127), size_t(128), size_t(129), size_t(256), size_t(999) }) {
        blake2b hash(16);
        hash.update(text.data(), cut);
        hash.update(text.data() + cut, text.size() - cut);
        uint8_t digest[16];
        hash.finish(digest);
        CHECK(hex(digest, 16) == blake2b_hex(text, 16));
    }
}

TEST(a_conversation_hash_is_fnv1a) {
    const token one[] = { 1 };
    const token negative[] = { -1 };
    CHECK(conversation_hash(nullptr, 0) == 0xcbf29ce484222325u);
    CHECK(conversation_hash(one, 1) == 0xad2aca7747985764u);
    CHECK(conversation_hash(negative, 1) == 0x994f76653e2a3951u);
}

TEST(a_conversation_hash_looks_no_further_than_its_window) {
    std::vector<token> tokens = counting_tokens(n_conversation_tokens + 1);
    const uint64_t full = conversation_hash(tokens.data(), n_conversation_tokens);
    CHECK(full == 0xb132ca6ceb3d4c25u);
    CHECK(conversation_hash(tokens.data(), tokens.size()) == full);
    tokens[n_conversation_tokens - 1] = 7;
    CHECK(conversation_hash(tokens.data(), tokens.size()) != full);
}

TEST(keys_are_the_ones_on_disk) {
    const std::vector<token> tokens = counting_tokens(11);
    const chain_root root = example_root();
    CHECK(hex(root_key(root)) == "a7ba0d8e1b923af91c456db1d91872a8");

    const std::vector<key> keys = page_keys(root, tokens.data(), tokens.size());
    CHECK(keys.size() == 2);
    CHECK(hex(keys.at(0)) == "8ddc3e03138d4906454a5213e45d32e7");
    CHECK(hex(keys.at(1)) == "ae688e4a05a2e03ac901de2c43e00129");

    chain_root with_user = root;
    with_user.user = "alice";
    with_user.adapters   = { { root.fingerprint, 0.5f } };
    CHECK(hex(root_key(with_user)) == "f52616f12c2266f5c805f572ce5b8f94");
}

TEST(a_root_depends_on_each_of_its_parts) {
    const chain_root base = example_root();
    chain_root       other = base;
    other.page_size = 8;
    CHECK(root_key(other) != root_key(base));
    other = base;
    other.user = "a";
    CHECK(root_key(other) != root_key(base));
    other = base;
    other.fingerprint[15] ^= 1;
    CHECK(root_key(other) != root_key(base));
    other = base;
    other.adapters = { { base.fingerprint, 1.0f } };
    CHECK(root_key(other) != root_key(base));
}

TEST(a_page_key_depends_on_what_came_before) {
    const chain_root   root = example_root();
    std::vector<token> a = counting_tokens(8);
    std::vector<token> b = a;
    b[0] = 99;
    const std::vector<key> keys_a = page_keys(root, a.data(), a.size());
    const std::vector<key> keys_b = page_keys(root, b.data(), b.size());
    CHECK(keys_a.at(0) != keys_b.at(0));
    CHECK(keys_a.at(1) != keys_b.at(1)); // same tokens in page 1, another history
}

int main() {
    return run_tests();
}

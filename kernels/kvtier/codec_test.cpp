// Formats: the golden files are read and written again byte for byte, and no other bytes are believed.
#include "kvtier/checksum.h"
#include "kvtier/codec.h"
#include "kvtier/coding.h"
#include "kvtier/store_testing.h"

#include <fstream>
#include <functional>
#include <iterator>

using namespace kvtier;

#ifndef KVTIER_GOLDEN_DIR
#error "set by CMake"
#endif

namespace {

using bytes = std::vector<uint8_t>;

bytes golden(const std::string & name) {
    std::ifstream in(std::string(KVTIER_GOLDEN_DIR) + "/" + name, std::ios::binary);
    CHECK(in.good());
    return { std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>() };
}

struct coder {
    const char * file;
    std::function<status(const uint8_t *, size_t, uint64_t)> decode; // of the head, given the size of the file
    std::function<bytes(const bytes &)>                      again;  // decoded and encoded: the head
};

coder coder_of_checkpoint(const char * file) {
    return { file,
             [](const uint8_t * d, size_t n, uint64_t size) { checkpoint_record out; return decode_checkpoint(d, n, size, out); },
             [](const bytes & b) { checkpoint_record h; CHECK(decode_checkpoint(b.data(), b.size(), b.size(), h).is_ok()); return encode_checkpoint(h); } };
}

coder coder_of_index(const char * file) {
    return { file,
             [](const uint8_t * d, size_t n, uint64_t size) { index_record out; return decode_index(d, n, size, out); },
             [](const bytes & b) { index_record h; CHECK(decode_index(b.data(), b.size(), b.size(), h).is_ok()); return encode_index(h); } };
}

const std::vector<coder> & coders() {
    static const std::vector<coder> all = {
        { "format-1/000000000000002a.seg",
          [](const uint8_t * d, size_t n, uint64_t size) { segment_head out; return decode_segment(d, n, size, out); },
          [](const bytes & b) { segment_head h; CHECK(decode_segment(b.data(), b.size(), b.size(), h).is_ok()); return encode_segment(h); } },
        { "format-1/anchor.anc",
          [](const uint8_t * d, size_t n, uint64_t size) { anchor_head out; return decode_anchor(d, n, size, out); },
          [](const bytes & b) { anchor_head h; CHECK(decode_anchor(b.data(), b.size(), b.size(), h).is_ok()); return encode_anchor(h); } },
        coder_of_checkpoint("format-1/ckpt-3.bin"),
        coder_of_checkpoint("format-2/ckpt-3.bin"),
        coder_of_index("format-1/index.bin"),
        coder_of_index("format-2/index.bin"),
    };
    return all;
}

// Makes the head's checksum right again, as somebody who crafts a file would.
void reseal(bytes & b) {
    const size_t head = std::min<size_t>(load_le<uint32_t>(b.data() + format::header_head_size), b.size());
    if (head >= format::header_size) {
        store_le(b.data() + format::header_head_checksum, head_checksum(b.data(), head));
    }
}

} // namespace

TEST(golden_files_are_written_again_byte_for_byte) {
    for (const coder & c : coders()) {
        const bytes file = golden(c.file);
        bytes       head = c.again(file);
        CHECK(head.size() <= file.size());
        CHECK(std::equal(head.begin(), head.end(), file.begin()));
    }
}

TEST(golden_files_mean_what_they_meant) {
    const bytes  file = golden("format-1/000000000000002a.seg");
    segment_head s;
    CHECK(decode_segment(file.data(), file.size(), file.size(), s).is_ok());
    CHECK(s.id == 0x2a && s.runs.size() == 3 && s.tokens.size() == 10 && s.tokens[1] == 15043);
    const chain_root root = { s.header.fingerprint, 4, "", {} };
    CHECK(s.header.root == root_key(root) && s.runs[0].parent == root_key(root));
    const std::vector<key> keys = page_keys(root, s.tokens.data(), s.tokens.size());
    CHECK(s.runs[0].k == keys[0] && s.runs[1].k == keys[1] && s.runs[1].parent == keys[0]);
    CHECK(s.runs[2].k == next_key(keys[1], s.tokens.data() + 8, 2));
    for (const run_entry & r : s.runs) {
        CHECK(checksum64(file.data() + r.payload_offset, r.payload_size) == r.checksum);
    }
    CHECK(s.header.written_by == "0.1.0" && s.header.backend == "cpu" && s.header.flags == format::flag_static_prefix);

    const bytes a_file = golden("format-1/anchor.anc");
    anchor_head a;
    CHECK(decode_anchor(a_file.data(), a_file.size(), a_file.size(), a).is_ok());
    CHECK(a.k == s.runs[2].k && a.base == keys[1] && a.n_tokens == 10);
    CHECK(a.tokens_checksum == tokens_checksum(s.tokens.data(), 10));
    CHECK(checksum64(a_file.data() + a.payload_offset, a.payload_size) == a.checksum);

    const bytes       c_file = golden("format-1/ckpt-3.bin");
    checkpoint_record c;
    CHECK(decode_checkpoint(c_file.data(), c_file.size(), c_file.size(), c).is_ok());
    CHECK(c.conversation == conversation_hash(s.tokens.data(), 10) && c.number == 3 && c.turn == 7);
    CHECK(c.runs.size() == 3 && c.anchors.size() == 1 && c.roles.size() == 2 && c.roles[1].position == 5);

    const bytes  i_file = golden("format-1/index.bin");
    index_record i;
    CHECK(decode_index(i_file.data(), i_file.size(), i_file.size(), i).is_ok());
    CHECK(i.hits == 4 && i.entries.size() == 1 && i.entries[0].number == 3 && i.entries[0].last_turn == 9);
    CHECK(c.n_naming == 0 && c.title.empty() && i.life == lifetime());
}

TEST(golden_files_of_format_2_say_what_format_1_cannot) {
    const bytes       c_file = golden("format-2/ckpt-3.bin");
    checkpoint_record c;
    CHECK(decode_checkpoint(c_file.data(), c_file.size(), c_file.size(), c).is_ok());
    CHECK(c.n_naming == 6 && c.title == "Gr\xc3\xbc\xc3\x9f" "e" && c.runs.size() == 3 && c.roles.size() == 2);

    const bytes  i_file = golden("format-2/index.bin");
    index_record i;
    CHECK(decode_index(i_file.data(), i_file.size(), i_file.size(), i).is_ok());
    CHECK(i.life.ttl_ms == 3600000 && i.life.expire_ms == 604800000 && i.entries.size() == 1);
}

TEST(pages_and_anchors_have_no_format_2) {
    for (const char * file : { "format-1/000000000000002a.seg", "format-1/anchor.anc" }) {
        bytes b = golden(file);
        store_le(b.data() + format::header_version, format::version_extended);
        reseal(b);
        const uint16_t kind = load_le<uint16_t>(b.data() + format::header_kind);
        size_t         head = 0;
        CHECK(decode_head_size(b.data(), b.size(), kind, b.size(), head).is_incompatible());
    }
}

TEST(a_changed_head_is_not_believed) {
    for (const coder & c : coders()) {
        const bytes  file = golden(c.file);
        const size_t head = load_le<uint32_t>(file.data() + format::header_head_size);
        for (size_t i = 0; i < head; i++) {
            for (int bit = 0; bit < 8; bit++) {
                bytes changed = file;
                changed[i] = static_cast<uint8_t>(changed[i] ^ 1 << bit);
                CHECK(c.decode(changed.data(), changed.size(), changed.size()).is_damaged());
            }
        }
        for (size_t n = 0; n < file.size(); n++) {
            const bytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(n));
            CHECK(c.decode(cut.data(), cut.size(), cut.size()).is_corrupt());
            CHECK(n >= head || c.decode(cut.data(), cut.size(), file.size()).is_corrupt());
        }
    }
}

TEST(a_crafted_head_with_a_sound_checksum_is_read_within_bounds) {
    // Every 32-bit word of every head is replaced by values that provoke overflow, and sealed again. Whatever decodes
    // must be coherent: the sanitizers watch the rest.
    for (const coder & c : coders()) {
        const bytes  file = golden(c.file);
        const size_t head = load_le<uint32_t>(file.data() + format::header_head_size);
        for (size_t i = 0; i + 4 <= head; i += 4) {
            for (uint32_t value : { 0u, 1u, 0x7fffffffu, 0x80000000u, 0xffffffffu, 0x10000u, static_cast<uint32_t>(head) }) {
                bytes changed = file;
                store_le(changed.data() + i, value);
                reseal(changed);
                const status s = c.decode(changed.data(), changed.size(), changed.size());
                CHECK(s.is_ok() || s.is_damaged());
            }
        }
    }
}

TEST(text_that_is_too_long_is_cut) {
    index_record r;
    r.header.page_size = 1;
    r.header.written_by = std::string(100, 'w');
    r.header.backend   = std::string(100, 'b');
    const bytes  out = encode_index(r);
    index_record back;
    CHECK(decode_index(out.data(), out.size(), out.size(), back).is_ok());
    CHECK(back.header.written_by == std::string(16, 'w') && back.header.backend == std::string(32, 'b'));
}

int main() {
    return run_tests();
}

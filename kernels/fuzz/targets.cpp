#include "fuzz/targets.h"

#include "kvtier/checksum.h"
#include "kvtier/codec.h"
#include "kvtier/coding.h"
#include "kvtier/file_names.h"
#include "kvtier/store_testing.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace kvtier {

using namespace format;

// A fuzzer does not find a 64-bit checksum by chance: sizes and checksum are made right, so that the input reaches the
// code behind them. One input byte decides, so that the checks themselves are fuzzed too.
static std::vector<uint8_t> sealed(const uint8_t * data, size_t size, uint16_t kind) {
    if (size == 0) {
        return {};
    }
    std::vector<uint8_t> out(data + 1, data + size);
    if (data[0] % 8 == 0 || out.size() < header_size) {
        return out;
    }
    std::copy(std::begin(magic), std::end(magic), out.begin());
    if (load_le<uint16_t>(out.data() + header_version) != version_extended) {
        store_le(out.data() + header_version, version);
    }
    store_le(out.data() + header_kind, kind);
    store_le(out.data() + header_file_size, static_cast<uint64_t>(out.size()));
    size_t head = load_le<uint32_t>(out.data() + header_head_size);
    if (head < header_size || head > out.size()) {
        head = out.size();
        store_le(out.data() + header_head_size, static_cast<uint32_t>(head));
    }
    store_le(out.data() + header_head_checksum, head_checksum(out.data(), head));
    return out;
}

// What decodes must encode to the same bytes where the format has no slack, and decode again.
template <typename record, typename decoder, typename encoder>
static void round_trip(const uint8_t * data, size_t size, uint16_t kind, decoder decode, encoder encode) {
    const std::vector<uint8_t> bytes = sealed(data, size, kind);
    record first;
    if (!decode(bytes.data(), bytes.size(), bytes.size(), first).is_ok()) {
        return;
    }
    const std::vector<uint8_t> again = encode(first);
    record second;
    if (again.size() > bytes.size() || !decode(again.data(), again.size(), bytes.size(), second).is_ok()) {
        std::abort();
    }
}

static void fuzz_segment(const uint8_t * data, size_t size) {
    round_trip<segment_head>(data, size, kind_segment, decode_segment, encode_segment);
}

static void fuzz_anchor(const uint8_t * data, size_t size) {
    round_trip<anchor_head>(data, size, kind_anchor, decode_anchor, encode_anchor);
}

static void fuzz_checkpoint(const uint8_t * data, size_t size) {
    round_trip<checkpoint_record>(data, size, kind_checkpoint, decode_checkpoint, encode_checkpoint);
}

static void fuzz_index(const uint8_t * data, size_t size) {
    round_trip<index_record>(data, size, kind_index, decode_index, encode_index);
}

static void fuzz_handover(const uint8_t * data, size_t size) {
    round_trip<handover_head>(data, size, kind_handover, decode_handover, encode_handover);
}

static void fuzz_names(const uint8_t * data, size_t size) {
    const std::string name(reinterpret_cast<const char *>(data), size);
    uint64_t id;
    uint32_t number;
    key      k;
    // A name that is understood is the one we would have given.
    if ((names::parse_segment(name, id) && names::segment(id) != name) ||
        (names::parse_anchor(name, k) && names::anchor(k) != name) ||
        (names::parse_checkpoint(name, number) && names::checkpoint(number) != name)) {
        std::abort();
    }
}

// A whole store whose files are replaced by the input, a piece each: opening, searching, loading, verifying.
static void fuzz_store(const uint8_t * data, size_t size) {
    static const test::model m = [] {
        test::model out;
        out.page_size       = 8;
        out.bytes_per_token = 4;
        out.folded_size     = 24;
        return out;
    }();
    static const std::vector<token> tokens = test::random_tokens(1, 20);
    static const fault_env *        base   = [] {
        auto *                 disk = new fault_env;
        std::unique_ptr<store> s;
        if (!store::open(*disk, m.options(), s).is_ok() || !m.save(*s, tokens, 5, true, { 5 }).is_ok()) {
            std::abort();
        }
        return disk;
    }();
    if (size < 2) {
        return;
    }
    auto                           disk  = base->clone();
    const std::vector<std::string> paths = disk->files();
    const std::string &            path  = paths[data[0] % paths.size()];
    const uint16_t kind = path.find(".seg") != std::string::npos   ? kind_segment
                        : path.find(".anc") != std::string::npos   ? kind_anchor
                        : path.find("ckpt-") != std::string::npos  ? kind_checkpoint : kind_index;
    // The input is laid over the sound file: bytes that are not given stay.
    std::string bytes = disk->get(path);
    std::vector<uint8_t> mixed(1 + std::max(bytes.size(), size - 2));
    mixed[0] = data[1];
    std::copy(bytes.begin(), bytes.end(), mixed.begin() + 1);
    for (size_t i = 2; i + 1 < size; i += 2) { // pairs: where (mod 256 from the last place), what
        static_assert(sizeof(size_t) >= 4, "");
        const size_t at = 1 + (static_cast<size_t>(data[i]) * 3 + i) % (mixed.size() - 1);
        mixed[at] = data[i + 1];
    }
    const std::vector<uint8_t> file = sealed(mixed.data(), mixed.size(), kind);
    disk->put(path, std::string(file.begin(), file.end()));

    std::unique_ptr<store> s;
    if (!store::open(*disk, m.options(), s).is_ok()) {
        return;
    }
    for (int i = 0; i < 4; i++) {
        const match  found = m.lookup(*s, tokens);
        loaded_state state;
        (void) s->load(found, tokens.data(), tokens.size(), state).is_ok();
    }
    verify_report report;
    (void) s->verify(report).is_ok();
    uint64_t freed = 0;
    (void) s->gc(freed).is_ok();
    s->list();
    (void) m.save(*s, tokens).is_ok();
}

const std::vector<fuzz_target> & fuzz_targets() {
    static const std::vector<fuzz_target> all = {
        { "segment", fuzz_segment },       { "anchor", fuzz_anchor }, { "checkpoint", fuzz_checkpoint },
        { "index", fuzz_index },           { "names", fuzz_names },   { "store", fuzz_store },
        { "handover", fuzz_handover },
    };
    return all;
}

} // namespace kvtier

#include "kvtier/codec.h"

#include "kvtier/checksum.h"
#include "kvtier/coding.h"

#include <algorithm>
#include <cstring>

namespace kvtier {

using namespace format;

uint64_t head_checksum(const uint8_t * head, size_t size) {
    constexpr size_t after = header_head_checksum + 8;
    checksum_stream  sum;
    sum.update(head, header_head_checksum);
    sum.update(head + after, size - after);
    return sum.finish();
}

namespace {

// Writes at fixed offsets into a head whose size is known beforehand.
class head_writer {
public:
    explicit head_writer(size_t size) : bytes(size) {}

    template <typename T>
    void put(size_t at, T value) { store_le(bytes.data() + at, value); }

    void put(size_t at, const key & value) { std::copy(value.begin(), value.end(), bytes.data() + at); }

    // Text is cut to the field and padded with zeros.
    void put(size_t at, const std::string & text, size_t field) {
        std::memcpy(bytes.data() + at, text.data(), std::min(text.size(), field));
    }

    void put(size_t at, const std::vector<token> & tokens) {
        for (size_t i = 0; i < tokens.size(); i++) {
            store_le(bytes.data() + at + 4 * i, static_cast<uint32_t>(tokens[i]));
        }
    }

    // Fills in the header, the checksum last.
    std::vector<uint8_t> finish(const file_header & header, uint16_t kind, uint64_t file_size, uint16_t of_version = version) {
        std::copy(std::begin(magic), std::end(magic), bytes.begin());
        put(header_version, of_version);
        put(header_kind, kind);
        put(header_head_size, static_cast<uint32_t>(bytes.size()));
        put(header_file_size, file_size);
        put(header_fingerprint, header.fingerprint);
        put(header_name_space, header.name_space);
        put(header_root, header.root);
        put(header_created_ms, header.created_ms);
        put(header_page_size, header.page_size);
        put(header_flags, header.flags);
        put(header_written_by, header.written_by, header_backend - header_written_by);
        put(header_backend, header.backend, header_size - header_backend);
        put(header_head_checksum, head_checksum(bytes.data(), bytes.size()));
        return std::move(bytes);
    }

private:
    std::vector<uint8_t> bytes;
};

key get_key(const uint8_t * at) {
    key out;
    std::copy(at, at + out.size(), out.begin());
    return out;
}

std::string get_text(const uint8_t * at, size_t field) {
    return { reinterpret_cast<const char *>(at), static_cast<size_t>(std::find(at, at + field, uint8_t(0)) - at) };
}

std::vector<token> get_tokens(const uint8_t * at, size_t n) {
    std::vector<token> out(n);
    if (host_is_little_endian && n > 0) {
        std::memcpy(out.data(), at, 4 * n);
        return out;
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = static_cast<token>(load_le<uint32_t>(at + 4 * i));
    }
    return out;
}

chain_point get_point(const uint8_t * at) {
    return { get_key(at + point_key), load_le<uint32_t>(at + point_n) };
}

status bad_length(const char * what) {
    return status::corrupt(damage::bad_length, std::string("contradicts itself: ") + what);
}

// Checks everything that all kinds have in common, and with the checksum the head as a whole.
status decode_header(const uint8_t * data, size_t size, uint16_t kind, size_t fixed_size, uint64_t file_size,
                     size_t & head_size, file_header & out) {
    if (status s = decode_head_size(data, size, kind, file_size, head_size); !s.is_ok()) {
        return s;
    }
    if (head_size < fixed_size) {
        return bad_length("head size");
    }
    if (head_size > size) {
        return status::corrupt(damage::truncated, "head is cut");
    }
    if (head_checksum(data, head_size) != load_le<uint64_t>(data + header_head_checksum)) {
        return status::corrupt(damage::bad_checksum, "head does not match its checksum");
    }
    out.fingerprint = get_key(data + header_fingerprint);
    out.name_space  = get_key(data + header_name_space);
    out.root        = get_key(data + header_root);
    out.created_ms  = load_le<int64_t>(data + header_created_ms);
    out.page_size   = load_le<uint32_t>(data + header_page_size);
    out.flags       = load_le<uint32_t>(data + header_flags);
    out.written_by  = get_text(data + header_written_by, header_backend - header_written_by);
    out.backend     = get_text(data + header_backend, header_size - header_backend);
    if (out.page_size == 0 || out.page_size > max_page_size) {
        return bad_length("page size");
    }
    return status::ok();
}

// Points of a checkpoint go forward and end within its tokens.
bool points_ascend(const std::vector<chain_point> & points, uint32_t n_tokens) {
    uint32_t last = 0;
    for (const chain_point & point : points) {
        if (point.n <= last || point.n > n_tokens) {
            return false;
        }
        last = point.n;
    }
    return true;
}

} // namespace

status decode_head_size(const uint8_t * data, size_t size, uint16_t kind, uint64_t file_size, size_t & out) {
    if (size < header_size || file_size < header_size) {
        return status::corrupt(damage::truncated, "shorter than a header");
    }
    if (!std::equal(std::begin(magic), std::end(magic), data)) {
        return status::corrupt(damage::bad_magic, "not a file of this store");
    }
    const bool     may_extend = kind == kind_checkpoint || kind == kind_index;
    const uint16_t found      = load_le<uint16_t>(data + header_version);
    if (found != version && !(found == version_extended && may_extend)) {
        return status::incompatible("format " + std::to_string(found) + ", this program reads " +
                                    std::to_string(may_extend ? version_extended : version));
    }
    if (load_le<uint16_t>(data + header_kind) != kind) {
        return status::corrupt(damage::misplaced, "another kind of file");
    }
    if (file_size > max_file_size || load_le<uint64_t>(data + header_file_size) != file_size) {
        return status::corrupt(damage::truncated, "has " + std::to_string(file_size) + " bytes, says " +
                                                  std::to_string(load_le<uint64_t>(data + header_file_size)));
    }
    const uint32_t head_size = load_le<uint32_t>(data + header_head_size);
    if (head_size < header_size || head_size > max_head_size || head_size > file_size) {
        return bad_length("head size");
    }
    out = head_size;
    return status::ok();
}

uint64_t tokens_checksum(const token * tokens, size_t n_tokens) {
    if (host_is_little_endian) {
        return checksum64(tokens, n_tokens * sizeof(token));
    }
    std::vector<uint8_t> bytes(4 * n_tokens);
    for (size_t i = 0; i < n_tokens; i++) {
        store_le(bytes.data() + 4 * i, static_cast<uint32_t>(tokens[i]));
    }
    return checksum64(bytes.data(), bytes.size());
}

std::vector<uint8_t> encode_segment(segment_head & head) {
    const size_t tokens_at = segment_runs + run_size * head.runs.size();
    const size_t head_size = tokens_at + 4 * head.tokens.size();
    head_writer  out(head_size);
    out.put(segment_id, head.id);
    out.put(segment_n_runs, static_cast<uint32_t>(head.runs.size()));
    out.put(segment_n_tokens, static_cast<uint32_t>(head.tokens.size()));

    uint64_t payload_at = head_size;
    for (size_t i = 0; i < head.runs.size(); i++) {
        run_entry &  run = head.runs[i];
        const size_t at  = segment_runs + run_size * i;
        run.payload_offset = payload_at;
        payload_at += run.payload_size;
        out.put(at + run_key, run.k);
        out.put(at + run_parent, run.parent);
        out.put(at + run_p0, run.p0);
        out.put(at + run_p1, run.p1);
        out.put(at + run_payload_offset, run.payload_offset);
        out.put(at + run_payload_size, run.payload_size);
        out.put(at + run_checksum, run.checksum);
    }
    out.put(tokens_at, head.tokens);
    head.file_size = payload_at;
    return out.finish(head.header, kind_segment, payload_at);
}

status decode_segment(const uint8_t * data, size_t size, uint64_t file_size, segment_head & out) {
    segment_head head;
    size_t       head_size = 0;
    if (status s = decode_header(data, size, kind_segment, segment_runs, file_size, head_size, head.header); !s.is_ok()) {
        return s;
    }
    head.id        = load_le<uint64_t>(data + segment_id);
    head.file_size = file_size;
    const uint32_t n_runs   = load_le<uint32_t>(data + segment_n_runs);
    const uint32_t n_tokens = load_le<uint32_t>(data + segment_n_tokens);
    if (n_runs == 0 || n_runs > max_runs || n_tokens > max_tokens ||
        uint64_t(segment_runs) + uint64_t(run_size) * n_runs + 4 * uint64_t(n_tokens) != head_size) {
        return bad_length("number of runs or tokens");
    }
    head.runs.resize(n_runs);
    uint64_t payload_at  = head_size;
    uint64_t tokens_seen = 0;
    for (size_t i = 0; i < n_runs; i++) {
        const uint8_t * at  = data + segment_runs + run_size * i;
        run_entry &     run = head.runs[i];
        run.k              = get_key(at + run_key);
        run.parent         = get_key(at + run_parent);
        run.p0             = load_le<uint32_t>(at + run_p0);
        run.p1             = load_le<uint32_t>(at + run_p1);
        run.payload_offset = load_le<uint64_t>(at + run_payload_offset);
        run.payload_size   = load_le<uint64_t>(at + run_payload_size);
        run.checksum       = load_le<uint64_t>(at + run_checksum);
        if (run.p0 >= run.p1 || run.p1 > max_tokens ||
            run.p0 / head.header.page_size != (run.p1 - 1) / head.header.page_size) {
            return bad_length("positions of a run");
        }
        if (run.payload_offset != payload_at || run.payload_size > file_size - payload_at) {
            return bad_length("payload of a run");
        }
        payload_at  += run.payload_size;
        tokens_seen += run.p1 - run.p0;
    }
    if (tokens_seen != n_tokens || payload_at != file_size) {
        return bad_length("sum of the runs");
    }
    head.tokens = get_tokens(data + segment_runs + run_size * n_runs, n_tokens);
    out = std::move(head);
    return status::ok();
}

std::vector<uint8_t> encode_anchor(anchor_head & head) {
    head_writer out(anchor_tail + 4 * head.tail.size());
    head.payload_offset = anchor_tail + 4 * head.tail.size();
    out.put(anchor_key, head.k);
    out.put(anchor_base, head.base);
    out.put(anchor_n_tokens, head.n_tokens);
    out.put(anchor_n_tail, static_cast<uint32_t>(head.tail.size()));
    out.put(anchor_tokens_checksum, head.tokens_checksum);
    out.put(anchor_payload_size, head.payload_size);
    out.put(anchor_checksum, head.checksum);
    out.put(anchor_tail, head.tail);
    return out.finish(head.header, kind_anchor, head.payload_offset + head.payload_size);
}

status decode_anchor(const uint8_t * data, size_t size, uint64_t file_size, anchor_head & out) {
    anchor_head head;
    size_t      head_size = 0;
    if (status s = decode_header(data, size, kind_anchor, anchor_tail, file_size, head_size, head.header); !s.is_ok()) {
        return s;
    }
    head.k               = get_key(data + anchor_key);
    head.base            = get_key(data + anchor_base);
    head.n_tokens        = load_le<uint32_t>(data + anchor_n_tokens);
    head.tokens_checksum = load_le<uint64_t>(data + anchor_tokens_checksum);
    head.payload_size    = load_le<uint64_t>(data + anchor_payload_size);
    head.checksum        = load_le<uint64_t>(data + anchor_checksum);
    head.payload_offset  = head_size;
    const uint32_t n_tail = load_le<uint32_t>(data + anchor_n_tail);
    if (head.n_tokens == 0 || head.n_tokens > max_tokens || n_tail != head.n_tokens % head.header.page_size ||
        anchor_tail + 4 * uint64_t(n_tail) != head_size || head.payload_size != file_size - head_size) {
        return bad_length("length of an anchor");
    }
    head.tail = get_tokens(data + anchor_tail, n_tail);
    out = std::move(head);
    return status::ok();
}

std::vector<uint8_t> encode_checkpoint(const checkpoint_record & record) {
    const size_t anchors_at = checkpoint_tables + point_size * record.runs.size();
    const size_t roles_at   = anchors_at + point_size * record.anchors.size();
    const size_t more_at    = roles_at + role_size * record.roles.size();
    const bool   extended   = record.n_naming != 0 || !record.title.empty();
    const size_t head_size  = more_at + (extended ? extended_title + record.title.size() : 0);
    head_writer  out(head_size);
    out.put(checkpoint_conversation, record.conversation);
    out.put(checkpoint_turn, record.turn);
    out.put(checkpoint_number, record.number);
    out.put(checkpoint_n_tokens, record.n_tokens);
    out.put(checkpoint_n_static, record.n_static);
    out.put(checkpoint_n_runs, static_cast<uint32_t>(record.runs.size()));
    out.put(checkpoint_n_anchors, static_cast<uint32_t>(record.anchors.size()));
    out.put(checkpoint_n_roles, static_cast<uint32_t>(record.roles.size()));
    for (size_t i = 0; i < record.runs.size(); i++) {
        out.put(checkpoint_tables + point_size * i + point_key, record.runs[i].k);
        out.put(checkpoint_tables + point_size * i + point_n, record.runs[i].n);
    }
    for (size_t i = 0; i < record.anchors.size(); i++) {
        out.put(anchors_at + point_size * i + point_key, record.anchors[i].k);
        out.put(anchors_at + point_size * i + point_n, record.anchors[i].n);
    }
    for (size_t i = 0; i < record.roles.size(); i++) {
        out.put(roles_at + role_size * i + role_position, record.roles[i].position);
        out.put(roles_at + role_size * i + role_kind, record.roles[i].role);
    }
    if (extended) {
        out.put(more_at + extended_n_naming, record.n_naming);
        out.put(more_at + extended_title_size, static_cast<uint32_t>(record.title.size()));
        out.put(more_at + extended_title, record.title, record.title.size());
    }
    return out.finish(record.header, kind_checkpoint, head_size, extended ? version_extended : version);
}

static bool is_extended(const uint8_t * data) {
    return load_le<uint16_t>(data + header_version) == version_extended;
}

// What follows the tables of a checkpoint, which end at more_at, must fill the rest of its head.
static bool decode_extension(const uint8_t * data, size_t head_size, uint64_t more_at, checkpoint_record & out) {
    if (!is_extended(data)) {
        return more_at == head_size;
    }
    if (head_size - more_at < extended_title) {
        return false;
    }
    const uint8_t * at         = data + more_at;
    const uint32_t  title_size = load_le<uint32_t>(at + extended_title_size);
    if (title_size > max_title || title_size != head_size - more_at - extended_title) {
        return false;
    }
    out.n_naming = load_le<uint32_t>(at + extended_n_naming);
    out.title.assign(reinterpret_cast<const char *>(at + extended_title), title_size);
    return out.n_naming != 0 || title_size != 0; // one that adds nothing is written in format 1
}

void checkpoint_record::cut_to(uint32_t n) {
    const auto is_beyond = [n](const chain_point & point) { return point.n > n; };
    runs.erase(std::remove_if(runs.begin(), runs.end(), is_beyond), runs.end());
    anchors.erase(std::remove_if(anchors.begin(), anchors.end(), is_beyond), anchors.end());
    roles.erase(std::remove_if(roles.begin(), roles.end(), [n](const role_mark & m) { return m.position >= n; }), roles.end());
    n_tokens = n;
    n_naming = std::min(n_naming, n);
}

status decode_checkpoint(const uint8_t * data, size_t size, uint64_t file_size, checkpoint_record & out) {
    checkpoint_record record;
    size_t            head_size = 0;
    if (status s = decode_header(data, size, kind_checkpoint, checkpoint_tables, file_size, head_size, record.header);
        !s.is_ok()) {
        return s;
    }
    record.conversation = load_le<uint64_t>(data + checkpoint_conversation);
    record.turn         = load_le<uint64_t>(data + checkpoint_turn);
    record.number       = load_le<uint32_t>(data + checkpoint_number);
    record.n_tokens     = load_le<uint32_t>(data + checkpoint_n_tokens);
    record.n_static     = load_le<uint32_t>(data + checkpoint_n_static);
    const uint32_t n_runs    = load_le<uint32_t>(data + checkpoint_n_runs);
    const uint32_t n_anchors = load_le<uint32_t>(data + checkpoint_n_anchors);
    const uint32_t n_roles   = load_le<uint32_t>(data + checkpoint_n_roles);
    const uint64_t more_at   = checkpoint_tables + uint64_t(point_size) * n_runs + uint64_t(point_size) * n_anchors +
                               uint64_t(role_size) * n_roles;
    if (n_runs > max_runs || n_anchors > max_anchors || n_roles > max_roles || head_size != file_size || more_at > head_size ||
        !decode_extension(data, head_size, more_at, record)) {
        return bad_length("tables of a checkpoint");
    }
    const uint8_t * at = data + checkpoint_tables;
    record.runs.resize(n_runs);
    for (chain_point & point : record.runs) {
        point = get_point(at);
        at += point_size;
    }
    record.anchors.resize(n_anchors);
    for (chain_point & point : record.anchors) {
        point = get_point(at);
        at += point_size;
    }
    record.roles.resize(n_roles);
    for (role_mark & mark : record.roles) {
        mark = { load_le<uint32_t>(at + role_position), load_le<uint32_t>(at + role_kind) };
        at += role_size;
    }
    if (record.n_tokens == 0 || record.n_tokens > max_tokens || record.runs.empty() ||
        record.runs.back().n != record.n_tokens || !points_ascend(record.runs, record.n_tokens) ||
        !points_ascend(record.anchors, record.n_tokens) || record.n_static > record.n_tokens ||
        record.n_naming > record.n_tokens) {
        return bad_length("positions of a checkpoint");
    }
    out = std::move(record);
    return status::ok();
}

std::vector<uint8_t> encode_index(const index_record & record) {
    const size_t more_at   = index_entries + use_size * record.entries.size();
    const bool   extended  = !(record.life == lifetime());
    const size_t head_size = more_at + (extended ? kept_size : 0);
    head_writer  out(head_size);
    out.put(index_conversation, record.conversation);
    out.put(index_last_turn, record.last_turn);
    out.put(index_last_used_ms, record.last_used_ms);
    out.put(index_hits, record.hits);
    out.put(index_n_entries, static_cast<uint32_t>(record.entries.size()));
    for (size_t i = 0; i < record.entries.size(); i++) {
        const size_t at = index_entries + use_size * i;
        out.put(at + use_number, record.entries[i].number);
        out.put(at + use_last_turn, record.entries[i].last_turn);
        out.put(at + use_last_used_ms, record.entries[i].last_used_ms);
        out.put(at + use_hits, record.entries[i].hits);
    }
    if (extended) {
        out.put(more_at + kept_ttl_ms, record.life.ttl_ms);
        out.put(more_at + kept_expire_ms, record.life.expire_ms);
    }
    return out.finish(record.header, kind_index, head_size, extended ? version_extended : version);
}

status decode_index(const uint8_t * data, size_t size, uint64_t file_size, index_record & out) {
    index_record record;
    size_t       head_size = 0;
    if (status s = decode_header(data, size, kind_index, index_entries, file_size, head_size, record.header); !s.is_ok()) {
        return s;
    }
    record.conversation = load_le<uint64_t>(data + index_conversation);
    record.last_turn    = load_le<uint64_t>(data + index_last_turn);
    record.last_used_ms = load_le<int64_t>(data + index_last_used_ms);
    record.hits         = load_le<uint64_t>(data + index_hits);
    const uint32_t n = load_le<uint32_t>(data + index_n_entries);
    const uint64_t more_at = index_entries + uint64_t(use_size) * n;
    if (head_size != file_size || more_at + (is_extended(data) ? kept_size : 0) != head_size) {
        return bad_length("entries of an index");
    }
    if (is_extended(data)) {
        record.life = { load_le<int64_t>(data + more_at + kept_ttl_ms), load_le<int64_t>(data + more_at + kept_expire_ms) };
        if (record.life.ttl_ms < 0 || record.life.expire_ms < 0 || record.life == lifetime()) {
            return bad_length("lifetime of a conversation");
        }
    }
    record.entries.resize(n);
    for (size_t i = 0; i < n; i++) {
        const uint8_t * at = data + index_entries + use_size * i;
        record.entries[i] = { load_le<uint32_t>(at + use_number), load_le<uint64_t>(at + use_last_turn),
                              load_le<int64_t>(at + use_last_used_ms), load_le<uint64_t>(at + use_hits) };
    }
    out = std::move(record);
    return status::ok();
}

std::vector<uint8_t> encode_handover(const handover_head & head) {
    const size_t tokens_at = handover_parts + part_size * head.parts.size();
    const size_t facts_at  = tokens_at + 4 * head.tokens.size();
    const size_t head_size = facts_at + head.facts.size();
    head_writer  out(head_size);
    out.put(handover_conversation, head.conversation);
    out.put(handover_n_tokens, static_cast<uint32_t>(head.tokens.size()));
    out.put(handover_n_parts, static_cast<uint32_t>(head.parts.size()));
    out.put(handover_facts_size, static_cast<uint32_t>(head.facts.size()));
    uint64_t file_size = head_size;
    for (size_t i = 0; i < head.parts.size(); i++) {
        const size_t at = handover_parts + part_size * i;
        out.put(at + part_kind, head.parts[i].kind);
        out.put(at + part_n, head.parts[i].n);
        out.put(at + part_bytes, head.parts[i].bytes);
        file_size += head.parts[i].bytes;
    }
    out.put(tokens_at, head.tokens);
    out.put(facts_at, head.facts, head.facts.size());
    return out.finish(head.header, kind_handover, file_size);
}

// The checkpoint comes first, then segments, then anchors; the last segment reaches to the end.
static bool parts_are_in_order(const handover_head & head) {
    if (head.parts.empty() || head.parts.front().kind != kind_checkpoint) {
        return false;
    }
    uint32_t last_kind = kind_checkpoint;
    uint32_t last_n    = 0;
    for (size_t i = 1; i < head.parts.size(); i++) {
        const handover_part & part = head.parts[i];
        const bool is_next_kind = part.kind != last_kind;
        const bool may_follow   = last_kind == kind_checkpoint ? part.kind == kind_segment
                                : part.kind == last_kind || (last_kind == kind_segment && part.kind == kind_anchor);
        if (!may_follow || part.n > head.tokens.size() || (!is_next_kind && part.n <= last_n) ||
            (is_next_kind && last_kind == kind_segment && last_n != head.tokens.size())) {
            return false;
        }
        last_kind = part.kind;
        last_n    = part.n;
    }
    return last_kind == kind_anchor || (last_kind == kind_segment && last_n == head.tokens.size());
}

status decode_handover(const uint8_t * data, size_t size, uint64_t file_size, handover_head & out) {
    handover_head head;
    size_t        head_size = 0;
    if (status s = decode_header(data, size, kind_handover, handover_parts, file_size, head_size, head.header); !s.is_ok()) {
        return s;
    }
    head.conversation = load_le<uint64_t>(data + handover_conversation);
    const uint32_t n_tokens   = load_le<uint32_t>(data + handover_n_tokens);
    const uint32_t n_parts    = load_le<uint32_t>(data + handover_n_parts);
    const uint32_t facts_size = load_le<uint32_t>(data + handover_facts_size);
    const uint64_t tokens_at  = handover_parts + uint64_t(part_size) * n_parts;
    const uint64_t facts_at   = tokens_at + 4 * uint64_t(n_tokens);
    if (n_tokens == 0 || n_tokens > max_tokens || n_parts > max_parts || facts_size > max_facts ||
        facts_at + facts_size != head_size) {
        return bad_length("tables of a handover");
    }
    uint64_t left = file_size - head_size;
    for (size_t i = 0; i < n_parts; i++) {
        const uint8_t * at = data + handover_parts + part_size * i;
        head.parts.push_back({ load_le<uint32_t>(at + part_kind), load_le<uint32_t>(at + part_n),
                               load_le<uint64_t>(at + part_bytes) });
        if (head.parts.back().bytes > left) {
            return bad_length("parts of a handover");
        }
        left -= head.parts.back().bytes;
    }
    head.tokens = get_tokens(data + tokens_at, n_tokens);
    head.facts.assign(reinterpret_cast<const char *>(data + facts_at), facts_size);
    if (left != 0 || !parts_are_in_order(head)) {
        return bad_length("parts of a handover");
    }
    out = std::move(head);
    return status::ok();
}

} // namespace kvtier

#include "kvtier/handover.h"

#include "kvtier/checksum.h"
#include "kvtier/coding.h"
#include "kvtier/store_rooms.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

namespace kvtier {

static const uint8_t * bytes_of(const std::string & text) {
    return reinterpret_cast<const uint8_t *>(text.data());
}

static status contradicts(const std::string & what) {
    return status::corrupt(damage::bad_length, what + " of the handed-over state contradicts its head");
}

static std::map<std::string, std::string> lines_of(const std::string & facts) {
    std::map<std::string, std::string> out;
    std::istringstream                 text(facts);
    for (std::string line; std::getline(text, line);) {
        if (const size_t at = line.find('='); at != std::string::npos) {
            out[line.substr(0, at)] = line.substr(at + 1);
        }
    }
    return out;
}

// Numbers are written down to the last bit, in hexadecimal, which nobody reads.
static std::string readable(const std::string & value) {
    char *       end    = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    char         text[32];
    (void) std::snprintf(text, sizeof(text), "%.9g", number);
    return value.compare(0, 2, "0x") == 0 && *end == '\0' ? text : value;
}

// Their names are not repeated, and of their values no more than a line's worth: who knows what is in them.
std::string difference_of(const std::string & theirs, const std::string & ours) {
    static constexpr size_t max_shown = 64;
    const auto  there = lines_of(theirs);
    std::string out;
    for (const auto & [name, here] : lines_of(ours)) {
        const auto  found = there.find(name);
        std::string value = found == there.end() ? "nothing" : found->second.substr(0, max_shown);
        for (char & c : value) {
            c = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
        }
        if (found == there.end() || found->second != here) {
            out += (out.empty() ? "" : ", ") + name + " is " + readable(value) + " there and " + readable(here) + " here";
        }
    }
    return out;
}

size_t handover_head_size(const std::string & begin) {
    size_t size = 0;
    if (begin.size() < format::header_size) {
        return 0;
    }
    const uint64_t said = load_le<uint64_t>(bytes_of(begin) + format::header_file_size);
    return decode_head_size(bytes_of(begin), begin.size(), format::kind_handover, said, size).is_ok() ? size : 0;
}

handover_intake::handover_intake(store & to, handover_head && stream_head, const chain_root & root, uint64_t conversation) :
    to(to), head(std::move(stream_head)), root(root), conversation(conversation),
    pages(page_keys(root, head.tokens.data(), head.tokens.size())) {}

status handover_intake::begin(store & to, const std::string & user, uint64_t conversation, const std::string & bytes,
                              uint64_t max_part, std::unique_ptr<handover_intake> & out) {
    if (bytes.size() < format::header_size) {
        return status::corrupt(damage::truncated, "the head of the handed-over state is cut");
    }
    handover_head  found;
    const uint64_t said = load_le<uint64_t>(bytes_of(bytes) + format::header_file_size);
    if (status s = decode_handover(bytes_of(bytes), bytes.size(), said, found); !s.is_ok()) {
        return s.in("the head of the handed-over state");
    }
    const store_options & ours = to.options();
    if (found.header.fingerprint != ours.fingerprint) {
        const std::string what = difference_of(found.facts, ours.facts);
        return status::incompatible("this state is of another model, or of the same with other settings: " +
                                    (what.empty() ? "its fingerprint is " + hex(found.header.fingerprint) : what));
    }
    if (found.header.page_size != ours.page_size) {
        return status::incompatible("this state has pages of " + std::to_string(found.header.page_size) +
                                    " tokens, this server's have " + std::to_string(ours.page_size) + ": --cache-ssd-page-size");
    }
    if (found.header.name_space != user_key(user)) {
        return status::incompatible("this state is another user's: it is handed over under the same id");
    }
    const chain_root root = { ours.fingerprint, ours.page_size, user, {} };
    if (found.conversation != conversation || found.header.root != root_key(root)) {
        return status::incompatible("this state is of another conversation, or was evaluated with adapters (LoRA)");
    }
    for (const handover_part & part : found.parts) {
        if (part.bytes > max_part) {
            return status::exhausted("a part of " + std::to_string(part.bytes) +
                                     " bytes is more than this server takes into memory (" + std::to_string(max_part) + " bytes)");
        }
    }
    std::unique_ptr<handover_intake> made(new handover_intake(to, std::move(found), root, conversation));
    made->stream_id = load_le<uint64_t>(bytes_of(bytes) + format::header_head_checksum);
    made->starts    = { load_le<uint32_t>(bytes_of(bytes) + format::header_head_size) };
    for (const handover_part & part : made->head.parts) {
        made->starts.push_back(made->starts.back() + part.bytes);
    }
    out = std::move(made);
    return status::ok();
}

key handover_intake::key_at(uint32_t n) const {
    const uint32_t tail = n % root.page_size;
    const key      base = n / root.page_size == 0 ? root_key(root) : pages[n / root.page_size - 1];
    return tail == 0 ? base : next_key(base, head.tokens.data() + n - tail, tail);
}

// from: where the part before it ends. All of a segment's runs must be there: an anchor can only lie where one ends.
bool handover_intake::is_stored(const handover_part & part, uint32_t from) const {
    return to.rooms->known.read([&](const object_graph & all) {
        if (part.kind == format::kind_anchor) {
            const run * at = all.index.find(key_at(part.n));
            return at != nullptr && at->anchored != nullptr && at->anchored->is_written();
        }
        const auto ends_before = [](uint32_t n, const chain_point & point) { return n < point.n; };
        const auto first       = std::upper_bound(record.runs.begin(), record.runs.end(), from, ends_before); // They ascend.
        const auto last        = std::upper_bound(first, record.runs.end(), part.n, ends_before);
        return std::all_of(first, last, [&](const chain_point & point) { return all.index.find(point.k) != nullptr; });
    });
}

void handover_intake::pass_over_stored() {
    while (next < head.parts.size()) {
        const handover_part & part  = head.parts[next];
        const bool            first = part.kind != head.parts[next - 1].kind;
        if (!is_stored(part, first ? 0 : head.parts[next - 1].n)) {
            return;
        }
        next++;
    }
}

status handover_intake::take(const char * data, size_t size, const std::atomic<bool> & is_unwanted) {
    uint64_t at = wanted();
    while (size > 0 && next < head.parts.size()) {
        if (is_unwanted) {
            return status::miss("nobody wants it any more");
        }
        if (at < starts[next]) { // This is of a part that is stored already.
            const size_t n = static_cast<size_t>(std::min<uint64_t>(size, starts[next] - at));
            data += n;
            size -= n;
            at   += n;
            continue;
        }
        const size_t n = static_cast<size_t>(std::min<uint64_t>(size, starts[next + 1] - at));
        gathered.append(data, n);
        data += n;
        size -= n;
        at   += n;
        if (at == starts[next + 1]) {
            if (status s = finish_part(); !s.is_ok()) {
                return s;
            }
        }
    }
    return status::ok();
}

status handover_intake::finish_part() {
    const uint32_t kind   = head.parts[next].kind;
    const status   result = kind == format::kind_checkpoint ? take_checkpoint()
                          : kind == format::kind_segment    ? take_segment() : take_anchor();
    gathered.clear();
    gathered.shrink_to_fit();
    if (!result.is_ok()) {
        return result;
    }
    next++;
    pass_over_stored();
    return next < head.parts.size() ? status::ok() : save_checkpoint();
}

status handover_intake::check(const file_header & header) const {
    return header.fingerprint == root.fingerprint && header.name_space == head.header.name_space &&
                   header.root == head.header.root && header.page_size == root.page_size
               ? status::ok()
               : status::corrupt(damage::misplaced, "a part of the handed-over state is another model's or user's");
}

status handover_intake::take_checkpoint() {
    checkpoint_record found;
    if (status s = decode_checkpoint(bytes_of(gathered), gathered.size(), gathered.size(), found); !s.is_ok()) {
        return s.in("the checkpoint of the handed-over state");
    }
    if (status s = check(found.header); !s.is_ok()) {
        return s;
    }
    const auto is_of_chain = [&](const chain_point & point) { return point.k == key_at(point.n); };
    if (found.conversation != conversation || found.n_tokens != head.tokens.size() ||
        !std::all_of(found.runs.begin(), found.runs.end(), is_of_chain)) {
        return contradicts("the checkpoint");
    }
    record = std::move(found);
    return status::ok();
}

save_request handover_intake::request_for(uint32_t n_tokens) const {
    save_request out;
    out.root       = root;
    out.checkpoint = false;
    out.n_static   = record.n_static;
    out.folded     = (record.header.flags & format::flag_folded) != 0;
    out.backend    = head.header.backend;
    out.conversation.hash = conversation; // Whoever removes it finds what has come so far.
    out.tokens.assign(head.tokens.begin(), head.tokens.begin() + n_tokens);
    return out;
}

static blob copy_of(const uint8_t * data, uint64_t size) {
    auto out = std::make_shared<buffer>(static_cast<size_t>(size));
    std::memcpy(out->data(), data, static_cast<size_t>(size));
    return out;
}

status handover_intake::take_segment() {
    segment_head found;
    if (status s = decode_segment(bytes_of(gathered), gathered.size(), gathered.size(), found); !s.is_ok()) {
        return s.in("pages of the handed-over state");
    }
    if (status s = check(found.header); !s.is_ok()) {
        return s;
    }
    const uint32_t end = head.parts[next].n;
    if (found.runs.back().p1 != end) {
        return contradicts("a page");
    }
    save_request request = request_for(end);
    auto         tokens  = found.tokens.begin();
    for (const run_entry & r : found.runs) {
        const uint32_t n = r.p1 - r.p0;
        if (r.p1 > end || !std::equal(tokens, tokens + n, head.tokens.begin() + r.p0) || r.k != key_at(r.p1) ||
            r.parent != key_at(r.p0)) {
            return contradicts("a page");
        }
        const uint8_t * payload = bytes_of(gathered) + r.payload_offset;
        if (checksum64(payload, static_cast<size_t>(r.payload_size)) != r.checksum) {
            return status::corrupt(damage::bad_checksum, "a page of the handed-over state does not match its checksum");
        }
        request.runs.push_back({ r.p0, r.p1, r.k, r.parent, copy_of(payload, r.payload_size) });
        tokens += n;
    }
    return save(request);
}

status handover_intake::take_anchor() {
    anchor_head found;
    if (status s = decode_anchor(bytes_of(gathered), gathered.size(), gathered.size(), found); !s.is_ok()) {
        return s.in("folded state that was handed over");
    }
    if (status s = check(found.header); !s.is_ok()) {
        return s;
    }
    if (found.n_tokens != head.parts[next].n || found.k != key_at(found.n_tokens) ||
        found.tokens_checksum != tokens_checksum(head.tokens.data(), found.n_tokens)) {
        return contradicts("an anchor");
    }
    const uint8_t * payload = bytes_of(gathered) + found.payload_offset;
    if (checksum64(payload, static_cast<size_t>(found.payload_size)) != found.checksum) {
        return status::corrupt(damage::bad_checksum, "folded state that was handed over does not match its checksum");
    }
    save_request request = request_for(found.n_tokens);
    request.anchors.push_back({ found.n_tokens, found.k, copy_of(payload, found.payload_size) });
    return save(request);
}

// What the day's write budget has cut is not there afterwards.
status handover_intake::save(const save_request & request) {
    if (status s = to.save(request); !s.is_ok()) {
        return s;
    }
    const handover_part & part = head.parts[next];
    const bool            here = to.rooms->known.read([&](const object_graph & all) {
        const run * at = all.index.find(key_at(part.n));
        return at != nullptr && (part.kind == format::kind_segment || (at->anchored != nullptr && at->anchored->is_written()));
    });
    return here ? status::ok()
                : status::over_budget("the cache's budgets have no room for it: see written and state in GET /cache");
}

status handover_intake::save_checkpoint() {
    const uint32_t        n   = static_cast<uint32_t>(head.tokens.size());
    const conversation_id id  = { head.header.name_space, conversation };
    const key             end = key_at(n);
    complete = to.rooms->known.read([&](const object_graph & all) {
        const kvtier::conversation * known = all.find(id);
        return known != nullptr && !known->checkpoints.empty() && known->checkpoints.rbegin()->second->end->k == end;
    });
    if (complete) {
        return status::ok();
    }
    save_request request = request_for(n);
    request.checkpoint   = true;
    request.roles        = record.roles;
    request.conversation.n_naming = record.n_naming;
    request.conversation.title    = record.title;
    const status s = to.save(request);
    complete = s.is_ok();
    return s;
}

} // namespace kvtier

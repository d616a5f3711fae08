#include "kvtier/handover.h"

#include "kvtier/checksum.h"
#include "kvtier/coding.h"
#include "kvtier/store_rooms.h"

#include <algorithm>
#include <utility>

namespace kvtier {

// A part that was interrupted is sent again from its beginning, so parts are small; a run is never cut.
static constexpr uint64_t segment_payload = uint64_t(8) << 20;

status handover_source::open(store & from, const std::string & user, uint64_t conversation,
                             std::unique_ptr<handover_source> & out) {
    const chain_root      root = { from.options().fingerprint, from.options().page_size, user, {} };
    const conversation_id id   = { user_key(user), conversation };
    std::unique_ptr<handover_source> made(new handover_source(from, root));
    uint32_t number = 0;
    if (status s = made->gather(id, number); !s.is_ok()) {
        return s;
    }
    if (status s = made->read_checkpoint(id, number); !s.is_ok()) {
        return s;
    }
    made->lay_out(conversation);
    out = std::move(made);
    return status::ok();
}

// Notes the chain of the newest checkpoint, and the folded state that is likely to be restored.
status handover_source::gather(const conversation_id & id, uint32_t & number) {
    return from.rooms->known.read([&](const object_graph & all) {
        const conversation * known = all.find(id);
        if (known == nullptr || known->checkpoints.empty()) {
            return status::miss("no such conversation is stored");
        }
        const checkpoint & newest = *known->checkpoints.rbegin()->second;
        if (newest.end->owner->root != root_key(root)) {
            return status::incompatible("it was evaluated with adapters (LoRA), or with another page size: "
                                        "such state is not handed over");
        }
        number = newest.number;
        const segment * previous = nullptr;
        for (const run * r = newest.end; r != nullptr; r = r->parent) {
            chain.push_back(r);
            if (r->owner != previous) {
                held.add(all.segments.at(r->owner->id));
                previous = r->owner;
            }
            if (r->anchored != nullptr && r->anchored->is_written() &&
                (anchors.size() < anchors_of_turn || r->p1 == newest.n_static)) {
                anchors.push_back(r->anchored);
                held.add(r->anchored);
            }
        }
        std::reverse(chain.begin(), chain.end());
        std::reverse(anchors.begin(), anchors.end());
        return status::ok();
    });
}

// The checkpoint's file, which then names the chain as it is now: a damaged page that was stored again may be cut elsewhere.
status handover_source::read_checkpoint(const conversation_id & id, uint32_t number) {
    const std::string path = names::join(from.rooms->layout.conversation(id.first, id.second), names::checkpoint(number));
    std::unique_ptr<readable_file> file;
    if (status s = from.rooms->e.open_file(path, file); !s.is_ok()) {
        return s;
    }
    if (file->size() > format::max_head_size) {
        return status::corrupt(damage::bad_length, path + ": too large for a checkpoint");
    }
    std::vector<uint8_t> bytes(static_cast<size_t>(file->size()));
    const span           whole = { bytes.data(), bytes.size() };
    if (status s = file->read(0, &whole, 1); !s.is_ok()) {
        return s;
    }
    if (status s = decode_checkpoint(bytes.data(), bytes.size(), bytes.size(), record); !s.is_ok()) {
        return s.in(path);
    }
    record.cut_to(chain.back()->p1); // It may have lost its end.
    record.runs.clear();
    record.anchors.clear();
    for (const run * r : chain) {
        record.runs.push_back({ r->k, r->p1 });
    }
    for (const auto & a : anchors) {
        record.anchors.push_back({ a->k, a->n_tokens });
    }
    checkpoint_file = encode_checkpoint(record);
    return status::ok();
}

void handover_source::lay_out(uint64_t conversation) {
    handover_head out;
    out.header       = record.header;
    out.conversation = conversation;
    out.facts        = from.options().facts.substr(0, format::max_facts);
    out.parts.push_back({ format::kind_checkpoint, record.n_tokens, checkpoint_file.size() });

    uint64_t payload = 0;
    for (const run * r : chain) {
        if (parts.empty() || payload + r->size > segment_payload) {
            parts.emplace_back();
            out.parts.push_back({ format::kind_segment, 0, format::segment_runs });
            payload = 0;
        }
        payload += r->size;
        parts.back().runs.push_back(r);
        out.parts.back().n = r->p1;
        out.parts.back().bytes += format::run_size + 4 * uint64_t(r->p1 - r->p0) + r->size;
        out.tokens.insert(out.tokens.end(), r->tokens, r->tokens + (r->p1 - r->p0));
    }
    for (const auto & a : anchors) {
        parts.emplace_back();
        parts.back().of_anchor = a;
        out.parts.push_back({ format::kind_anchor, a->n_tokens, a->file_size });
    }
    head   = encode_handover(out);
    starts = { 0, head.size() };
    for (const handover_part & part : out.parts) {
        starts.push_back(starts.back() + part.bytes);
    }
}

uint64_t handover_source::id() const {
    return load_le<uint64_t>(head.data() + format::header_head_checksum);
}

// A segment with those of its runs that the conversation needs: what else was saved with them stays here.
status handover_source::make_segment(const std::vector<const run *> & runs, std::vector<uint8_t> & out) const {
    segment_head part;
    part.header       = record.header;
    part.header.flags = runs.front()->owner->flags & format::flag_static_prefix;
    for (const run * r : runs) {
        run_entry entry;
        entry.k            = r->k;
        entry.parent       = r->parent_key;
        entry.p0           = r->p0;
        entry.p1           = r->p1;
        entry.payload_size = r->size;
        entry.checksum     = r->checksum;
        part.runs.push_back(entry);
        part.tokens.insert(part.tokens.end(), r->tokens, r->tokens + (r->p1 - r->p0));
    }
    out = encode_segment(part);
    out.resize(static_cast<size_t>(part.file_size));
    for (size_t i = 0; i < runs.size(); i++) {
        const std::string path = names::join(from.rooms->layout.pages(runs[i]->owner->name_space),
                                             names::segment(runs[i]->owner->id));
        std::unique_ptr<readable_file> file;
        if (status s = from.rooms->e.open_file(path, file); !s.is_ok()) {
            return s;
        }
        const span payload = { out.data() + part.runs[i].payload_offset, static_cast<size_t>(runs[i]->size) };
        if (status s = file->read(runs[i]->offset, &payload, 1); !s.is_ok()) {
            return s;
        }
        if (checksum64(payload.data, payload.size) != runs[i]->checksum) {
            return status::corrupt(damage::bad_checksum, path + ": state does not match its checksum");
        }
    }
    return status::ok();
}

status handover_source::make_part(size_t i, std::vector<uint8_t> & out) const {
    const source_part & part = parts[i];
    if (part.of_anchor == nullptr) {
        return make_segment(part.runs, out);
    }
    const anchor &    a    = *part.of_anchor;
    const std::string path = names::join(from.rooms->layout.anchors(a.name_space), names::anchor(a.k));
    std::unique_ptr<readable_file> file;
    if (status s = from.rooms->e.open_file(path, file); !s.is_ok()) {
        return s;
    }
    out.resize(static_cast<size_t>(a.file_size));
    const span whole = { out.data(), out.size() };
    if (status s = file->read(0, &whole, 1); !s.is_ok()) {
        return s;
    }
    return checksum64(out.data() + a.payload_offset, static_cast<size_t>(a.payload_size)) == a.checksum
               ? status::ok()
               : status::corrupt(damage::bad_checksum, path + ": state does not match its checksum");
}

status handover_source::read(uint64_t offset, size_t at_most, std::string & out) {
    const size_t i = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), offset) - starts.begin()) - 1;
    if (i + 1 >= starts.size()) {
        return status::miss("the stream ends before that");
    }
    if (i >= 2 && current_index != i) {
        current_index = SIZE_MAX;
        if (status s = make_part(i - 2, current); !s.is_ok()) {
            return s;
        }
        current_index = i;
    }
    const std::vector<uint8_t> & whole = i == 0 ? head : i == 1 ? checkpoint_file : current;
    const size_t at = static_cast<size_t>(offset - starts[i]);
    out.assign(reinterpret_cast<const char *>(whole.data()) + at, std::min(at_most, whole.size() - at));
    return status::ok();
}

} // namespace kvtier

#include "kvtier/saver.h"

#include "kvtier/checksum.h"
#include "kvtier/write_budget.h"

#include <algorithm>

namespace kvtier {

status saver::make_folder(const std::string & parent, const std::string & name) {
    for (const std::string & folder : { parent, names::join(parent, name) }) {
        if (status s = rooms.files.may_add_to(folder); !s.is_ok()) {
            return s;
        }
    }
    reservation room;
    if (!make_room(rooms, disk_block + folder_growth, room)) {
        rooms.count.skipped_budget++;
        return status::over_budget(names::join(parent, name) + ": no room in the cache's budget");
    }
    return rooms.files.make_folder(parent, name, std::move(room));
}

status saver::write_file(const std::string & folder, const std::string & name, const std::vector<const_span> & parts,
                         bool durable) {
    if (status s = rooms.files.may_add_to(folder); !s.is_ok()) {
        return s;
    }
    uint64_t size = 0;
    for (const const_span & part : parts) {
        size += part.size;
    }
    reservation room;
    if (!make_room(rooms, disk_size(size) + folder_growth, room)) {
        rooms.count.skipped_budget++;
        return status::over_budget(names::join(folder, name) + ": " + std::to_string(size) +
                                   " bytes do not fit the cache's budget of " + std::to_string(rooms.bytes.budget().limit()));
    }
    status s = rooms.files.write(folder, name, parts, durable, std::move(room));
    if (s.is_ok() && rooms.options.writes != nullptr) {
        rooms.options.writes->written(size);
    }
    return s;
}

file_header saver::header(const save_request & request, const key & name_space, uint32_t flags) const {
    file_header out;
    out.fingerprint = rooms.options.fingerprint;
    out.name_space  = name_space;
    out.root        = root_key(request.root);
    out.created_ms  = rooms.e.now_ms();
    out.page_size   = request.root.page_size;
    out.flags       = flags;
    out.written_by  = rooms.options.written_by;
    out.backend     = request.backend;
    return out;
}

// What others go on from comes last: where there is little room, it does not keep a turn's own anchors out.
static bool is_own(const save_anchor & a) {
    return !a.is_shared;
}

// What of it the day's write budget allows: up to the first page that is refused, as if the conversation had been cut there. So
// what is stored is listed, and can be removed.
save_request saver::affordable(const save_request & request) const {
    write_budget & writes = *rooms.options.writes;
    save_request   out    = request;
    uint64_t       n_before = 0;
    for (size_t i = 0; i < out.runs.size(); i++) {
        const save_run & run = out.runs[i];
        if (!writes.admits(run.k, run.data->size(), n_before)) {
            const size_t n_tokens = run.p0;
            out.runs.resize(i);
            out.cut_to(n_tokens);
            break;
        }
        n_before += run.data->size();
    }
    std::stable_partition(out.anchors.begin(), out.anchors.end(), is_own);
    out.anchors.erase(std::remove_if(out.anchors.begin(), out.anchors.end(), [&](const save_anchor & a) {
        const bool admitted = writes.admits(a.k, a.data->size(), n_before);
        n_before += admitted ? a.data->size() : 0;
        return !admitted;
    }), out.anchors.end());
    return out;
}

status saver::save(const save_request & request, size_t & n_tokens) {
    mutex_lock writing(rooms.files.writing);
    n_tokens = request.tokens.size();
    if (rooms.options.writes == nullptr || !rooms.options.writes->is_limited()) {
        return save_within_budget(request);
    }
    const save_request allowed = affordable(request);
    n_tokens = allowed.tokens.size();
    return allowed.tokens.empty() ? status::ok() : save_within_budget(allowed);
}

status saver::save_within_budget(const save_request & request) {
    const key name_space = user_key(request.root.user);
    rooms.files.finish_deferred();
    if (status s = save_held(request, name_space); !s.is_ok() || !request.checkpoint) {
        return s;
    }
    // Nothing is held any more: what a limit retires is cut out of files that this conversation uses, too.
    const conversation_id id = { name_space, request.conversation_name() };
    apply_limits(rooms, name_space, &id);
    return status::ok();
}

status saver::save_held(const save_request & request, const key & name_space) {
    lease  held = rooms.known.hold(request);
    status s    = make_folders(name_space);
    if (s.is_ok()) {
        s = save_runs(request, name_space, held);
    }
    if (s.is_ok()) {
        s = save_anchors(request, name_space);
    }
    return s.is_ok() && request.checkpoint ? save_checkpoint(request, name_space) : s;
}

// A folder that is counted is there.
status saver::make_folders(const key & name_space) {
    const file_layout & layout = rooms.layout;
    const std::string   folder = layout.name_space(name_space);
    if (name_space != key{} && !rooms.bytes.has(layout.users())) {
        if (status s = make_folder(layout.model(), names::users); !s.is_ok()) {
            return s;
        }
    }
    if (name_space != key{} && !rooms.bytes.has(folder)) {
        if (status s = make_folder(layout.users(), hex(name_space)); !s.is_ok()) {
            return s;
        }
    }
    for (const char * name : { names::pages, names::anchors }) {
        if (rooms.bytes.has(names::join(folder, name))) {
            continue;
        }
        if (status s = make_folder(folder, name); !s.is_ok()) {
            return s;
        }
    }
    return status::ok();
}

// The conversation whose checkpoint is still to come; 0: it is not known yet.
static uint64_t awaiting(const save_request & request) {
    const uint64_t said  = request.conversation.hash;
    const bool     known = said == 0 && request.tokens.size() >= n_conversation_tokens;
    return request.checkpoint ? 0 : known ? conversation_hash(request.tokens.data(), request.tokens.size()) : said;
}

status saver::save_runs(const save_request & request, const key & name_space, lease & held) {
    std::vector<const save_run *> wanted;
    if (status s = rooms.known.missing_runs(request, wanted); !s.is_ok()) {
        return s;
    }
    const uint64_t    limit = std::min(rooms.options.segment_bytes, std::max<uint64_t>(rooms.bytes.budget().limit() / 16, 1));
    const std::string pages = rooms.layout.pages(name_space);
    std::vector<std::shared_ptr<segment>> written;
    status result = status::ok();

    for (size_t first = 0; first < wanted.size() && result.is_ok();) {
        // Static prefixes get files of their own: they are shared and stay when the rest goes.
        const bool is_static = wanted[first]->p1 <= request.n_static;
        size_t     last      = first;
        uint64_t   payload   = 0;
        for (; last < wanted.size() && (wanted[last]->p1 <= request.n_static) == is_static; last++) {
            if (last > first && payload + wanted[last]->data->size() > limit) {
                break;
            }
            payload += wanted[last]->data->size();
        }

        segment_head head;
        head.header = header(request, name_space, is_static ? format::flag_static_prefix : 0);
        head.id     = rooms.known.new_segment();
        std::vector<const_span> parts(1);
        for (size_t i = first; i < last; i++) {
            const save_run & from = *wanted[i];
            run_entry        to;
            to.k            = from.k;
            to.parent       = from.parent;
            to.p0           = from.p0;
            to.p1           = from.p1;
            to.payload_size = from.data->size();
            to.checksum     = checksum64(from.data->data(), from.data->size());
            head.runs.push_back(to);
            head.tokens.insert(head.tokens.end(), request.tokens.begin() + from.p0, request.tokens.begin() + from.p1);
            parts.push_back({ from.data->data(), from.data->size() });
        }
        const std::vector<uint8_t> bytes = encode_segment(head);
        parts[0] = { bytes.data(), bytes.size() };
        result   = write_file(pages, names::segment(head.id), parts);
        if (result.is_ok()) {
            rooms.count.runs_written    += last - first;
            rooms.count.payload_written += payload;
            written.push_back(make_segment(std::move(head)));
            written.back()->awaited_by = awaiting(request);
            first = last;
        }
    }
    if (!written.empty()) {
        if (const status synced = rooms.files.sync(pages); result.is_ok()) {
            result = synced;
        }
        rooms.known.learn(written, wanted, held);
    }
    return result;
}

// The head of an anchor's file, all but its checksums of the payload.
static anchor_head head_of(const save_request & request, const save_anchor & from, file_header header) {
    anchor_head            head;
    const uint32_t         n_tail = from.n_tokens % request.root.page_size;
    const std::vector<key> pages  = page_keys(request.root, request.tokens.data(), from.n_tokens);
    head.k               = from.k;
    head.n_tokens        = from.n_tokens;
    head.base            = pages.empty() ? header.root : pages.back();
    head.tokens_checksum = tokens_checksum(request.tokens.data(), from.n_tokens);
    head.tail.assign(request.tokens.begin() + from.n_tokens - n_tail, request.tokens.begin() + from.n_tokens);
    head.header          = std::move(header);
    return head;
}

status saver::save_anchors(const save_request & request, const key & name_space) {
    const std::string folder = rooms.layout.anchors(name_space);
    status            result = status::ok();
    std::vector<std::shared_ptr<anchor>> written;
    std::vector<save_anchor>             wanted = request.anchors;
    std::stable_partition(wanted.begin(), wanted.end(), is_own);

    for (const save_anchor & from : wanted) {
        bool is_missing = false;
        if (result = rooms.known.misses_anchor(request, from, is_missing); result.is_miss() && from.is_shared) {
            result = status::ok(); // What it needs may be gone since an earlier turn took it: this turn has no need of it.
            continue;
        }
        if (!result.is_ok()) {
            break;
        }
        if (!is_missing) {
            continue;
        }
        const uint32_t flags = from.n_tokens <= request.n_static && !from.is_shared ? format::flag_static_prefix : 0;
        anchor_head    head  = head_of(request, from, header(request, name_space, flags));
        head.payload_size = from.data->size();
        head.checksum     = checksum64(from.data->data(), from.data->size());
        const std::vector<uint8_t> bytes = encode_anchor(head);
        result = write_file(folder, names::anchor(from.k),
                            { { bytes.data(), bytes.size() }, { from.data->data(), from.data->size() } });
        if (result.is_no_space() && from.is_shared) {
            result = status::ok(); // The turn goes without it, and is stored.
            continue;
        }
        if (!result.is_ok()) {
            break;
        }
        rooms.count.anchors_written++;
        rooms.count.payload_written += from.data->size();
        written.push_back(make_anchor(head));
    }
    if (!written.empty()) {
        if (const status synced = rooms.files.sync(folder); result.is_ok()) {
            result = synced;
        }
        rooms.known.learn(written, request);
    }
    return result;
}

status saver::save_checkpoint(const save_request & request, const key & name_space) {
    const uint32_t         page_size = request.root.page_size;
    const uint32_t         n_tokens  = static_cast<uint32_t>(request.tokens.size());
    const std::vector<key> keys      = page_keys(request.root, request.tokens.data(), n_tokens);
    key                    end       = keys.empty() ? root_key(request.root) : keys.back();
    if (n_tokens % page_size != 0) {
        end = next_key(end, request.tokens.data() + n_tokens - n_tokens % page_size, n_tokens % page_size);
    }

    checkpoint_record record;
    record.header       = header(request, name_space, request.folded ? format::flag_folded : 0);
    const conversation_facts & said = request.conversation;
    record.conversation = request.conversation_name();
    record.n_naming     = std::min(said.n_naming, n_tokens);
    record.title        = said.title.substr(0, format::max_title);
    record.n_tokens     = n_tokens;
    record.n_static     = std::min(request.n_static, n_tokens);
    record.roles        = request.roles;
    record.roles.resize(std::min<size_t>(record.roles.size(), format::max_roles));
    bool is_new = false;
    if (status s = rooms.known.begin_checkpoint(end, record, is_new); !s.is_ok()) {
        return s;
    }
    const std::string folder = rooms.layout.conversation(name_space, record.conversation);
    while (rooms.bytes.has(names::join(folder, names::checkpoint(record.number)))) {
        record.number++; // that one is for a newer program, or could not be read
    }

    // A checkpoint must not outlast the names of what it needs: those whose sync has failed, and those that were found at
    // opening, because a process that was killed may have left them unsynced.
    const file_layout & layout = rooms.layout;
    if (status s = rooms.files.sync_owed({ layout.model(), layout.users(), layout.name_space(name_space),
                                           layout.pages(name_space), layout.anchors(name_space) }); !s.is_ok()) {
        return s;
    }
    const std::vector<uint8_t> bytes = encode_checkpoint(record);
    if (status s = write_checkpoint(record, bytes, is_new); !s.is_ok()) {
        return s;
    }
    if (status s = rooms.known.learn(record, bytes.size()); !s.is_ok()) {
        rooms.files.defer({ { folder, names::checkpoint(record.number), doomed_file::fate::remove } });
        return s;
    }
    rooms.ram.begin_turn(name_space, record.turn);
    const conversation_id id = { name_space, record.conversation };
    // Ages may be lost; how long it is to be kept may not. The checkpoint itself is safe.
    const bool changed = rooms.known.change_lifetime(id, said.change);
    (void) write_uses_of(id, changed).is_ok();
    return status::ok();
}

// is_new: its folder is to be made.
status saver::write_checkpoint(const checkpoint_record & record, const std::vector<uint8_t> & bytes, bool is_new) {
    const std::string parent = rooms.layout.name_space(record.header.name_space);
    const std::string folder = rooms.layout.conversation(record.header.name_space, record.conversation);
    const std::string name   = names::checkpoint(record.number);
    if (is_new) {
        if (status s = make_folder(parent, hex(record.conversation)); !s.is_ok()) {
            return s;
        }
    }
    status s = write_file(folder, name, { { bytes.data(), bytes.size() } });
    if (s.is_miss()) { // room was made of what the conversation had, and its folder went with it
        is_new = true;
        s      = make_folder(parent, hex(record.conversation));
        if (s.is_ok()) {
            s = write_file(folder, name, { { bytes.data(), bytes.size() } });
        }
    }
    if (s.is_ok()) {
        s = rooms.files.sync(folder);
        if (!s.is_ok()) {
            rooms.files.remove_file(names::join(folder, name)); // the next one takes its number
        }
    }
    if (!s.is_ok() && is_new) {
        rooms.files.remove_folder(folder);
    }
    return s;
}

// This is rewritten often, and when things were used is easily rebuilt: it is only synced where somebody said how long the
// conversation is to be kept.
//
// It goes by id, not by pointer: a reader that meets damage may make the catalog forget the conversation at any time.
status saver::write_uses_of(const conversation_id & id, bool durable) {
    index_record record;
    if (!rooms.known.uses_of(id, record)) {
        return status::ok();
    }
    durable = durable || !(record.life == lifetime()); // It takes the place of a file that had it.
    record.header.fingerprint = rooms.options.fingerprint;
    record.header.name_space  = id.first;
    record.header.created_ms  = rooms.e.now_ms();
    record.header.page_size   = rooms.options.page_size;
    record.header.written_by  = rooms.options.written_by;
    const std::vector<uint8_t> bytes  = encode_index(record);
    const std::string          folder = rooms.layout.conversation(id.first, id.second);
    status s = write_file(folder, names::index_file, { { bytes.data(), bytes.size() } }, durable);
    if (s.is_ok() && durable) {
        s = rooms.files.sync(folder);
    }
    if (!rooms.known.uses_are_written(id, s.is_ok(), bytes.size()) && s.is_ok()) {
        rooms.files.remove_file(names::join(folder, names::index_file)); // the conversation has gone since
    }
    return s;
}

status saver::set_lifetime(const conversation_id & id, const lifetime_change & change) {
    mutex_lock writing(rooms.files.writing);
    if (!rooms.known.read([&](const object_graph & all) { return all.find(id) != nullptr; })) {
        return status::miss("no conversation " + hex(id.second));
    }
    return rooms.known.change_lifetime(id, change) ? write_uses_of(id, true) : status::ok();
}

void saver::write_uses() {
    mutex_lock writing(rooms.files.writing);
    const auto stale = rooms.known.read([](const object_graph & all) {
        std::vector<conversation_id> out;
        for (const auto & [id, c] : all.conversations) {
            if (c->index_stale) {
                out.push_back(id);
            }
        }
        return out;
    });
    for (const conversation_id & id : stale) {
        if (!write_uses_of(id).is_ok()) {
            return; // a disk that cannot be written: ages are lost, state is not
        }
    }
}

} // namespace kvtier

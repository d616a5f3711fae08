// Writing: runs, then anchors, then the checkpoint that names them, each durable before the next begins.
//
// A file is written under a temporary name, synced, renamed, and its folder synced. The index learns of an object only
// after that, so that nobody can find what might not be there after a power cut.
#include "kvtier/store_state.h"

#include "kvtier/checksum.h"

#include <algorithm>

namespace kvtier {

std::string store_state::folder_of(const key & name_space) const {
    return names::name_space_dir(model_dir, name_space);
}

status store_state::sync_folder(const std::string & path) {
    count.syncs++;
    const status s = e.sync_dir(path);
    if (s.is_ok() || s.is_miss()) {
        unsynced.erase(path);
    } else {
        unsynced.insert(path);
    }
    return s;
}

// A checkpoint must not outlast the names of what it needs: those whose sync has failed, and those that were found at
// opening, because a process that was killed may have left them unsynced.
status store_state::sync_before_checkpoint(const key & name_space) {
    const std::string folder = folder_of(name_space);
    for (const std::string & path : { model_dir, names::join(model_dir, names::users), folder,
                                      names::join(folder, names::pages), names::join(folder, names::anchors) }) {
        if (unsynced.count(path) != 0) {
            if (status s = sync_folder(path); !s.is_ok() && !s.is_miss()) {
                return s;
            }
        }
    }
    return status::ok();
}

status store_state::make_folder(const std::string & parent, const std::string & name) {
    const std::string path = names::join(parent, name);
    if (!make_room(disk_block + folder_growth)) {
        count.skipped_budget++;
        return status::no_space(path + ": no room in the cache's budget");
    }
    status s = e.make_dir(path);
    if (s.is_ok()) {
        s = sync_folder(parent);
        if (!s.is_ok()) {
            (void) e.remove_dir(path).is_ok(); // the next save tries again, from the start
        }
        recount_folder(path);
    }
    recount_folder(parent);
    discharge(disk_block + folder_growth);
    return s;
}

// A file of no use has been replaced by one that is wanted. If it was to be removed, that is off; its bytes are gone.
void store_state::forget_replaced(const std::string & folder, const std::string & name) {
    uint64_t replaced = 0;
    if (const auto node = leftovers.extract(names::join(folder, name))) {
        replaced = node.mapped();
    }
    {
        std::unique_lock<std::shared_mutex> guard(mu);
        const auto is_replaced = [&](const doomed_file & file) {
            return !file.is_folder && file.name == name && file.folder == folder;
        };
        for (const doomed_file & file : deferred) {
            replaced += is_replaced(file) ? disk_size(file.size) : 0;
        }
        deferred.erase(std::remove_if(deferred.begin(), deferred.end(), is_replaced), deferred.end());
    }
    discharge(replaced);
}

status store_state::write_file(const std::string & folder, const std::string & name, const const_span * parts,
                               size_t n_parts, bool durable) {
    uint64_t size = 0;
    for (size_t i = 0; i < n_parts; i++) {
        size += parts[i].size;
    }
    const std::string path = names::join(folder, name);
    if (!make_room(disk_size(size) + folder_growth)) {
        count.skipped_budget++;
        return status::no_space(path + ": " + std::to_string(size) + " bytes do not fit the cache's budget of " +
                                std::to_string(budget->limit()));
    }
    const std::string              temp = names::join(folder, names::temp(next_temp++));
    std::unique_ptr<writable_file> file;
    status                         s = e.create_file(temp, file);
    if (!s.is_ok()) {
        discharge(disk_size(size) + folder_growth);
        return s;
    }
    s = file->append(parts, n_parts);
    if (s.is_ok() && durable) {
        count.syncs++;
        s = file->sync();
    }
    if (const status closed = file->close(); s.is_ok()) {
        s = closed;
    }
    if (s.is_ok()) {
        s = e.rename(temp, path);
    }
    recount_folder(folder);
    discharge(folder_growth);
    if (!s.is_ok()) {
        remove_or_leave(temp, disk_size(size));
        return s;
    }
    forget_replaced(folder, name);
    count.bytes_written += size;
    return status::ok();
}

// Says when the conversation was last used. Rewritten often and easily rebuilt, so it is not synced.
//
// By id, not by pointer: a reader that meets damage may take the conversation out of the index at any time.
status store_state::write_index(const conversation_id & id) {
    index_record record;
    {
        std::shared_lock<std::shared_mutex> guard(mu);
        const auto it = conversations.find(id);
        if (it == conversations.end()) {
            return status::ok();
        }
        const conversation & c = *it->second;
        record.header.fingerprint = options.fingerprint;
        record.header.name_space  = c.name_space;
        record.header.created_ms  = e.now_ms();
        record.header.page_size   = options.page_size;
        record.header.writer      = options.writer;
        record.conversation = c.hash;
        record.last_turn    = c.last_turn;
        record.last_used_ms = c.last_used_ms;
        record.hits         = c.hits;
        for (const auto & [number, point] : c.checkpoints) {
            record.entries.push_back({ number, point->last_turn, point->last_used_ms, point->hits });
        }
    }
    const std::vector<uint8_t> bytes  = encode_index(record);
    const const_span           whole  = { bytes.data(), bytes.size() };
    const std::string          folder = names::join(folder_of(id.first), hex(id.second));
    const status s = write_file(folder, names::index_file, &whole, 1, false);

    uint64_t replaced = 0;
    bool     gone     = false;
    {
        std::unique_lock<std::shared_mutex> guard(mu);
        const auto it = conversations.find(id);
        gone = it == conversations.end();
        if (!gone) {
            it->second->index_stale = !s.is_ok();
            if (s.is_ok()) {
                replaced = it->second->index_size;
                it->second->index_size = bytes.size();
            }
        }
    }
    if (replaced > 0) {
        discharge(disk_size(replaced));
    }
    if (gone && s.is_ok()) {
        remove_or_leave(names::join(folder, names::index_file), disk_size(bytes.size()));
    }
    return s;
}

void store_state::flush_indexes() {
    std::vector<conversation_id> stale;
    {
        std::shared_lock<std::shared_mutex> guard(mu);
        for (const auto & [id, c] : conversations) {
            if (c->index_stale) {
                stale.push_back(id);
            }
        }
    }
    for (const conversation_id & id : stale) {
        if (!write_index(id).is_ok()) {
            return; // a disk that cannot be written: ages are lost, state is not
        }
    }
}

status store_state::save(const save_request & request) {
    const key name_space = user_key(request.root.name_space);
    finish_deferred();

    lease held; // what the request builds upon, and what it writes, is not evicted to make room for it
    {
        std::shared_lock<std::shared_mutex> guard(mu);
        const walk_result path = index.walk(name_space, root_key(request.root), request.tokens.data(),
                                            request.tokens.size(), request.tokens.size());
        std::vector<const segment *> seen;
        for (const run * r : path.whole) {
            if (std::find(seen.begin(), seen.end(), r->owner) == seen.end()) {
                seen.push_back(r->owner);
                held.add(segments.at(r->owner->id));
            }
        }
    }

    const std::string folder = folder_of(name_space);
    name_space_state * state;
    {
        std::unique_lock<std::shared_mutex> guard(mu);
        state = &name_spaces[name_space];
    }
    if (!state->has_folders) {
        std::vector<dir_entry> entries;
        const auto has = [&entries](const std::string & name) {
            return std::any_of(entries.begin(), entries.end(), [&](const dir_entry & d) { return d.name == name; });
        };
        if (name_space != key{}) {
            if (status s = e.list_dir(model_dir, entries); !s.is_ok()) {
                return s;
            }
            if (!has(names::users)) {
                if (status s = make_folder(model_dir, names::users); !s.is_ok()) {
                    return s;
                }
            }
            const std::string users = names::join(model_dir, names::users);
            if (status s = e.list_dir(users, entries); !s.is_ok()) {
                return s;
            }
            if (!has(hex(name_space))) {
                if (status s = make_folder(users, hex(name_space)); !s.is_ok()) {
                    return s;
                }
            }
        }
        if (status s = e.list_dir(folder, entries); !s.is_ok()) {
            return s;
        }
        for (const char * name : { names::pages, names::anchors }) {
            if (!has(name)) {
                if (status s = make_folder(folder, name); !s.is_ok()) {
                    return s;
                }
            }
        }
        state->has_folders = true;
    }

    if (status s = save_runs(request, name_space, held); !s.is_ok()) {
        return s;
    }
    if (status s = save_anchors(request, name_space); !s.is_ok()) {
        return s;
    }
    if (request.checkpoint) {
        if (status s = save_checkpoint(request, name_space); !s.is_ok()) {
            return s;
        }
    }
    return status::ok();
}

status store_state::save_runs(const save_request & request, const key & name_space, lease & held) {
    const key root = root_key(request.root);
    std::vector<const save_run *> wanted;
    {
        std::shared_lock<std::shared_mutex> guard(mu);
        std::unordered_map<key, uint32_t, key_hash> fresh; // keys of this request, with the length they end at
        for (const save_run & r : request.runs) {
            if (index.find(r.k) != nullptr || fresh.count(r.k) != 0) {
                count.runs_shared++;
                continue;
            }
            const run * parent = r.p0 == 0 ? nullptr : index.find(r.parent);
            const bool  sound  = r.p0 == 0 ? r.parent == root
                               : parent != nullptr ? parent->p1 == r.p0
                               : fresh.count(r.parent) != 0 && fresh[r.parent] == r.p0;
            if (!sound || r.data == nullptr || r.p0 >= r.p1 || r.p1 > request.tokens.size() ||
                r.p0 / request.root.page_size != (r.p1 - 1) / request.root.page_size) {
                count.skipped_parent++;
                return status::miss("tokens before " + std::to_string(r.p0) + " are not stored any more");
            }
            fresh[r.k] = r.p1;
            wanted.push_back(&r);
        }
    }

    const uint64_t limit = std::min(options.segment_bytes, std::max<uint64_t>(budget->limit() / 16, 1));
    const std::string pages = names::join(folder_of(name_space), names::pages);
    std::vector<std::shared_ptr<segment>> written;
    status result = status::ok();

    for (size_t first = 0; first < wanted.size() && result.is_ok();) {
        // Static prefixes get files of their own: they are shared and stay when the rest goes.
        const bool   is_static = wanted[first]->p1 <= request.n_static;
        size_t       last      = first;
        uint64_t     payload   = 0;
        for (; last < wanted.size() && (wanted[last]->p1 <= request.n_static) == is_static; last++) {
            if (last > first && payload + wanted[last]->data->size() > limit) {
                break;
            }
            payload += wanted[last]->data->size();
        }

        segment_head head;
        head.header.fingerprint = options.fingerprint;
        head.header.name_space  = name_space;
        head.header.root        = root;
        head.header.created_ms  = e.now_ms();
        head.header.page_size   = request.root.page_size;
        head.header.flags       = is_static ? format::flag_static_prefix : 0;
        head.header.writer      = options.writer;
        head.header.backend     = request.backend;
        head.id                 = next_segment++;
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
        result = write_file(pages, names::segment(head.id), parts.data(), parts.size(), true);
        if (!result.is_ok()) {
            break;
        }
        count.runs_written    += last - first;
        count.payload_written += payload;

        written.push_back(make_segment(std::move(head)));
        first = last;
    }

    if (!written.empty()) {
        if (const status synced = sync_folder(pages); result.is_ok()) {
            result = synced;
        }
        std::unique_lock<std::shared_mutex> guard(mu);
        const uint64_t turn = turn_of(name_space);
        index.attach(written);
        for (const auto & seg : written) {
            seg->last_turn = turn;
            segments[seg->id] = seg;
            held.add(seg);
        }
        for (const save_run * r : wanted) {
            if (index.find(r->k) != nullptr) {
                ram.put(object_kind::page, name_space, r->k, r->data, turn);
            }
        }
    }
    return result;
}

status store_state::save_anchors(const save_request & request, const key & name_space) {
    const std::string folder    = names::join(folder_of(name_space), names::anchors);
    const uint32_t    page_size = request.root.page_size;
    bool              any       = false;
    status            result    = status::ok();
    std::vector<std::shared_ptr<anchor>> written;

    for (const save_anchor & from : request.anchors) {
        {
            std::unique_lock<std::shared_mutex> guard(mu);
            run * at = index.find(from.k);
            if (at == nullptr || at->p1 != from.n_tokens || from.data == nullptr || from.n_tokens > request.tokens.size()) {
                count.skipped_parent++;
                result = status::miss("tokens before the anchor at " + std::to_string(from.n_tokens) + " are not stored");
                break;
            }
            if (at->anchored != nullptr) {
                continue;
            }
            // One whose run was damaged and has been stored again: it is as good as before.
            if (const auto it = anchors.find({ name_space, from.k }); it != anchors.end()) {
                it->second->at = at;
                at->anchored   = it->second;
                continue;
            }
        }
        anchor_head head;
        head.header.fingerprint = options.fingerprint;
        head.header.name_space  = name_space;
        head.header.root        = root_key(request.root);
        head.header.created_ms  = e.now_ms();
        head.header.page_size   = page_size;
        head.header.flags       = from.n_tokens <= request.n_static ? format::flag_static_prefix : 0;
        head.header.writer      = options.writer;
        head.header.backend     = request.backend;
        head.k               = from.k;
        head.n_tokens        = from.n_tokens;
        head.tail.assign(request.tokens.begin() + from.n_tokens - from.n_tokens % page_size,
                         request.tokens.begin() + from.n_tokens);
        const std::vector<key> pages = page_keys(request.root, request.tokens.data(), from.n_tokens);
        head.base            = pages.empty() ? head.header.root : pages.back();
        head.tokens_checksum = tokens_checksum(request.tokens.data(), from.n_tokens);
        head.payload_size    = from.data->size();
        head.checksum        = checksum64(from.data->data(), from.data->size());
        const std::vector<uint8_t> bytes = encode_anchor(head);
        const const_span parts[] = { { bytes.data(), bytes.size() }, { from.data->data(), from.data->size() } };
        result = write_file(folder, names::anchor(from.k), parts, 2, true);
        if (!result.is_ok()) {
            break;
        }
        count.anchors_written++;
        count.payload_written += from.data->size();
        any = true;

        auto a = std::make_shared<anchor>();
        a->k               = from.k;
        a->name_space      = name_space;
        a->root            = head.header.root;
        a->n_tokens        = from.n_tokens;
        a->flags           = head.header.flags;
        a->file_size       = bytes.size() + from.data->size();
        a->payload_offset  = head.payload_offset;
        a->payload_size    = head.payload_size;
        a->checksum        = head.checksum;
        a->tokens_checksum = head.tokens_checksum;
        a->last_used_ms    = head.header.created_ms;
        written.push_back(std::move(a));
    }

    if (any) {
        if (const status synced = sync_folder(folder); result.is_ok()) {
            result = synced;
        }
        std::unique_lock<std::shared_mutex> guard(mu);
        for (const auto & a : written) {
            a->last_turn = turn_of(name_space);
            a->at        = index.find(a->k);
            if (a->at != nullptr) {
                a->at->anchored = a;
            }
            anchors[{ name_space, a->k }] = a;
        }
        for (const save_anchor & from : request.anchors) {
            if (anchors.count({ name_space, from.k }) != 0) {
                ram.put(object_kind::anchor, name_space, from.k, from.data, turn_of(name_space));
            }
        }
    }
    return result;
}

status store_state::save_checkpoint(const save_request & request, const key & name_space) {
    const uint32_t   page_size = request.root.page_size;
    const uint32_t   n_tokens  = static_cast<uint32_t>(request.tokens.size());
    std::vector<key> keys      = page_keys(request.root, request.tokens.data(), n_tokens);
    key              end_key   = keys.empty() ? root_key(request.root) : keys.back();
    if (n_tokens % page_size != 0) {
        end_key = next_key(end_key, request.tokens.data() + n_tokens - n_tokens % page_size, n_tokens % page_size);
    }

    auto              point = std::make_unique<checkpoint>();
    checkpoint_record record;
    const uint64_t    hash   = conversation_hash(request.tokens.data(), n_tokens);
    const std::string parent = folder_of(name_space);
    const std::string folder = names::join(parent, hex(hash));
    bool              is_new;
    {
        std::unique_lock<std::shared_mutex> guard(mu);
        point->end = index.find(end_key);
        if (point->end == nullptr || point->end->p1 != n_tokens) {
            count.skipped_parent++;
            return status::miss("the end of the conversation is not stored");
        }
        for (const run * r = point->end; r != nullptr; r = r->parent) {
            record.runs.push_back({ r->k, r->p1 });
            if (r->anchored != nullptr) {
                record.anchors.push_back({ r->k, r->p1 });
            }
        }
        std::reverse(record.runs.begin(), record.runs.end());
        std::reverse(record.anchors.begin(), record.anchors.end());
        record.turn = ++name_spaces[name_space].turn;
        const auto found = conversations.find({ name_space, hash });
        is_new        = found == conversations.end();
        record.number = is_new ? 1 : found->second->next_number;
    }
    while (leftovers.count(names::join(folder, names::checkpoint(record.number))) != 0) {
        record.number++; // that one is for a newer program, or could not be read
    }
    record.header.fingerprint = options.fingerprint;
    record.header.name_space  = name_space;
    record.header.root        = root_key(request.root);
    record.header.created_ms  = e.now_ms();
    record.header.page_size   = page_size;
    record.header.flags       = request.folded ? format::flag_folded : 0;
    record.header.writer      = options.writer;
    record.header.backend     = request.backend;
    record.conversation = hash;
    record.n_tokens     = n_tokens;
    record.n_static     = std::min(request.n_static, n_tokens);
    record.roles        = request.roles;
    record.roles.resize(std::min<size_t>(record.roles.size(), format::max_roles));

    if (status s = sync_before_checkpoint(name_space); !s.is_ok()) {
        return s;
    }
    if (is_new) {
        if (status s = make_folder(parent, hex(hash)); !s.is_ok()) {
            return s;
        }
    }
    const std::vector<uint8_t> bytes = encode_checkpoint(record);
    const const_span           whole = { bytes.data(), bytes.size() };
    status s = write_file(folder, names::checkpoint(record.number), &whole, 1, true);
    if (s.is_miss()) { // room was made of what the conversation had, and its folder went with it
        is_new = true;
        s = make_folder(parent, hex(hash));
        if (s.is_ok()) {
            s = write_file(folder, names::checkpoint(record.number), &whole, 1, true);
        }
    }
    if (s.is_ok()) {
        count.syncs++;
        s = e.sync_dir(folder);
        if (!s.is_ok()) { // the next one takes its number
            remove_or_leave(names::join(folder, names::checkpoint(record.number)), disk_size(bytes.size()));
        }
    }
    if (!s.is_ok()) {
        if (is_new && e.remove_dir(folder).is_ok()) {
            discharge_folder(folder);
        }
        return s;
    }

    const conversation * c = nullptr;
    {
        std::unique_lock<std::shared_mutex> guard(mu);
        point->end = index.find(end_key);
        if (point->end == nullptr) { // a reader found its pages damaged in the meantime
            doomed_file orphan;
            orphan.folder = folder;
            orphan.name   = names::checkpoint(record.number);
            orphan.size   = bytes.size();
            deferred.push_back(std::move(orphan));
            count.skipped_parent++;
            return status::miss("the end of the conversation is not stored any more");
        }
        count.checkpoints_written++;
        auto & slot = conversations[{ name_space, hash }];
        if (slot == nullptr) {
            slot = std::make_unique<conversation>();
            slot->name_space = name_space;
            slot->hash       = hash;
        }
        c = slot.get();
        point->owner        = slot.get();
        point->number       = record.number;
        point->turn         = record.turn;
        point->n_tokens     = n_tokens;
        point->n_static     = record.n_static;
        point->file_size    = bytes.size();
        point->created_ms   = record.header.created_ms;
        point->last_turn    = record.turn;
        point->last_used_ms = record.header.created_ms;
        point->backend      = request.backend;
        slot->next_number  = record.number + 1;
        slot->last_turn    = record.turn;
        slot->last_used_ms = record.header.created_ms;
        slot->index_stale  = true;
        const std::vector<const run *> chain = [&] {
            std::vector<const run *> out;
            for (const run * r = point->end; r != nullptr; r = r->parent) {
                out.push_back(r);
            }
            return out;
        }();
        register_checkpoint(std::move(point));
        for (const run * r : chain) {
            r->owner->last_turn    = record.turn;
            r->owner->last_used_ms = record.header.created_ms;
            ram.get(object_kind::page, r->k, record.turn); // used in this turn, whether it was written in it or not
            if (r->anchored != nullptr) {
                r->anchored->last_turn    = record.turn;
                r->anchored->last_used_ms = record.header.created_ms;
                ram.get(object_kind::anchor, r->k, record.turn);
            }
        }
    }
    ram.begin_turn(name_space, record.turn);
    (void) write_index({ name_space, hash }).is_ok(); // only the ages; the checkpoint itself is safe
    apply_limits(name_space, c);
    return status::ok();
}

void store_state::register_checkpoint(std::unique_ptr<checkpoint> c) {
    for (run * r = c->end; r != nullptr; r = r->parent) {
        if (c->segments.empty() || std::find(c->segments.begin(), c->segments.end(), r->owner) == c->segments.end()) {
            c->segments.push_back(r->owner);
            r->owner->users[c->owner]++;
        }
    }
    c->end->owner->ends.push_back(c.get());
    c->owner->checkpoints[c->number] = std::move(c);
}

} // namespace kvtier

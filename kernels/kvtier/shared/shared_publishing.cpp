// What of the local store is copied into the shared folder, and how.
#include "kvtier/shared/shared_tier.h"

#include "kvtier/checksum.h"
#include "kvtier/file_head.h"
#include "kvtier/file_names.h"
#include "kvtier/read_task.h"
#include "kvtier/store_rooms.h"
#include "kvtier/write_budget.h"

#include <algorithm>
#include <utility>

namespace kvtier {

// A file of the folder has about so much: several threads read a prompt, and a file that is lost does not cost all of it.
static constexpr uint64_t max_copy_bytes = uint64_t(16) << 20;

// What a conversation has used, it has used with everything before it.
static std::map<const segment *, int64_t> segments_in_use(const object_graph & all, int64_t since_ms) {
    std::map<const segment *, int64_t> out;
    for (const auto & [id, s] : all.segments) {
        if (s->last_used_ms < since_ms || s->n_attached == 0) {
            continue;
        }
        for (const run * r = &s->runs.front(); r != nullptr; r = r->parent) {
            int64_t & used = out[r->owner];
            if (r->owner != s.get() && used >= s->last_used_ms) {
                break;
            }
            used = std::max(used, s->last_used_ms);
        }
    }
    return out;
}

// Beginnings come before what goes on from them, rows before their anchors.
std::vector<shared_tier::local_object> shared_tier::objects_in_use() const {
    std::vector<local_object> out = rooms.known.read([&](const object_graph & all) {
        std::vector<local_object> found;
        const auto                is_shared = [&](const key & name_space) { return name_space == key{} || options.users; };
        for (const auto & [s, used_ms] : segments_in_use(all, since_ms)) {
            if (!is_shared(s->name_space)) {
                continue;
            }
            local_object object;
            object.name_space = s->name_space;
            object.segment    = s->id;
            object.at         = s->runs.front().p0;
            object.used_ms    = used_ms;
            for (const run & r : s->runs) {
                if (r.attached) {
                    object.missing.insert(r.k);
                }
            }
            found.push_back(std::move(object));
        }
        for (const auto & [id, a] : all.anchors) {
            if (is_shared(a->name_space) && a->is_written() && a->at != nullptr && a->last_used_ms >= since_ms) {
                local_object object;
                object.name_space = a->name_space;
                object.is_anchor  = true;
                object.at         = a->n_tokens;
                object.used_ms    = a->last_used_ms;
                object.missing.insert(a->k);
                found.push_back(std::move(object));
            }
        }
        return found;
    });
    for (local_object & object : out) {
        for (auto it = object.missing.begin(); it != object.missing.end();) {
            shared_name file;
            const bool  is_there = object.is_anchor ? own->index.anchor_file(object.name_space, *it, file) : own->index.file_of(*it, file);
            if (is_there) {
                object.there.push_back(file);
            }
            it = is_there ? object.missing.erase(it) : std::next(it);
        }
    }
    std::sort(out.begin(), out.end(), [](const local_object & a, const local_object & b) {
        return std::make_pair(a.is_anchor, a.at) < std::make_pair(b.is_anchor, b.at);
    });
    return out;
}

static status read_checked(const readable_file & file, const std::string & path, uint64_t offset, uint64_t size, uint64_t checksum,
                           blob & out) {
    const auto data  = std::make_shared<buffer>(static_cast<size_t>(size));
    const span whole = { data->data(), data->size() };
    if (status s = file.read(offset, &whole, 1); !s.is_ok()) {
        return s;
    }
    out = data;
    return checksum64(data->data(), data->size()) == checksum ? status::ok() : mismatch(path);
}

// Makes a file of runs that follow each other.
static shared_copy copy_of(segment_head & head, std::vector<blob> payload) {
    shared_copy out;
    out.name.place = { head.header.fingerprint, backend_folder(head.header.backend), head.header.name_space };
    out.name.k     = head.runs.back().k;
    out.name.at    = head.runs.front().p0;
    out.head       = encode_segment(head);
    out.payload    = std::move(payload);
    return out;
}

// Reads the local file, and hands its missing parts over one by one.
status shared_tier::copies_of(const local_object & object, const std::function<status(shared_copy)> & each) const {
    const std::string path = object.is_anchor
        ? names::join(rooms.layout.anchors(object.name_space), names::anchor(*object.missing.begin()))
        : names::join(rooms.layout.pages(object.name_space), names::segment(object.segment));
    std::vector<uint8_t>           bytes;
    std::unique_ptr<readable_file> file;
    uint64_t                       file_size = 0;
    status s = read_head(rooms.e, path, object.is_anchor ? format::kind_anchor : format::kind_segment, file_size, bytes);
    s = s.is_ok() ? rooms.e.open_file(path, file) : s;
    if (!s.is_ok()) {
        return s;
    }
    if (object.is_anchor) {
        anchor_head head;
        shared_copy copy;
        copy.payload.resize(1);
        s = decode_anchor(bytes.data(), bytes.size(), file_size, head);
        s = s.is_ok() ? read_checked(*file, path, head.payload_offset, head.payload_size, head.checksum, copy.payload[0]) : s;
        copy.name = { { head.header.fingerprint, backend_folder(head.header.backend), head.header.name_space }, true, head.k, head.n_tokens };
        copy.head = std::move(bytes);
        return s.is_ok() ? each(std::move(copy)) : s;
    }
    segment_head all;
    if (s = decode_segment(bytes.data(), bytes.size(), file_size, all); !s.is_ok()) {
        return s;
    }
    segment_head      next;
    std::vector<blob> payload;
    uint64_t          n_bytes = 0;
    const auto        hand_over = [&] {
        if (next.runs.empty()) {
            return status::ok();
        }
        const status done = each(copy_of(next, std::move(payload)));
        next.runs.clear();
        next.tokens.clear();
        payload.clear();
        n_bytes = 0;
        return done;
    };
    next.header = all.header;
    auto tokens = all.tokens.begin();
    for (const run_entry & r : all.runs) {
        const auto its = tokens;
        tokens += r.p1 - r.p0;
        const bool wanted  = object.missing.count(r.k) != 0;
        const bool follows = next.runs.empty() || next.runs.back().k == r.parent;
        if (!wanted || !follows || n_bytes + r.payload_size > max_copy_bytes) {
            if (s = hand_over(); !s.is_ok()) {
                return s;
            }
        }
        if (wanted) {
            payload.emplace_back();
            if (s = read_checked(*file, path, r.payload_offset, r.payload_size, r.checksum, payload.back()); !s.is_ok()) {
                return s;
            }
            n_bytes += r.payload_size;
            next.runs.push_back(r);
            next.tokens.insert(next.tokens.end(), its, tokens);
        }
    }
    return hand_over();
}

// A removal that came in between may have been about just this: it goes again, and is published anew if it is still stored.
status shared_tier::publish_copy(shared_copy copy, uint64_t removals_before) {
    write_budget * const writes = rooms.options.writes.get();
    if (writes != nullptr && writes->is_limited() && writes->totals().today + copy.bytes() > writes->totals().budget) {
        return status::no_space(options.dir + ": the day's write budget is used up");
    }
    const auto   kept      = std::make_shared<const shared_copy>(std::move(copy));
    const auto   was_there = std::make_shared<bool>(false);
    const status written   = write([kept, was_there, most = limit](core & its, const std::atomic<bool> & abandoned) {
        return its.folder.write(*kept, most, abandoned, *was_there);
    });
    if (!written.is_ok() || *was_there) {
        return written; // Another server's file has other bytes, perhaps: the next look learns what it promises.
    }
    if (removals_before != n_removals) {
        const status gone = write([kept](core & its, const std::atomic<bool> &) { return its.folder.remove(kept->name); });
        return gone.is_ok() ? status::miss("something was removed meanwhile") : gone;
    }
    shared_index::news one;
    one.file = { kept->name, disk_size(kept->bytes()), 0 };
    if (kept->name.is_anchor) {
        anchor_head head;
        if (decode_anchor(kept->head.data(), kept->head.size(), kept->bytes(), head).is_ok()) {
            one.of_anchor = make_anchor(head);
        }
    } else {
        segment_head head;
        if (decode_segment(kept->head.data(), kept->head.size(), kept->bytes(), head).is_ok()) {
            one.of_segment = make_segment(std::move(head));
        }
    }
    if (own->index.concerns(kept->name)) {
        own->index.add(std::move(one));
    }
    if (writes != nullptr) {
        writes->written(kept->bytes());
    }
    touched[kept->name.path()] = rooms.e.now_ms();
    mutex_lock guard(mu);
    counted.published++;
    counted.bytes_published += kept->bytes();
    return written;
}

status shared_tier::publish_object(const local_object & object, uint64_t removals_before) {
    const status s = copies_of(object, [&](shared_copy copy) {
        return stopping ? status::miss("stopping") : publish_copy(std::move(copy), removals_before);
    });
    if (s.is_ok()) {
        for (const key & k : object.missing) {
            published[k] = object.used_ms;
        }
    }
    return s;
}

void shared_tier::publish_all() {
    {
        mutex_lock guard(mu);
        if (held || clock::now() < publish_after) {
            return;
        }
    }
    since_ms = std::min(since_ms, rooms.e.now_ms()); // The clock may have been set back.
    const uint64_t            removals_before = n_removals;
    std::vector<local_object> used            = objects_in_use();
    touch_used(used);
    // What was evicted there since it was published comes again when it has been used since.
    used.erase(std::remove_if(used.begin(), used.end(), [&](const local_object & object) {
        return std::all_of(object.missing.begin(), object.missing.end(), [&](const key & k) {
            const auto before = published.find(k);
            return before != published.end() && before->second >= object.used_ms;
        });
    }), used.end());
    status   problem = status::ok();
    uint64_t n_left  = used.size();
    for (const local_object & object : used) {
        if (stopping || !is_usable() || removals_before != n_removals) {
            break; // What was in use before a removal may not be any more.
        }
        if (is_look_due() && !refresh()) {
            break;
        }
        const status s = publish_object(object, removals_before);
        if (s.is_over_budget() || s.is_no_space() || s.is_io_error()) {
            problem = s;
            break;
        }
        n_left--; // What could not be read here is left to whoever looks after the local store.
    }
    needs_room = problem.is_over_budget();
    mutex_lock guard(mu);
    if ((problem.is_no_space() && !needs_room) || problem.is_io_error()) {
        publish_after = clock::now() + options.off_for; // Its disk is full or refuses, or the day's writes are used up.
    }
    counted.unpublished = n_left;
    why_unpublished     = problem.message();
}

// Ages are the folder's, for whoever evicts there. It need not know of every use.
void shared_tier::touch_used(const std::vector<local_object> & used) {
    const auto names = std::make_shared<std::vector<shared_name>>();
    for (const local_object & object : used) {
        for (const shared_name & name : object.there) {
            int64_t & before = touched[name.path()];
            if (object.used_ms - before >= options.touch.count()) {
                before = object.used_ms;
                names->push_back(name);
            }
        }
    }
    if (!names->empty()) {
        (void) call([names](core & its, const std::atomic<bool> & abandoned) {
            for (size_t i = 0; i < names->size() && !abandoned; i++) {
                (void) its.folder.touch((*names)[i]).is_ok(); // It may be gone.
            }
            return status::ok();
        }).is_ok();
    }
}

bool shared_tier::publish(clock::duration at_most) {
    const auto until = clock::now() + at_most;
    mutex_lock guard(mu);
    const uint64_t mine = n_begun + 1;
    n_asked = std::max(n_asked, mine);
    changed.notify_all();
    while (n_ended < mine && !is_off && !stopping && changed.wait_until(guard, until)) {
    }
    return n_ended >= mine && !is_off && counted.unpublished == 0;
}

} // namespace kvtier

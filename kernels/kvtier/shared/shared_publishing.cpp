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

// So much is written with one look at what the folder has, but only a small share of its limit: others cannot have what is
// claimed.
static constexpr uint64_t max_round_bytes = uint64_t(32) << 20;
static constexpr size_t   max_round_files = 32;
static constexpr uint64_t round_share     = 64;

// What waits to be written is renewed so often before others would take it for what a killed writer left.
static constexpr int write_renewals = 10;

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
    std::sort(out.begin(), out.end(), [](const local_object & a, const local_object & b) {
        return std::make_pair(a.is_anchor, a.at) < std::make_pair(b.is_anchor, b.at);
    });
    return out;
}

// What is in use here, and what of it the folder lacks. What is there counts as published, whoever wrote it: what somebody removes or
// evicts there comes again only when it is used again. What is not in use here any more is forgotten.
std::vector<shared_tier::local_object> shared_tier::compare() {
    std::map<key, int64_t>         runs, anchors;
    std::set<std::pair<bool, key>> came;
    {
        mutex_lock guard(mu);
        came.swap(fetched);
    }
    std::vector<local_object> used = objects_in_use(); // with all of those
    for (local_object & object : used) {
        const std::map<key, int64_t> & before = published(object);
        std::map<key, int64_t> &       now    = object.is_anchor ? anchors : runs;
        for (auto it = object.missing.begin(); it != object.missing.end();) {
            shared_name file;
            const bool  is_there = object.is_anchor ? own->index.anchor_file(object.name_space, *it, file) : own->index.file_of(*it, file);
            const auto  known    = before.find(*it);
            if (is_there) {
                object.there.push_back(file);
                now[*it] = std::min(object.used_ms, looked_ms); // It may have gone since it was looked at, and have been used again.
            } else if (came.count({ object.is_anchor, *it }) != 0) {
                now[*it] = object.used_ms;
            } else if (known != before.end()) {
                now[*it] = known->second;
            }
            it = is_there ? object.missing.erase(it) : std::next(it);
        }
    }
    published_runs    = std::move(runs);
    published_anchors = std::move(anchors);
    return used;
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

// What this server wrote itself need not be read to be known.
static shared_index::news news_of(const shared_copy & copy, const shared_written & written) {
    shared_index::news out;
    out.file = { copy.name, disk_size(copy.bytes()), written.modified_ms };
    if (copy.name.is_anchor) {
        anchor_head head;
        if (decode_anchor(copy.head.data(), copy.head.size(), copy.bytes(), head).is_ok()) {
            out.of_anchor = make_anchor(head);
        }
    } else {
        segment_head head;
        if (decode_segment(copy.head.data(), copy.head.size(), copy.bytes(), head).is_ok()) {
            out.of_segment = make_segment(std::move(head));
        }
    }
    return out;
}

void shared_tier::note_published(const std::vector<shared_copy> & copies, const std::vector<shared_written> & written,
                                 std::vector<shared_name> & fresh) {
    std::vector<shared_index::news> news;
    uint64_t                        n_files = 0, n_bytes = 0;
    for (size_t i = 0; i < copies.size(); i++) {
        if (!written[i].result.is_ok() || written[i].was_there) {
            continue; // Another server's file has other bytes, perhaps: the next look learns what it promises.
        }
        if (own->index.concerns(copies[i].name)) {
            news.push_back(news_of(copies[i], written[i]));
        }
        touched[copies[i].name.path()] = rooms.e.now_ms();
        fresh.push_back(copies[i].name);
        n_files++;
        n_bytes += copies[i].bytes();
    }
    if (!news.empty()) {
        own->index.add(std::move(news), clock::now());
    }
    if (rooms.options.writes != nullptr) {
        rooms.options.writes->written(n_bytes);
    }
    mutex_lock guard(mu);
    counted.published       += n_files;
    counted.bytes_published += n_bytes;
}

namespace {

struct written_copies {
    std::vector<shared_copy>    copies;
    std::vector<shared_written> written;
};

std::vector<shared_name> names_of_ours(const written_copies & all) {
    std::vector<shared_name> out;
    for (size_t i = 0; i < all.written.size(); i++) {
        if (all.written[i].result.is_ok() && !all.written[i].was_there) {
            out.push_back(all.copies[i].name);
        }
    }
    return out;
}

} // namespace

// A removal that came in between may have been about just this: it goes again, and is published anew if it is still stored.
status shared_tier::write_copies(publishing & now) {
    const auto kept = std::make_shared<written_copies>();
    kept->copies    = std::exchange(now.copies, {});
    now.bytes       = 0;
    const auto whole = std::exchange(now.whole, {});
    if (!kept->copies.empty()) {
        const auto   renew_every = options.unfinished / write_renewals;
        const status called      = write([kept, renew_every, most = limit, before = now.removals_before](
                                             core & its, const std::atomic<bool> & abandoned) {
            const auto is_wanted = [&] { return !abandoned && its.n_removals == before; };
            kept->written        = its.folder.write(kept->copies, most, is_wanted, renew_every);
            if (abandoned && its.n_removals != before) { // Nobody waits for it who would remove them.
                for (const shared_name & name : names_of_ours(*kept)) {
                    (void) its.folder.remove(name).is_ok();
                }
            }
            return status::ok();
        });
        if (!called.is_ok()) {
            return called;
        }
    }
    if (now.removals_before != own->n_removals) {
        const status gone = write([kept](core & its, const std::atomic<bool> &) {
            status result = status::ok();
            for (const shared_name & name : names_of_ours(*kept)) {
                const status s = its.folder.remove(name);
                result         = s.is_ok() ? result : s;
            }
            return result;
        });
        return gone.is_ok() ? status::miss("something was removed meanwhile") : gone;
    }
    note_published(kept->copies, kept->written, now.fresh);
    status problem = status::ok();
    for (const shared_written & written : kept->written) {
        problem = problem.is_ok() ? written.result : problem;
    }
    if (problem.is_ok()) {
        now.n_left -= whole.size();
        for (const local_object * object : whole) {
            for (const key & k : object->missing) {
                published(*object)[k] = object->used_ms;
            }
        }
    }
    return problem;
}

status shared_tier::add_copy(shared_copy copy, publishing & now) {
    const write_budget * const writes    = rooms.options.writes.get();
    const uint64_t             most      = std::min(max_round_bytes, limit / round_share);
    const auto                 is_beyond = [&] {
        return writes != nullptr && writes->is_limited() &&
               writes->totals().today + now.bytes + copy.bytes() > writes->totals().budget;
    };
    const bool is_full = now.bytes + copy.bytes() > most || now.copies.size() >= max_round_files;
    if ((is_full || is_beyond()) && !now.copies.empty()) {
        if (status s = write_copies(now); !s.is_ok()) {
            return s;
        }
    }
    if (is_beyond()) {
        return status::no_space(options.dir + ": the day's write budget is used up");
    }
    now.bytes += copy.bytes();
    now.copies.push_back(std::move(copy));
    return status::ok();
}

// Its last copies may be written with those of others. Says what the folder said: what could not be read here is left to whoever looks
// after the local store.
status shared_tier::publish_object(const local_object & object, publishing & now) {
    status       written = status::ok();
    const status read    = copies_of(object, [&](shared_copy copy) {
        written = stopping ? status::miss("stopping") : add_copy(std::move(copy), now);
        return written;
    });
    if (read.is_ok()) {
        now.whole.push_back(&object);
    }
    now.n_left -= !read.is_ok() && written.is_ok();
    return written;
}

bool shared_tier::may_write() const {
    mutex_lock guard(mu);
    return !held && clock::now() >= publish_after;
}

void shared_tier::publish_all() {
    since_ms = std::min(since_ms, rooms.e.now_ms()); // The clock may have been set back.
    publishing now;
    now.removals_before = own->n_removals;
    const std::vector<local_object>   used   = compare();
    const bool                        is_let = may_write();
    std::vector<const local_object *> wanted;
    for (const local_object & object : used) {
        const std::map<key, int64_t> & already = published(object);
        const bool is_known = std::all_of(object.missing.begin(), object.missing.end(), [&](const key & k) {
            const auto before = already.find(k);
            return before != already.end() && before->second >= object.used_ms;
        });
        if (!is_known) {
            wanted.push_back(&object);
        }
    }
    // What was in use before a removal may not be any more.
    const auto goes_on = [&] { return !stopping && is_usable() && now.removals_before == own->n_removals; };
    status     problem = status::ok();
    now.n_left         = wanted.size();
    if (!is_let) {
        mutex_lock guard(mu);
        counted.unpublished = now.n_left;
        return;
    }
    for (const local_object * object : wanted) {
        if (!goes_on() || (is_look_due() && !refresh())) {
            break;
        }
        if (problem = publish_object(*object, now); !problem.is_ok()) {
            break;
        }
    }
    if (goes_on()) { // What was gathered before the trouble is published all the same.
        const status s = write_copies(now);
        problem        = problem.is_ok() ? s : problem;
    }
    touch_used(used, now.fresh);
    const bool is_put_off = problem.is_miss(); // Something was removed, or it stops: the next round has it.
    needs_room = problem.is_over_budget();
    mutex_lock guard(mu);
    if (!problem.is_ok() && !is_put_off && !needs_room) {
        publish_after = clock::now() + options.off_for; // Its disk is full or refuses, or the day's writes are used up.
    }
    counted.unpublished = now.n_left;
    why_unpublished     = is_put_off ? "" : problem.message();
}

// Whoever evicts sees by a file's time that it was used. It need not know of every use; but a beginning's time is never before
// that of what goes on from it, which would be of no use without it: where something is new, beginnings are touched after it.
void shared_tier::touch_used(const std::vector<local_object> & used, const std::vector<shared_name> & fresh) {
    const auto                     names = std::make_shared<std::vector<shared_name>>(fresh);
    const int64_t                  least = std::min<int64_t>(options.touch.count(), fresh.empty() ? options.touch.count() : 1);
    std::map<std::string, int64_t> now;
    for (const shared_name & name : fresh) {
        now[name.path()] = touched[name.path()];
    }
    for (const local_object & object : used) {
        for (const shared_name & name : object.there) {
            const auto known  = touched.find(name.path());
            int64_t &  before = now.emplace(name.path(), known == touched.end() ? 0 : known->second).first->second;
            if (object.used_ms - before >= least) {
                before = object.used_ms;
                names->push_back(name);
            }
        }
    }
    touched = std::move(now);
    std::sort(names->begin(), names->end(), [](const shared_name & a, const shared_name & b) { return a.at > b.at; });
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

#include "kvtier/store.h"

#include "kvtier/checksum.h"
#include "kvtier/store_state.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>

namespace kvtier {

store_state::store_state(env & e, const store_options & o)
    : e(e), options(o), model_dir(names::join(o.root_dir, hex(o.fingerprint))),
      budget(o.budget != nullptr ? o.budget : std::make_shared<disk_budget>(o.max_bytes)),
      ram(o.ram_bytes, o.windows) {}

store::store(std::unique_ptr<store_state> state) : state(std::move(state)) {}

status store::open(env & e, const store_options & options, std::unique_ptr<store> & out) {
    if (options.page_size == 0 || options.page_size > format::max_page_size) {
        return status::incompatible("page size " + std::to_string(options.page_size) + " is not between 1 and " +
                                    std::to_string(format::max_page_size));
    }
    auto state = std::make_unique<store_state>(e, options);
    const std::string & root = options.root_dir;
    if (!options.inspect) {
        if (status s = e.make_dir(root); !s.is_ok()) {
            return s;
        }
        // The root may be new, so its name must last too. That its folder is somebody else's is no reason to fail.
        (void) e.sync_dir(names::parent(root)).is_ok();
        if (status s = e.make_dir(state->model_dir); !s.is_ok()) {
            return s;
        }
    }
    if (status s = e.lock_file(names::join(state->model_dir, names::lock_file), state->lock); !s.is_ok()) {
        return s;
    }
    if (!options.inspect) {
        std::unique_ptr<writable_file> tag;
        if (e.create_file(names::join(root, names::tag_file), tag).is_ok()) {
            const const_span text = { names::tag_text, sizeof(names::tag_text) - 1 };
            if (status s = tag->append(&text, 1); !s.is_ok()) {
                return s;
            }
        }
        if (status s = e.sync_dir(root); !s.is_ok()) {
            return s;
        }
    }
    const std::string name = hex(options.fingerprint);
    state->budget->set_foreign(names::tag_file, 2 * disk_block); // the root itself and its tag
    state->budget->own(name);
    if (status s = state->recover(); !s.is_ok()) {
        state->budget->release(state->own_bytes);
        state->budget->disown(name);
        return s;
    }
    out.reset(new store(std::move(state)));
    return status::ok();
}

store::~store() {
    if (!state->options.inspect) {
        std::lock_guard<std::mutex> writing(state->write_mu);
        state->finish_deferred();
        state->flush_indexes();
    }
    state->budget->release(state->own_bytes);
    state->budget->disown(hex(state->options.fingerprint));
}

match store::lookup(const lookup_request & request) const {
    store_state & s = *state;
    match out;
    out.folded       = request.folded;
    out.name_space   = user_key(request.root.name_space);
    out.conversation = conversation_hash(request.tokens, request.n_tokens);
    const key    root  = root_key(request.root);
    const size_t limit = std::min(request.limit, request.n_tokens);
    const uint64_t number = ++s.n_lookups;
    s.count.lookups++;

    std::shared_lock<std::shared_mutex> guard(s.mu);
    const walk_result path = s.index.walk(out.name_space, root, request.tokens, request.n_tokens, limit);
    out.n_common = path.n_common;
    const run * last = request.folded ? path.anchored : path.last;
    out.n_tokens = last == nullptr ? 0 : request.folded ? last->p1 : std::min<size_t>(path.n_common, limit);

    if (out.n_tokens == limit && limit > 0) {
        out.reason = miss_reason::none;
    } else if (request.folded && out.n_tokens < std::min<size_t>(path.n_common, limit)) {
        out.reason = miss_reason::no_anchor;
    } else if (path.last == nullptr) {
        out.reason = s.index.size() == 0 ? miss_reason::empty : miss_reason::diverged;
    } else {
        const bool departs = path.last->p1 > path.n_common || !path.last->children.empty();
        out.reason = departs ? miss_reason::diverged : miss_reason::not_stored;
    }
    if (out.n_tokens == 0) {
        return out;
    }
    s.count.hits++;
    s.count.tokens_found += out.n_tokens;

    const uint64_t turn   = s.turn_of(out.name_space);
    tier           coldest = tier::hot;
    const auto     weigh  = [&](object_kind kind, const key & k, uint64_t size) {
        tier where = tier::cold;
        if (size > 0 && s.ram.peek(kind, k, turn, where)) {
            out.bytes_ram += size;
        } else if (size > 0) {
            out.bytes_disk += size;
            coldest = tier::cold;
        } else {
            return;
        }
        coldest = std::max(coldest, where);
    };
    const auto same_conversation = s.conversations.find({ out.name_space, out.conversation });
    const conversation * known = same_conversation == s.conversations.end() ? nullptr : same_conversation->second.get();
    bool in_conversation = false;
    const segment * previous = nullptr;
    for (const run * r = last; r != nullptr; r = r->parent) {
        if (r->p0 >= out.n_tokens) {
            continue; // beyond the limit
        }
        out.runs.push_back({ r->k, r->p0, r->p1, r->size, r });
        weigh(object_kind::page, r->k, r->size);
        if (r->owner != previous) {
            previous = r->owner;
            in_conversation = in_conversation || (known != nullptr && previous->users.count(known) != 0);
            out.held.add(s.segments.at(previous->id));
            r->owner->looked_up = number;
        }
    }
    std::reverse(out.runs.begin(), out.runs.end());
    if (request.folded) {
        out.at = last->anchored;
        out.held.add(out.at);
        weigh(object_kind::anchor, out.at->k, out.at->payload_size);
    }
    out.source = coldest == tier::hot  ? match_source::hot
               : coldest == tier::warm ? match_source::warm : match_source::cold;
    out.kind   = in_conversation ? match_kind::conversation : match_kind::prefix;
    return out;
}

namespace {

// Runs next to each other in one file, or a part of the anchor: read one after the other, ahead of use.
struct read_task {
    std::string         path;
    uint64_t            file_size = 0;
    uint64_t            offset    = 0;
    uint64_t            bytes     = 0;
    uint64_t            owner     = 0;        // id of the segment
    bool                is_anchor = false;
    bool                is_large  = false;    // is read in blocks
    std::vector<size_t> runs;                 // indices into match::runs
    status              result = status::ok();
};

constexpr uint64_t max_task_bytes = uint64_t(8) << 20;   // large enough for any disk, small enough to share out evenly
constexpr uint64_t cached_bytes   = uint64_t(256) << 10; // of one read: checked while they are still in the core's own cache
constexpr uint64_t disk_bytes     = uint64_t(1) << 20;   // the same where a disk is waited for

// An anchor is large and has one checksum: threads read it in parts, and the one that ends last checks the whole.
struct anchor_reading {
    std::shared_ptr<buffer> data;
    std::atomic<size_t>     n_left{ 0 };
    std::atomic<bool>       failed{ false };
};

status mismatch(const std::string & path) {
    return status::corrupt(damage::bad_checksum, path + ": state does not match its checksum");
}

// Fills `to`, which is in a large buffer made for this place in the file, from the file. `seen` gets the bytes in order.
template <typename Seen>
status read_state(readable_file & file, uint64_t step, uint64_t offset, uint8_t * to, uint64_t size, const Seen & seen) {
    const uint64_t end = offset + size;
    for (uint64_t at = offset / block_size * block_size; at < end; at += step) {
        const uint64_t until = std::min(at + step, (end + block_size - 1) / block_size * block_size);
        const span     part  = { to + (static_cast<int64_t>(at) - static_cast<int64_t>(offset)), static_cast<size_t>(until - at) };
        if (status got = file.read_blocks(at, part); !got.is_ok()) {
            return got;
        }
        const uint64_t first = std::max(at, offset);
        seen(to + (first - offset), static_cast<size_t>(std::min(until, end) - first));
    }
    return status::ok();
}

// Fills the buffer from the file and checks it on the way.
status read_verified(readable_file & file, uint64_t step, const std::string & path, uint64_t offset, buffer & out,
                     uint64_t expected) {
    checksum_stream sum;
    const auto      check = [&](const uint8_t * bytes, size_t size) { sum.update(bytes, size); };
    if (out.size() >= buffer::min_large) {
        if (status got = read_state(file, step, offset, out.data(), out.size(), check); !got.is_ok()) {
            return got;
        }
    } else {
        const span whole = { out.data(), out.size() };
        if (status got = file.read(offset, &whole, 1); !got.is_ok()) {
            return got;
        }
        check(out.data(), out.size());
    }
    return sum.finish() == expected ? status::ok() : mismatch(path);
}

} // namespace

static std::vector<read_task> read_tasks(const store_state & s, const match & m, const loaded_state & have) {
    std::vector<read_task> tasks;
    // At least one part, also of nothing: an anchor that was not read is no anchor. No two parts share a block.
    uint64_t done = 0;
    while (m.at != nullptr && have.anchor == nullptr && (done == 0 || done < m.at->payload_size)) {
        read_task task;
        task.path      = names::join(names::join(s.folder_of(m.name_space), names::anchors), names::anchor(m.at->k));
        task.file_size = m.at->file_size;
        task.offset    = m.at->payload_offset + done;
        task.bytes     = std::min(max_task_bytes - task.offset % block_size, m.at->payload_size - done);
        task.is_anchor = true;
        task.is_large  = m.at->payload_size >= buffer::min_large;
        done += std::max<uint64_t>(task.bytes, 1);
        tasks.push_back(std::move(task));
    }
    for (size_t i = 0; i < m.runs.size(); i++) {
        const run & r = *m.runs[i].node;
        if (have.runs[i].data != nullptr) {
            continue;
        }
        const bool is_large  = r.size >= buffer::min_large;
        const bool continues = !tasks.empty() && !tasks.back().is_anchor && tasks.back().owner == r.owner->id &&
                               tasks.back().is_large == is_large &&
                               tasks.back().offset + tasks.back().bytes == r.offset &&
                               tasks.back().bytes + r.size <= max_task_bytes;
        if (!continues) {
            read_task task;
            task.path      = names::join(names::join(s.folder_of(m.name_space), names::pages), names::segment(r.owner->id));
            task.file_size = r.owner->file_size;
            task.offset    = r.offset;
            task.owner     = r.owner->id;
            task.is_large  = is_large;
            tasks.push_back(std::move(task));
        }
        tasks.back().bytes += r.size;
        tasks.back().runs.push_back(i);
    }
    return tasks;
}

// Of the anchor; the checksum is left to the last part.
static status read_part(readable_file & file, uint64_t step, const match & m, const read_task & task, anchor_reading & anchor) {
    uint8_t * to = anchor.data->data() + (task.offset - m.at->payload_offset);
    if (task.is_large) {
        return read_state(file, step, task.offset, to, task.bytes, [](const uint8_t *, size_t) {});
    }
    const span whole = { to, static_cast<size_t>(task.bytes) };
    return file.read(task.offset, &whole, 1);
}

static status run_task(store_state & s, const match & m, const read_task & task, anchor_reading & anchor, loaded_state & out) {
    std::unique_ptr<readable_file> file;
    if (status opened = s.e.open_file(task.path, file); !opened.is_ok()) {
        return opened;
    }
    if (file->size() != task.file_size) {
        return status::corrupt(damage::truncated, task.path + ": has another size than when it was opened");
    }
    uint64_t step = cached_bytes;
    if (!task.is_large) {
        file->will_need(task.offset, task.bytes);
    } else if (file->begin_blocks(task.offset, task.bytes)) {
        step = disk_bytes;
    }
    s.count.bytes_read += task.bytes;
    if (task.is_anchor) {
        return read_part(*file, step, m, task, anchor);
    }
    for (size_t i : task.runs) {
        const run & r    = *m.runs[i].node;
        const auto  data = std::make_shared<buffer>(r.size, r.offset);
        out.runs[i].data = data;
        if (status got = read_verified(*file, step, task.path, r.offset, *data, r.checksum); !got.is_ok()) {
            return got;
        }
    }
    return status::ok();
}

// As the task in the middle does.
static bool waits_for_disk(const store_state & s, const std::vector<read_task> & tasks) {
    if (tasks.empty() || !tasks[tasks.size() / 2].is_large) {
        return false;
    }
    const read_task &              task = tasks[tasks.size() / 2];
    std::unique_ptr<readable_file> file;
    return s.e.open_file(task.path, file).is_ok() && file->begin_blocks(task.offset, task.bytes);
}

status store::load(const match & m, const token * tokens, size_t n_tokens, loaded_state & out) {
    store_state & s = *state;
    loaded_state  loaded;
    loaded.n_tokens = m.n_tokens;
    if (m.n_tokens == 0 || n_tokens < m.n_tokens || m.runs.empty()) {
        return status::miss("nothing to load");
    }
    // The tokens were compared during the search; an anchor has a checksum over all of its own besides.
    if (m.at != nullptr && (m.at->n_tokens != m.n_tokens || tokens_checksum(tokens, m.n_tokens) != m.at->tokens_checksum)) {
        s.count.load_failures++;
        return status::miss("the anchor at " + std::to_string(m.n_tokens) + " belongs to other tokens");
    }
    uint64_t turn;
    {
        std::shared_lock<std::shared_mutex> guard(s.mu);
        turn = s.turn_of(m.name_space);
    }
    loaded.runs.resize(m.runs.size());
    for (size_t i = 0; i < m.runs.size(); i++) {
        // A model without attention rows has runs without payload: there is nothing to read.
        loaded.runs[i] = { m.runs[i].p0, m.runs[i].p1, m.runs[i].size == 0 ? std::make_shared<buffer>(0)
                           : s.ram.get(object_kind::page, m.runs[i].k, turn) };
        s.count.bytes_from_ram += loaded.runs[i].data != nullptr ? m.runs[i].size : 0;
    }
    if (m.at != nullptr) {
        loaded.anchor = s.ram.get(object_kind::anchor, m.at->k, turn);
        s.count.bytes_from_ram += loaded.anchor != nullptr ? m.at->payload_size : 0;
    }

    std::vector<read_task> tasks = read_tasks(s, m, loaded);
    anchor_reading         anchor;
    anchor.n_left = static_cast<size_t>(std::count_if(tasks.begin(), tasks.end(), [](const read_task & t) { return t.is_anchor; }));
    if (anchor.n_left > 0) {
        try {
            anchor.data = std::make_shared<buffer>(m.at->payload_size, m.at->payload_offset);
        } catch (const std::bad_alloc &) {
            s.count.load_failures++;
            return status::io_error(tasks.front().path + ": out of memory for its state");
        }
        loaded.anchor = anchor.data;
    }
    std::atomic<size_t> next{ 0 };
    const auto          work = [&] {
        for (size_t i = next++; i < tasks.size(); i = next++) {
            read_task & task = tasks[i];
            try {
                task.result = run_task(s, m, task, anchor, loaded);
            } catch (const std::bad_alloc &) {
                task.result = status::io_error(task.path + ": out of memory for its state");
            }
            if (!task.is_anchor) {
                continue;
            }
            if (!task.result.is_ok() && anchor.failed.exchange(true)) {
                task.result = status::ok(); // one anchor, one fault
            }
            if (--anchor.n_left == 0 && !anchor.failed &&
                checksum64(anchor.data->data(), anchor.data->size()) != m.at->checksum) {
                task.result = mismatch(task.path);
            }
        }
    };
    // Threads that wait for a disk keep its queue filled. Where there is none to wait for, more of them than cores would be
    // in each other's way.
    const unsigned n_cores   = std::max(2u, std::thread::hardware_concurrency());
    const size_t   n_threads = waits_for_disk(s, tasks) ? s.options.n_read_threads : std::min(s.options.n_read_threads, n_cores);
    std::vector<std::thread> helpers;
    for (size_t i = 1; i < std::min(tasks.size(), n_threads); i++) {
        helpers.emplace_back(work);
    }
    work();
    for (std::thread & helper : helpers) {
        helper.join();
    }

    status       result = status::ok();
    doomed_files damaged;
    for (const read_task & task : tasks) {
        if (task.result.is_ok()) {
            continue;
        }
        result = task.result;
        s.count.read_errors += task.result.is_io_error();
        if (!task.result.is_damaged()) {
            continue;
        }
        s.count.count_damage(task.result.reason());
        std::unique_lock<std::shared_mutex> guard(s.mu);
        s.note(task.path, task.result);
        if (task.is_anchor) {
            if (s.anchors.count({ m.name_space, m.at->k }) != 0) {
                s.forget_checkpoints_at(m.at->at, damaged);
                s.forget_anchor(m.at, damaged);
                damaged.back().aside = true;
            }
        } else if (const auto it = s.segments.find(task.owner); it != s.segments.end()) {
            s.forget_segment(*it->second, damaged);
            damaged.back().aside = true;
        }
        // A slow save must not hold up this request: if one is under way, it is left to it to move the file.
        s.deferred.insert(s.deferred.end(), damaged.begin(), damaged.end());
        damaged.clear();
    }
    if (!result.is_ok()) {
        s.count.load_failures++;
        std::unique_lock<std::mutex> writing(s.write_mu, std::try_to_lock);
        if (writing.owns_lock() && !s.options.inspect) {
            s.finish_deferred();
        }
        return result;
    }
    if (anchor.data != nullptr) {
        s.ram.put(object_kind::anchor, m.name_space, m.at->k, loaded.anchor, turn);
    }
    for (const read_task & task : tasks) {
        for (size_t i : task.runs) {
            s.ram.put(object_kind::page, m.name_space, m.runs[i].k, loaded.runs[i].data, turn);
        }
    }
    s.count.loads++;
    out = std::move(loaded);
    return status::ok();
}

void store::prefetch(const match & m) {
    store_state & s = *state;
    loaded_state  nothing;
    nothing.runs.resize(m.runs.size());
    for (const read_task & task : read_tasks(s, m, nothing)) {
        std::unique_ptr<readable_file> file;
        if (s.e.open_file(task.path, file).is_ok()) {
            file->will_need(task.offset, task.bytes);
        }
    }
}

void store::touch(const match & m) {
    store_state & s = *state;
    const int64_t now = s.e.now_ms();
    std::unique_lock<std::shared_mutex> guard(s.mu);
    const uint64_t turn = s.turn_of(m.name_space);
    const auto     it   = s.conversations.find({ m.name_space, m.conversation });
    checkpoint *   best = nullptr;
    segment *      previous = nullptr;
    for (const matched_run & r : m.runs) {
        segment * owner = r.node->owner;
        if (owner == previous) {
            continue;
        }
        previous = owner;
        owner->last_turn    = turn;
        owner->last_used_ms = now;
        owner->hits++;
        for (checkpoint * c : owner->ends) {
            const bool ours = it != s.conversations.end() && c->owner == it->second.get() && c->n_tokens <= m.n_tokens;
            if (ours && (best == nullptr || c->n_tokens > best->n_tokens)) {
                best = c;
            }
        }
    }
    if (m.at != nullptr) {
        m.at->last_turn    = turn;
        m.at->last_used_ms = now;
        m.at->hits++;
    }
    if (it != s.conversations.end() && m.kind == match_kind::conversation) {
        it->second->last_turn    = turn;
        it->second->last_used_ms = now;
        it->second->hits++;
        it->second->index_stale = true;
    }
    if (best != nullptr) {
        best->last_turn    = turn;
        best->last_used_ms = now;
        best->hits++;
    }
}

uint64_t save_request::bytes() const {
    uint64_t n = tokens.size() * sizeof(token);
    for (const save_run & r : runs) {
        n += r.data != nullptr ? r.data->size() : 0;
    }
    for (const save_anchor & a : anchors) {
        n += a.data != nullptr ? a.data->size() : 0;
    }
    return n;
}

save_request store::plan(const plan_request & request, const std::vector<save_run> & also) const {
    const store_state & s    = *state;
    const uint32_t      page = request.root.page_size;
    const uint32_t      n    = static_cast<uint32_t>(request.n_tokens);
    save_request        out;
    out.root     = request.root;
    out.n_static = std::min(request.n_static, n);
    out.tokens.assign(request.tokens, request.tokens + n);
    const key              root  = root_key(request.root);
    const std::vector<key> pages = page_keys(request.root, request.tokens, n);
    const auto key_at = [&](uint32_t p) {
        const key base = p < page ? root : pages[p / page - 1];
        return p % page == 0 ? base : next_key(base, request.tokens + p - p % page, p % page);
    };

    std::unordered_map<key, uint32_t, key_hash> coming;
    for (const save_run & r : also) {
        coming[r.k] = r.p1;
    }
    std::shared_lock<std::shared_mutex> guard(s.mu);
    const walk_result path = s.index.walk(user_key(request.root.name_space), root, request.tokens, n, n);
    const auto stored = [&](const key & k) { return s.index.find(k) != nullptr || coming.count(k) != 0; };

    // Where rows could be cut: at anchors, because state at that length needs rows up to there; at the end of the
    // static prefix, because the next conversation shares up to there; where something stored ends, to go on from it.
    std::vector<std::pair<uint32_t, bool>> cuts; // position, whether it must be there
    for (uint32_t a : request.anchors) {
        if (a > 0 && a <= n) {
            cuts.emplace_back(a, true);
            out.anchors.push_back({ a, key_at(a), nullptr });
        }
    }
    if (out.n_static > 0) {
        cuts.emplace_back(out.n_static, false);
    }
    for (const run * r : path.whole) {
        cuts.emplace_back(r->p1, false);
    }
    for (const auto & [k, p1] : coming) {
        if (p1 <= n && key_at(p1) == k) {
            cuts.emplace_back(p1, false);
        }
    }
    std::sort(cuts.begin(), cuts.end());

    size_t i_cut = 0;
    for (uint32_t start = 0; start < n; start += page) {
        const uint32_t end      = std::min(n, start + page);
        const key      end_key  = key_at(end);
        const bool     have_end = stored(end_key);
        uint32_t       from     = start;
        key            from_key = key_at(start);
        const auto     advance  = [&](uint32_t to, const key & to_key) {
            if (!stored(to_key)) {
                save_run r;
                r.p0     = from;
                r.p1     = to;
                r.k      = to_key;
                r.parent = from_key;
                out.runs.push_back(std::move(r));
            }
            from     = to;
            from_key = to_key;
        };
        for (; i_cut < cuts.size() && cuts[i_cut].first <= end; i_cut++) {
            const uint32_t at   = cuts[i_cut].first;
            bool           must = cuts[i_cut].second;
            for (; i_cut + 1 < cuts.size() && cuts[i_cut + 1].first == at; i_cut++) {
                must = must || cuts[i_cut + 1].second;
            }
            if (at <= from || at == end) {
                continue;
            }
            const key at_key = key_at(at);
            // Within a page that is stored whole, only an anchor is worth another cut.
            if (!have_end || must || stored(at_key)) {
                advance(at, at_key);
            }
        }
        if (!have_end) {
            advance(end, end_key);
        }
    }
    return out;
}

status store::save(const save_request & request) {
    store_state & s = *state;
    if (s.options.inspect) {
        return status::io_error(s.model_dir + ": opened for inspection only");
    }
    if (request.tokens.empty() || request.tokens.size() > format::max_tokens || request.root.page_size == 0 ||
        request.root.page_size > format::max_page_size || request.root.fingerprint != s.options.fingerprint) {
        return status::incompatible("a request of another model, or of no tokens");
    }
    std::lock_guard<std::mutex> writing(s.write_mu);
    const status result = s.save(request);
    if (result.is_ok()) {
        s.count.saves++;
    } else if (result.is_io_error() || result.is_corrupt()) {
        s.count.skipped_io_error++;
    } else if (result.is_no_space() && result.message().find("budget") == std::string::npos) {
        s.count.skipped_no_space++;
    }
    return result;
}

status store::remove_conversation(const key & name_space, uint64_t hash, uint64_t & bytes_freed) {
    store_state & s = *state;
    std::lock_guard<std::mutex> writing(s.write_mu);
    doomed_files files;
    {
        std::unique_lock<std::shared_mutex> guard(s.mu);
        const auto it = s.conversations.find({ name_space, hash });
        if (it == s.conversations.end()) {
            return status::miss("no conversation " + hex(hash));
        }
        s.forget_conversation(*it->second, files);
    }
    bytes_freed = s.remove_files(files);
    return status::ok();
}

status store::remove_name_space(const key & name_space, uint64_t & bytes_freed) {
    store_state & s = *state;
    std::lock_guard<std::mutex> writing(s.write_mu);
    s.finish_deferred();
    doomed_files files;
    {
        std::unique_lock<std::shared_mutex> guard(s.mu);
        std::vector<std::shared_ptr<segment>> mine;
        for (const auto & [id, seg] : s.segments) {
            if (seg->name_space == name_space) {
                mine.push_back(seg);
            }
        }
        for (const auto & seg : mine) {
            s.forget_segment(*seg, files);
        }
        std::vector<std::shared_ptr<anchor>> left;
        for (const auto & [id, a] : s.anchors) {
            if (a->name_space == name_space) {
                left.push_back(a);
            }
        }
        for (const auto & a : left) {
            s.forget_anchor(a, files);
        }
        s.name_spaces.erase(name_space);
    }
    s.ram.erase_name_space(name_space);
    bytes_freed = s.remove_files(files);
    if (name_space != key{}) {
        uint64_t rest = 0;
        const status removed = remove_tree(s.e, s.folder_of(name_space), &rest);
        if (!removed.is_ok() && !removed.is_miss()) {
            return removed;
        }
        s.discharge(rest);
        bytes_freed += rest;
    }
    return status::ok();
}

status store::gc(uint64_t & bytes_freed) {
    store_state & s = *state;
    std::lock_guard<std::mutex> writing(s.write_mu);
    const uint64_t before = s.own_bytes;
    s.finish_deferred();
    s.empty_quarantine();
    doomed_files files;
    std::vector<key> everyone;
    {
        std::unique_lock<std::shared_mutex> guard(s.mu);
        std::vector<std::shared_ptr<segment>> loose;
        for (const auto & [id, seg] : s.segments) {
            if (seg->n_attached == 0 && seg->pins == 0) {
                loose.push_back(seg);
            }
        }
        for (const auto & seg : loose) {
            s.forget_segment(*seg, files);
        }
        std::vector<std::shared_ptr<anchor>> stray;
        for (const auto & [id, a] : s.anchors) {
            if (a->at == nullptr && a->pins == 0) {
                stray.push_back(a);
            }
        }
        for (const auto & a : stray) {
            s.forget_anchor(a, files);
        }
        for (const auto & [name_space, ignored] : s.name_spaces) {
            everyone.push_back(name_space);
        }
    }
    s.remove_files(files);
    for (const key & name_space : everyone) {
        s.apply_limits(name_space, nullptr);
    }
    while (s.budget->used() > s.budget->limit() && s.evict_one()) {
    }
    s.flush_indexes();
    bytes_freed = before > s.own_bytes ? before - s.own_bytes : 0;
    return status::ok();
}

counters & store::count() {
    return state->count;
}

const store_options & store::options() const {
    return state->options;
}

} // namespace kvtier

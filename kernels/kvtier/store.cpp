#include "kvtier/store.h"

#include "kvtier/store_state.h"

#include <algorithm>

namespace kvtier {

store_state::store_state(env & e, const store_options & o)
    : e(e), options(o), model_dir(names::join(o.root_dir, hex(o.fingerprint))),
      budget(o.budget != nullptr ? o.budget : std::make_shared<disk_budget>(o.max_bytes)),
      ram(o.ram_bytes, o.windows) {}

// Another process may be removing the folder: it is made again then.
status store_state::take_lock() {
    constexpr int max_attempts = 10;
    status        s = status::ok();
    for (int i = 0; i < max_attempts; i++) {
        if (!options.inspect) {
            if (s = e.make_dir(model_dir); !s.is_ok()) {
                return s;
            }
        }
        s = e.lock_file(names::join(model_dir, names::lock_file), lock);
        if (!s.is_miss() || options.inspect) {
            return s;
        }
    }
    return s;
}

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
    }
    if (status s = state->take_lock(); !s.is_ok()) {
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
    const std::string name      = hex(options.fingerprint);
    uint64_t          root_size = disk_block;
    (void) e.folder_size(root, root_size).is_ok();
    state->budget->set_foreign(names::tag_file, root_size + disk_block); // the root itself and its tag
    state->budget->own(name);
    if (status s = state->recover(); !s.is_ok()) {
        state->budget->release(state->own_bytes);
        state->budget->disown(name);
        return s;
    }
    if (!options.inspect) {
        state->budget->join(state.get());
        std::lock_guard<std::mutex> writing(state->write_mu);
        (void) state->free_room(0);
    }
    out.reset(new store(std::move(state)));
    return status::ok();
}

store::~store() {
    state->budget->leave(state.get());
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
    status   result = s.save(request);
    uint64_t size   = 0;
    if (result.is_miss() && s.e.folder_size(s.model_dir, size).is_miss()) {
        // Its lock is gone with it: made anew, it could be another process's as well.
        result = status::io_error(s.model_dir + ": somebody removed this folder while it was in use; a restart makes it anew");
    }
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
    std::set<std::string> changed;
    bytes_freed = s.remove_files(files, &changed);
    return s.sync_removals(changed);
}

status store::remove_name_space(const key & name_space, uint64_t & bytes_freed) {
    store_state & s = *state;
    std::lock_guard<std::mutex> writing(s.write_mu);
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
        files.insert(files.end(), s.deferred.begin(), s.deferred.end()); // before the tree goes, with which they would count again
        s.deferred.clear();
    }
    s.ram.erase_name_space(name_space);
    std::set<std::string> changed = { s.model_dir };
    bytes_freed = s.remove_files(files, &changed);
    bytes_freed += s.empty_quarantine(); // damaged files do not tell whose they are
    status removed = status::ok();
    if (name_space != key{}) {
        const std::string folder = s.folder_of(name_space);
        uint64_t          rest   = 0;
        removed = remove_tree(s.e, folder, &rest);
        s.discharge_gone(folder);
        bytes_freed += rest;
        changed.insert(names::parent(folder));
    }
    const status synced = s.sync_removals(changed);
    return removed.is_ok() || removed.is_miss() ? synced : removed;
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
    (void) s.free_room(0);
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

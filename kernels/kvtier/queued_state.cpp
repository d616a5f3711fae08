#include "kvtier/queued_state.h"

#include "kvtier/catalog.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace kvtier {

namespace {

struct queued_run {
    const save_request * from;
    const save_run *     run;
};

using queued_runs = std::unordered_map<key, queued_run, key_hash>;

// What a save could restore of a prompt.
struct candidate {
    const save_request * from;
    const save_anchor *  anchor; // null: rows alone do
    key                  end;    // of the last run
    size_t               n_tokens;
    size_t               n_common;
};

// Whether its bytes are there, or may still come.
bool is_sound(const save_request & save) {
    return std::none_of(save.arriving.begin(), save.arriving.end(),
                        [](const auto & data) { return data->is_there() && !data->wait(); });
}

size_t n_tokens_in_common(const save_request & save, const lookup_request & asked) {
    const size_t n_both = std::min(asked.n_tokens, save.tokens.size());
    return static_cast<size_t>(std::mismatch(asked.tokens, asked.tokens + n_both, save.tokens.begin()).first - asked.tokens);
}

// Those that are of more use than n_stored tokens. Where it ends within a run of another save, that one is found by itself.
void add_candidates(const save_request & save, const lookup_request & asked, size_t n_common, size_t n_stored,
                    std::vector<candidate> & out) {
    const size_t n_useful = std::min(n_common, asked.limit);
    if (n_useful <= n_stored) {
        return;
    }
    if (!asked.folded) {
        for (const save_run & r : save.runs) {
            if (r.p0 < n_useful && n_useful <= r.p1) {
                out.push_back({ &save, nullptr, r.k, n_useful, n_common });
            }
        }
        return;
    }
    for (const save_anchor & a : save.anchors) {
        if (a.n_tokens > n_stored && a.n_tokens <= n_useful && a.data != nullptr) {
            out.push_back({ &save, &a, a.k, a.n_tokens, n_common });
        }
    }
}

// What is there by now may have failed since it was sound: whoever waits for it is told.
void note_arriving(match & m, const save_request & from) {
    for (const auto & data : from.arriving) {
        const bool is_had = data->is_there() && data->wait();
        if (!is_had && std::find(m.arriving.begin(), m.arriving.end(), data) == m.arriving.end()) {
            m.arriving.push_back(data);
        }
    }
}

// Its runs, from the last one back to the first that is stored. False: what they go on from is not there any more.
bool gather(const candidate & what, const queued_runs & queued, const store & stored, const key & name_space, match & out) {
    std::vector<queued_run> own;
    key                     end = what.end;
    for (auto it = queued.find(end); it != queued.end(); it = queued.find(end)) {
        own.push_back(it->second);
        end = it->second.run->parent;
    }
    const size_t n_before = own.empty() ? what.n_tokens : own.back().run->p0;
    if (n_before > 0) {
        out = stored.chain(name_space, end);
        if (out.n_tokens != n_before) {
            return false;
        }
    }
    for (auto it = own.rbegin(); it != own.rend(); ++it) {
        const save_run & r = *it->run;
        out.runs.push_back({ r.k, r.p0, r.p1, r.data->size(), nullptr, r.data });
        out.bytes_ram += r.data->size();
        note_arriving(out, *it->from);
    }
    out.n_tokens = what.n_tokens;
    out.source   = out.source == match_source::none ? match_source::hot : out.source;
    if (what.anchor != nullptr) {
        out.folded     = true;
        out.at         = make_unwritten(*what.from, *what.anchor, 0);
        out.bytes_ram += out.at->payload_size;
        note_arriving(out, *what.from);
    }
    return true;
}

miss_reason reason_of(const match & m, const candidate & what, size_t limit) {
    if (m.n_tokens == limit) {
        return miss_reason::none;
    }
    if (m.n_tokens < m.n_common) {
        return miss_reason::no_anchor;
    }
    return m.n_common < what.from->tokens.size() ? miss_reason::diverged : miss_reason::not_stored;
}

} // namespace

match find_with_queued(const lookup_request & request, const queued_saves & queue, store & stored) {
    match          found = stored.lookup(request);
    lookup_request asked = request;
    asked.limit = std::min(request.limit, request.n_tokens);
    if (queue.empty() || found.n_tokens >= asked.limit) {
        return found;
    }
    const key                         root = root_key(request.root);
    std::vector<const save_request *> own;
    std::vector<candidate>            candidates;
    for (const auto & save : queue) {
        if (root_key(save->root) == root && is_sound(*save)) {
            const size_t n_common = n_tokens_in_common(*save, asked);
            own.push_back(save.get());
            add_candidates(*save, asked, n_common, found.n_tokens, candidates);
            if (asked.folded && n_common > found.n_common) { // It is known, also where nothing of it can be gone on from.
                found.n_common = n_common;
                found.reason   = miss_reason::no_anchor;
            }
        }
    }
    if (candidates.empty()) {
        return found;
    }
    queued_runs runs;
    for (const save_request * save : own) {
        for (const save_run & r : save->runs) {
            if (r.data != nullptr) {
                runs.insert({ r.k, { save, &r } });
            }
        }
    }
    std::stable_sort(candidates.begin(), candidates.end(), [](const candidate & a, const candidate & b) { return a.n_tokens > b.n_tokens; });
    for (const candidate & what : candidates) {
        match with_queued;
        if (gather(what, runs, stored, found.name_space, with_queued)) {
            with_queued.name_space   = found.name_space;
            with_queued.conversation = found.conversation;
            with_queued.n_common     = std::max(found.n_common, what.n_common);
            const bool is_own        = what.from->conversation_name() == found.conversation || found.kind == match_kind::conversation;
            with_queued.kind         = is_own ? match_kind::conversation : match_kind::prefix;
            with_queued.reason       = reason_of(with_queued, what, asked.limit);
            stored.count().hits         += request.counted && found.n_tokens == 0;
            stored.count().tokens_found += request.counted ? with_queued.n_tokens - found.n_tokens : 0;
            return with_queued;
        }
    }
    return found;
}

} // namespace kvtier

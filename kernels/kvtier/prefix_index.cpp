#include "kvtier/prefix_index.h"

#include <algorithm>

namespace kvtier {

static size_t length(const run * r) {
    return r->p1 - r->p0;
}

static size_t common_prefix(const run * r, const token * tokens, size_t n_tokens) {
    const size_t n = std::min(length(r), n_tokens);
    return static_cast<size_t>(std::mismatch(r->tokens, r->tokens + n, tokens).first - r->tokens);
}

static bool token_order(const token * a, size_t n_a, const token * b, size_t n_b) {
    return std::lexicographical_compare(a, a + n_a, b, b + n_b);
}

static bool run_order(const run * a, const run * b) {
    return token_order(a->tokens, length(a), b->tokens, length(b));
}

// Tokens and runs of a segment lie behind each other, so what is compared next can be fetched from memory meanwhile.
static void fetch_next(const run * r) {
#if defined(__GNUC__)
    const char * next = reinterpret_cast<const char *>(r->tokens + length(r));
    for (size_t i = 0; i < std::min<size_t>(length(r) * sizeof(token), 1024); i += 64) {
        __builtin_prefetch(next + i); // past the end is allowed: it is a hint
    }
    __builtin_prefetch(reinterpret_cast<const char *>(r) + sizeof(run));
    __builtin_prefetch(reinterpret_cast<const char *>(r) + 2 * sizeof(run) - 1);
#else
    (void) r;
#endif
}

run_row & prefix_index::siblings(run & r) {
    return r.parent != nullptr ? r.parent->children : chains[{ r.owner->name_space, r.owner->root }];
}

std::shared_ptr<segment> make_segment(segment_head && head) {
    auto seg = std::make_shared<segment>();
    seg->id           = head.id;
    seg->name_space   = head.header.name_space;
    seg->root         = head.header.root;
    seg->file_size    = head.file_size;
    seg->flags        = head.header.flags;
    seg->last_used_ms = head.header.created_ms;
    seg->tokens       = std::move(head.tokens);
    seg->runs.resize(head.runs.size());
    const token * at = seg->tokens.data();
    for (size_t i = 0; i < head.runs.size(); i++) {
        const run_entry & from = head.runs[i];
        run &             to   = seg->runs[i];
        to.k          = from.k;
        to.parent_key = from.parent;
        to.owner      = seg.get();
        to.tokens     = at;
        to.p0         = from.p0;
        to.p1         = from.p1;
        to.offset     = from.payload_offset;
        to.size       = from.payload_size;
        to.checksum   = from.checksum;
        at += from.p1 - from.p0;
    }
    return seg;
}

void prefix_index::attach(const std::vector<std::shared_ptr<segment>> & segments) {
    size_t n_runs = 0;
    for (const auto & s : segments) {
        n_runs += s->runs.size();
    }
    std::vector<run *> pending;
    pending.reserve(n_runs);
    if (n_runs > by_key.size() / 2) {
        by_key.reserve(by_key.size() + n_runs);
    }
    for (const auto & s : segments) {
        for (run & r : s->runs) {
            pending.push_back(&r);
        }
    }
    // A parent starts before its child does.
    std::stable_sort(pending.begin(), pending.end(), [](const run * a, const run * b) { return a->p0 < b->p0; });

    for (run * r : pending) {
        run * parent = nullptr;
        if (r->p0 == 0) {
            if (r->parent_key != r->owner->root) {
                continue;
            }
        } else {
            parent = find(r->parent_key);
            if (parent == nullptr || parent->p1 != r->p0 || parent->owner->name_space != r->owner->name_space ||
                parent->owner->root != r->owner->root) {
                continue;
            }
        }
        if (!by_key.emplace(r->k, r).second) {
            continue;
        }
        r->parent   = parent;
        r->attached = true;
        r->owner->n_attached++;
        if (parent != nullptr && parent->owner != r->owner) {
            parent->owner->n_outer_children++;
        }
        run_row & row = siblings(*r);
        row.insert(std::upper_bound(row.begin(), row.end(), r, run_order), r);
    }
}

void prefix_index::detach(segment & s, std::vector<run *> & out, size_t first_run) {
    const size_t first = out.size();
    for (size_t i = first_run; i < s.runs.size(); i++) {
        if (s.runs[i].attached) {
            s.runs[i].attached = false;
            out.push_back(&s.runs[i]);
        }
    }
    // Descendants in other segments go too: without their past they mean nothing.
    for (size_t i = first; i < out.size(); i++) {
        for (run * child : out[i]->children) {
            if (child->attached) {
                child->attached = false;
                out.push_back(child);
            }
        }
    }
    for (size_t i = first; i < out.size(); i++) {
        run * r = out[i];
        by_key.erase(r->k);
        run_row & row = siblings(*r);
        // Equal tokens mean an equal key, so the place is unique; a search keeps rows of thousands affordable.
        const auto at = std::lower_bound(row.begin(), row.end(), r, run_order);
        const auto it = std::find(at, row.end(), r);
        if (it != row.end()) {
            row.erase(it);
        }
        r->owner->n_attached--;
        if (r->parent != nullptr && r->parent->owner != r->owner) {
            r->parent->owner->n_outer_children--;
        }
        if (r->parent == nullptr && row.empty()) {
            chains.erase({ r->owner->name_space, r->owner->root });
        }
    }
    for (size_t i = first; i < out.size(); i++) {
        out[i]->parent = nullptr;
        out[i]->children.clear();
    }
}

run * prefix_index::find(const key & k) const {
    const auto it = by_key.find(k);
    return it == by_key.end() ? nullptr : it->second;
}

walk_result prefix_index::walk(const key & name_space, const key & root, const token * tokens, size_t n_tokens,
                               size_t limit) const {
    walk_result out;
    const auto  start = chains.find({ name_space, root });
    if (start == chains.end()) {
        return out;
    }

    const auto better = [&out](run * r, size_t n_common) {
        if (n_common > out.n_common) {
            out.n_common = static_cast<uint32_t>(n_common);
            out.last     = r;
        }
    };

    // From these nodes the search goes on. There is usually one, and more where a page is stored whole and in parts.
    std::vector<run *> open = { nullptr };
    while (!open.empty()) {
        run * at = open.back();
        open.pop_back();
        const run_row & row  = at == nullptr ? start->second : at->children;
        const size_t    done = at == nullptr ? 0 : at->p1;
        const token *   rest = tokens + done;
        if (!row.empty()) {
            fetch_next(*row.begin());
        }

        // Neighbours in the sorted row share the longest prefix with the prompt. Children that the prompt contains
        // whole are prefixes of it and sort before it; each round looks for the longest one among those left.
        size_t left  = n_tokens - done;
        auto   end   = row.end();
        bool   first = true;
        while (left > 0) {
            const auto it = std::upper_bound(row.begin(), end, left, [rest](size_t n, const run * r) {
                return token_order(rest, n, r->tokens, length(r));
            });
            out.n_compared++;
            if (first && it != row.end()) {
                better(*it, done + common_prefix(*it, rest, left));
            }
            first = false;
            if (it == row.begin()) {
                break;
            }
            end = it - 1;
            run *        child = *end;
            const size_t n     = common_prefix(child, rest, left);
            better(child, done + n);
            if (n == length(child)) {
                open.push_back(child);
                out.whole.push_back(child);
                if (child->anchored != nullptr && child->p1 <= limit &&
                    (out.anchored == nullptr || child->p1 > out.anchored->p1)) {
                    out.anchored = child;
                }
                left = n - 1;
            } else {
                left = n;
            }
        }
    }
    return out;
}

} // namespace kvtier

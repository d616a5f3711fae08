// These functions cut a sequence into its parts and put it together again, for rows_test.cpp, in contexts of every cache
// type and layout and with tokens of no meaning.
#pragma once

#include "llama.h"
#include "state_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

using bytes = std::vector<uint8_t>;

inline int  n_prompt  = 230;
inline int  page_size = 64;
inline int  n_threads = 2;
inline int  n_fuzz    = 400;
inline bool verbose   = false;

constexpr int n_split = 32; // tokens per llama_decode: page sizes are multiples of it, so that splits agree
constexpr int n_next  = 16;

inline int n_failed = 0;

struct options {
    ggml_type type;
    bool      fa;
    bool      unified;
};

inline std::string name_of(const options & o) {
    return std::string(ggml_type_name(o.type)) + (o.fa ? " fa" : " no-fa") + (o.unified ? " unified" : " split");
}

struct ctx_deleter { void operator()(llama_context * c) const { llama_free(c); } };
using ctx_ptr = std::unique_ptr<llama_context, ctx_deleter>;

inline llama_model * model;

inline ctx_ptr make_ctx(const options & o, int n_seq = 4, int n_ctx_seq = 512) {
    llama_context_params p = llama_context_default_params();
    p.n_ctx           = n_ctx_seq*(o.unified ? 1 : n_seq);
    p.n_batch         = 64;
    p.n_ubatch        = 64;
    p.n_seq_max       = n_seq;
    p.n_threads       = n_threads;
    p.n_threads_batch = n_threads;
    p.type_k          = o.type;
    p.type_v          = o.fa ? o.type : GGML_TYPE_F16; // upstream wants flash attention for a quantised V
    p.kv_unified      = o.unified;
    p.swa_full        = false;
    p.flash_attn_type = o.fa ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return ctx_ptr(llama_init_from_model(model, p));
}

inline std::vector<llama_token> make_tokens(int n, int seed) {
    std::mt19937 rng(seed);
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<llama_token> res(n);
    for (auto & t : res) {
        t = rng() % n_vocab;
    }
    return res;
}

inline bool eval(llama_context * ctx, const std::vector<llama_token> & toks, int from, int to, llama_seq_id seq,
        int split = n_split) {
    for (int i = from; i < to; i += split) {
        const int n = std::min(split, to - i);
        llama_batch b = llama_batch_init(n, 0, 1);
        for (int j = 0; j < n; ++j) {
            b.token[j]     = toks[i + j];
            b.pos[j]       = i + j;
            b.n_seq_id[j]  = 1;
            b.seq_id[j][0] = seq;
            b.logits[j]    = j == n - 1;
        }
        b.n_tokens = n;
        const int rc = llama_decode(ctx, b);
        llama_batch_free(b);
        if (rc != 0) {
            return false;
        }
    }
    return true;
}

inline std::vector<float> go_on(llama_context * ctx, const std::vector<llama_token> & toks, llama_seq_id seq) {
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<float> res;
    for (int i = 0; i < n_next; ++i) {
        if (!eval(ctx, toks, n_prompt + i, n_prompt + i + 1, seq, 1)) {
            return {};
        }
        const float * l = llama_get_logits_ith(ctx, -1);
        res.insert(res.end(), l, l + n_vocab);
    }
    return res;
}

inline bool same(const std::vector<float> & a, const std::vector<float> & b) {
    return !a.empty() && a.size() == b.size() && memcmp(a.data(), b.data(), a.size()*sizeof(float)) == 0;
}

inline double apart(const std::vector<float> & a, const std::vector<float> & b) {
    double d = a.size() == b.size() && !a.empty() ? 0 : INFINITY;
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
        d = std::max(d, (double) std::fabs(a[i] - b[i]));
    }
    return d;
}

// Gives upstream's whole state, without the sequence id that it carries in its head.
inline bytes whole(llama_context * ctx, llama_seq_id seq, llama_state_seq_flags flags = 0) {
    bytes res(llama_state_seq_get_size_ext(ctx, seq, flags));
    res.resize(llama_state_seq_get_data_ext(ctx, res.data(), res.size(), seq, flags));
    memset(res.data() + 4, 0, 4);
    return res;
}

inline bytes rows(llama_context * ctx, llama_seq_id seq, int p0, int p1) {
    bytes res(llama_state_rows_size(ctx, seq, p0, p1));
    const llama_state_rows_room room = { p0, p1, res.data(), res.size() };
    res.resize(llama_state_rows_get(ctx, &room, 1, seq));
    return res;
}

inline bytes folded(llama_context * ctx, llama_seq_id seq, uint32_t flags) {
    bytes res(llama_state_folded_size(ctx, seq, flags));
    res.resize(llama_state_folded_get(ctx, res.data(), res.size(), seq, flags));
    return res;
}

inline bool append(llama_context * ctx, const std::vector<bytes> & pages, llama_seq_id seq) {
    std::vector<llama_state_rows_block> blocks;
    size_t size = 0;
    for (const bytes & b : pages) {
        blocks.push_back({ b.data(), b.size() });
        size += b.size();
    }
    static bool beside = false; // both ways in turn
    beside = !beside;
    if (beside) {
        return llama_state_taking_finish(llama_state_rows_append_begin(ctx, blocks.data(), blocks.size(), seq)) && size > 0;
    }
    return llama_state_rows_append(ctx, blocks.data(), blocks.size(), seq) == size && size > 0;
}

inline bool append(llama_context * ctx, const bytes & b, llama_seq_id seq) {
    return append(ctx, std::vector<bytes> { b }, seq);
}

inline bool set_folded(llama_context * ctx, const bytes & b, llama_seq_id seq, int n) {
    return llama_state_folded_set(ctx, b.data(), b.size(), seq, n) == b.size() && !b.empty();
}

struct saved {
    uint32_t parts = 0;

    std::vector<bytes> pages; // the last one is the tail
    bytes fold;               // with layout
    bytes fold_small;
    bytes fold_mid;           // at 2 pages
    bytes state;
    bytes state_after;
    std::vector<float> logits;
    bytes partial;
};

inline std::vector<bytes> cut(llama_context * ctx, llama_seq_id seq, int n) {
    std::vector<bytes> res;
    for (int p = 0; p < n; p += page_size) {
        res.push_back(rows(ctx, seq, p, std::min(p + page_size, n)));
    }
    return res;
}

inline bool put(llama_context * ctx, const saved & s, llama_seq_id seq, const bytes & fold, bool fold_first = false) {
    bool ok = true;
    if (fold_first && (s.parts & LLAMA_STATE_PART_FOLDED)) {
        ok = ok && set_folded(ctx, fold, seq, n_prompt);
    }
    if (s.parts & LLAMA_STATE_PART_ROWS) {
        ok = ok && append(ctx, s.pages, seq);
    }
    if (!fold_first && (s.parts & LLAMA_STATE_PART_FOLDED)) {
        ok = ok && set_folded(ctx, fold, seq, n_prompt);
    }
    return ok;
}

struct report {
    std::string line;
    void operator()(const char * what, bool ok) {
        line += std::string(" ") + what + (ok ? "" : ":FAIL");
        n_failed += !ok;
    }
    void note(const char * what, const std::string & value) {
        line += std::string(" (") + what + " " + value + ")";
    }
};

inline bool run_saved(const options & o, saved & s, const std::vector<llama_token> & toks) {
    auto a = make_ctx(o);
    if (!a) {
        return false;
    }
    s.parts = llama_state_parts(a.get());
    const int mid = 2*page_size;
    if (!eval(a.get(), toks, 0, mid, 0)) {
        return false;
    }
    if (s.parts & LLAMA_STATE_PART_FOLDED) {
        s.fold_mid = folded(a.get(), 0, LLAMA_STATE_FOLDED_LAYOUT);
    }
    if (!eval(a.get(), toks, mid, n_prompt, 0)) {
        return false;
    }
    if (s.parts & LLAMA_STATE_PART_ROWS) {
        s.pages = cut(a.get(), 0, n_prompt);
    }
    if (s.parts & LLAMA_STATE_PART_FOLDED) {
        s.fold       = folded(a.get(), 0, LLAMA_STATE_FOLDED_LAYOUT);
        s.fold_small = folded(a.get(), 0, 0);
        s.partial    = whole(a.get(), 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    }
    s.state       = whole(a.get(), 0);
    s.logits      = go_on(a.get(), toks, 0);
    s.state_after = whole(a.get(), 0);
    return true;
}

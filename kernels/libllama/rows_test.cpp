// Does a sequence that was cut into rows and a folded part, and put together again, go on as if nothing had happened?
//
//   rows_test MODEL.gguf [-n TOKENS] [-p PAGE] [-t THREADS] [-f FUZZED INPUTS]
//
// For every cache type and layout, in one process; state_test.cpp does it across two, through the store.

#include "llama.h"
#include "state_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

using bytes = std::vector<uint8_t>;

static int  n_prompt  = 230;
static int  page_size = 64;
static int  n_threads = 2;
static int  n_fuzz    = 400;
static bool verbose   = false;

static const int n_split = 32; // tokens per llama_decode: page sizes are multiples of it, so that splits agree
static const int n_next  = 16;

static int n_failed = 0;

struct options {
    ggml_type type;
    bool      fa;
    bool      unified;
};

static std::string name_of(const options & o) {
    return std::string(ggml_type_name(o.type)) + (o.fa ? " fa" : " no-fa") + (o.unified ? " unified" : " split");
}

struct ctx_deleter { void operator()(llama_context * c) const { llama_free(c); } };
using ctx_ptr = std::unique_ptr<llama_context, ctx_deleter>;

static llama_model * model;

static ctx_ptr make_ctx(const options & o, int n_seq = 4, int n_ctx_seq = 512) {
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

static std::vector<llama_token> make_tokens(int n, int seed) {
    std::mt19937 rng(seed);
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<llama_token> res(n);
    for (auto & t : res) {
        t = rng() % n_vocab;
    }
    return res;
}

static bool eval(llama_context * ctx, const std::vector<llama_token> & toks, int from, int to, llama_seq_id seq, int split = n_split) {
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

static std::vector<float> go_on(llama_context * ctx, const std::vector<llama_token> & toks, llama_seq_id seq) {
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

static bool same(const std::vector<float> & a, const std::vector<float> & b) {
    return !a.empty() && a.size() == b.size() && memcmp(a.data(), b.data(), a.size()*sizeof(float)) == 0;
}

static double apart(const std::vector<float> & a, const std::vector<float> & b) {
    double d = a.size() == b.size() && !a.empty() ? 0 : INFINITY;
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
        d = std::max(d, (double) std::fabs(a[i] - b[i]));
    }
    return d;
}

// upstream's whole state, without the sequence id that it carries in its head
static bytes whole(llama_context * ctx, llama_seq_id seq, llama_state_seq_flags flags = 0) {
    bytes res(llama_state_seq_get_size_ext(ctx, seq, flags));
    res.resize(llama_state_seq_get_data_ext(ctx, res.data(), res.size(), seq, flags));
    memset(res.data() + 4, 0, 4);
    return res;
}

static bytes rows(llama_context * ctx, llama_seq_id seq, int p0, int p1) {
    bytes res(llama_state_rows_size(ctx, seq, p0, p1));
    const llama_state_rows_room room = { p0, p1, res.data(), res.size() };
    res.resize(llama_state_rows_get(ctx, &room, 1, seq));
    return res;
}

static bytes folded(llama_context * ctx, llama_seq_id seq, uint32_t flags) {
    bytes res(llama_state_folded_size(ctx, seq, flags));
    res.resize(llama_state_folded_get(ctx, res.data(), res.size(), seq, flags));
    return res;
}

static bool append(llama_context * ctx, const std::vector<bytes> & pages, llama_seq_id seq) {
    std::vector<llama_state_rows_block> blocks;
    size_t size = 0;
    for (const bytes & b : pages) {
        blocks.push_back({ b.data(), b.size() });
        size += b.size();
    }
    return llama_state_rows_append(ctx, blocks.data(), blocks.size(), seq) == size && size > 0;
}

static bool append(llama_context * ctx, const bytes & b, llama_seq_id seq) {
    return append(ctx, std::vector<bytes> { b }, seq);
}

static bool set_folded(llama_context * ctx, const bytes & b, llama_seq_id seq, int n) {
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

static std::vector<bytes> cut(llama_context * ctx, llama_seq_id seq, int n) {
    std::vector<bytes> res;
    for (int p = 0; p < n; p += page_size) {
        res.push_back(rows(ctx, seq, p, std::min(p + page_size, n)));
    }
    return res;
}

static bool put(llama_context * ctx, const saved & s, llama_seq_id seq, const bytes & fold, bool fold_first = false) {
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

static bool run_saved(const options & o, saved & s, const std::vector<llama_token> & toks) {
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

// Upstream reads this memory's state into the live caches: a refusal leaves the sequence empty, not as it was.
static bool read_in_place() {
    char arch[64] = "";
    llama_model_meta_val_str(model, "general.architecture", arch, sizeof(arch));
    return strcmp(arch, "deepseek4") == 0;
}

// Every truncation and many flips. `put_back` makes the live state whole again after something was (rightly) accepted.
static bool fuzz(const bytes & good, size_t n_head, const std::function<bool(const bytes &)> & give,
        const std::function<bytes()> & state, const std::function<void()> & put_back) {
    std::mt19937 rng(7);
    const bytes before = state();
    int n_taken = 0;

    auto one = [&](const bytes & b, bool must_fail) {
        if (give(b)) {
            n_taken++;
            put_back();
            if (must_fail) {
                return false;
            }
        }
        return true;
    };
    std::vector<size_t> cuts;
    for (size_t n = 0; n < good.size(); n += n < 2*n_head ? 1 : std::max<size_t>(1, good.size()/n_fuzz)) {
        cuts.push_back(n);
    }
    for (const size_t n : cuts) {
        // an exact copy on the heap, so that a sanitizer sees one byte too many
        if (!one(bytes(good.begin(), good.begin() + n), true)) {
            printf("truncation to %zu of %zu was accepted\n", n, good.size());
            return false;
        }
        if (n % 16 == 0 && state() != before) {
            printf("truncation to %zu changed the state\n", n);
            return false;
        }
    }
    for (int i = 1; i < 20; ++i) {
        bytes b = good;
        b.resize(b.size() + i);
        if (!one(b, true)) {
            return false;
        }
    }
    for (int i = 0; i < n_fuzz; ++i) {
        bytes b = good;
        const int n = 1 + rng() % 3;
        for (int j = 0; j < n; ++j) {
            const size_t at = rng() % (i % 4 == 3 ? b.size() : std::min(n_head, b.size()));
            b[at] = i % 2 ? (uint8_t) rng() : (uint8_t) (b[at] ^ (1u << rng() % 8));
        }
        one(b, false);
        if (i % 16 == 0 && state() != before) {
            printf("flip %d changed the state\n", i);
            return false;
        }
    }
    if (verbose) {
        printf("fuzz: %d of %d flips hit data only\n", n_taken, n_fuzz);
    }
    return state() == before;
}

static void test(const options & o) {
    const auto toks  = make_tokens(n_prompt + n_next, 1);
    const auto toks2 = make_tokens(std::max(n_prompt, 256), 2);

    report r;
    saved  s;
    if (!run_saved(o, s, toks)) {
        printf("%-22s not possible with this model\n", name_of(o).c_str());
        return;
    }
    const bool has_rows = s.parts & LLAMA_STATE_PART_ROWS;
    const bool has_fold = s.parts & LLAMA_STATE_PART_FOLDED;
    if (s.parts == 0) {
        auto a = make_ctx(o);
        eval(a.get(), toks, 0, n_prompt, 0);
        r("refuses", rows(a.get(), 0, 0, page_size).empty() && folded(a.get(), 0, 0).empty() &&
                llama_state_rows_count(a.get(), 0) == 0 && !append(a.get(), bytes(4096), 0));
        printf("%-22s whole state only:%s\n", name_of(o).c_str(), r.line.c_str());
        return;
    }

    for (const bool fold_first : { false, true }) {
        auto b = make_ctx(o);
        const bool ok = put(b.get(), s, 0, s.fold, fold_first);
        r(fold_first ? "fold-first" : "put", ok);
        r("bytes", whole(b.get(), 0) == s.state);
        const auto l = go_on(b.get(), toks, 0);
        r("logits", same(l, s.logits));
        r("after", whole(b.get(), 0) == s.state_after);
        if (ok && !same(l, s.logits)) {
            r.note("apart", std::to_string(apart(l, s.logits)));
        }
        if (!has_rows || !has_fold) {
            break;
        }
    }

    if (has_fold) {
        { // window only
            auto b = make_ctx(o);
            r("small", put(b.get(), s, 0, s.fold_small) && whole(b.get(), 0) == s.state);
            const auto l = go_on(b.get(), toks, 0);
            r.note("small logits", same(l, s.logits) ? "equal" : "apart " + std::to_string(apart(l, s.logits)));
        }
        { // upstream's flag
            auto b = make_ctx(o);
            saved rows_only = s;
            rows_only.parts &= ~LLAMA_STATE_PART_FOLDED;
            put(b.get(), rows_only, 0, {});
            bytes p = s.partial;
            const bool ok = llama_state_seq_set_data_ext(b.get(), p.data(), p.size(), 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) != 0;
            const bool eq = ok && whole(b.get(), 0) == s.state;
            const auto l = go_on(b.get(), toks, 0);
            r.note("upstream partial", !ok ? "refused" : !eq ? "other bytes" : same(l, s.logits) ? "equal" : "same bytes, logits apart " + std::to_string(apart(l, s.logits)));
        }
        { // any other length
            auto b = make_ctx(o);
            bool refused = true;
            for (int n = 0; n <= n_prompt + 3; ++n) {
                refused = refused && (n == n_prompt || !set_folded(b.get(), s.fold, 0, n));
            }
            r("other-length", refused);
        }
    }

    { // a prefix, and the rest evaluated
        auto b = make_ctx(o);
        bool ok = true;
        const int mid = 2*page_size;
        for (int i = 0; has_rows && i < 2; ++i) {
            ok = ok && append(b.get(), s.pages[i], 0);
        }
        if (has_fold) {
            ok = ok && set_folded(b.get(), s.fold_mid, 0, mid);
        }
        ok = ok && eval(b.get(), toks, mid, n_prompt, 0);
        r("prefix", ok && whole(b.get(), 0) == s.state && same(go_on(b.get(), toks, 0), s.logits));
    }

    { // another sequence, in company, in a context of another shape
        options o2 = o;
        o2.unified = !o.unified;
        for (const options & oo : { o, o2 }) {
            auto b = make_ctx(oo, 4, 1024);
            bool ok = eval(b.get(), toks2, 0, 75, 0, 15) && eval(b.get(), toks2, 0, 20, 3);
            const bytes w0 = whole(b.get(), 0);
            const bytes w3 = whole(b.get(), 3);
            ok = ok && put(b.get(), s, 2, s.fold);
            for (size_t i = 0; i < s.pages.size(); ++i) {
                ok = ok && rows(b.get(), 2, i*page_size, std::min<int>((i + 1)*page_size, n_prompt)) == s.pages[i];
            }
            ok = ok && (!has_rows || llama_state_rows_count(b.get(), 2) == n_prompt);
            ok = ok && whole(b.get(), 0) == w0 && whole(b.get(), 3) == w3;
            const double d = apart(go_on(b.get(), toks, 2), s.logits);
            r(oo.unified == o.unified ? "company" : "reshaped", ok && d < 0.25);
            if (verbose) {
                r.note("apart", std::to_string(d));
            }
        }
    }

    if (has_rows) { // cells in pieces and out of order, on both sides
        auto d = make_ctx(o);
        bool ok = true;
        // 0 and 1 take turns, 1 leaves, 2 fills the holes and some more, 0 is taken out and put back around it
        for (int i = 0; ok && i < 140; i += 7) {
            ok = eval(d.get(), toks, i, i + 7, 0, 7) && eval(d.get(), toks2, i, std::min(i + 7, 100), 1, 7);
        }
        llama_memory_seq_rm(llama_get_memory(d.get()), 1, -1, -1);
        ok = ok && eval(d.get(), toks2, 0, 33, 2, 3);
        ok = ok && eval(d.get(), toks, 140, n_prompt, 0, 5);
        const auto pages = cut(d.get(), 0, n_prompt);
        const bytes fold = has_fold ? folded(d.get(), 0, LLAMA_STATE_FOLDED_LAYOUT) : bytes();
        const bytes w2 = whole(d.get(), 2);
        const auto clean = pages;
        saved t = s;
        t.pages = pages;
        // into an empty context: the same rows again
        auto e = make_ctx(o);
        ok = ok && put(e.get(), t, 0, fold) && cut(e.get(), 0, n_prompt) == pages;
        // into the holes
        llama_memory_seq_rm(llama_get_memory(d.get()), 0, -1, -1);
        ok = ok && put(d.get(), s, 0, s.fold) && cut(d.get(), 0, n_prompt) == s.pages && whole(d.get(), 2) == w2;
        ok = ok && apart(go_on(d.get(), toks, 0), s.logits) < 0.25;
        r("pieces", ok);

        // what is not the next page is refused
        auto f = make_ctx(o);
        ok = append(f.get(), s.pages[0], 0);
        const bytes w = whole(f.get(), 0);
        ok = ok && !append(f.get(), s.pages[0], 0) && !append(f.get(), s.pages[2], 0) && !append(f.get(), s.pages[1], -1) &&
             !append(f.get(), s.pages[1], 4) && !append(f.get(), s.pages[1], 1) && !append(f.get(), bytes(), 0);
        // several are taken together or not at all
        bytes cut_off = s.pages[2];
        cut_off.pop_back();
        ok = ok && !append(f.get(), { s.pages[1], s.pages[1] }, 0) && !append(f.get(), { s.pages[1], s.pages[3] }, 0) &&
             !append(f.get(), { s.pages[1], cut_off }, 0) && !append(f.get(), { s.pages[1], bytes() }, 0) &&
             !append(f.get(), std::vector<bytes>(), 0);
        ok = ok && rows(f.get(), 0, 0, page_size + 1).empty() && rows(f.get(), 0, -1, 2).empty() && rows(f.get(), 0, 2, 2).empty() &&
             rows(f.get(), 0, 5, 3).empty() && rows(f.get(), 9, 0, 1).empty();
        for (options oo : { options { o.type == GGML_TYPE_F16 ? GGML_TYPE_Q8_0 : GGML_TYPE_F16, o.fa, o.unified }, options { o.type, !o.fa, o.unified } }) {
            if (auto g = make_ctx(oo)) {
                // some models decide about V themselves: bytes of the same shape may be taken
                if (append(g.get(), s.pages[0], 0)) {
                    ok = ok && rows(g.get(), 0, 0, page_size) == s.pages[0];
                }
            }
        }
        ok = ok && whole(f.get(), 0) == w;
        // a full cache refuses
        auto h = make_ctx(o, 2, 256);
        if (o.unified) {
            ok = ok && eval(h.get(), toks2, 0, 256 - page_size/2, 1);
            ok = ok && !append(h.get(), s.pages[0], 0) && llama_state_rows_count(h.get(), 0) == 0;
            ok = ok && append(h.get(), rows(f.get(), 0, 0, page_size/2), 0);
        }
        // a shift that has not happened yet
        if (llama_memory_can_shift(llama_get_memory(f.get())) && !has_fold) {
            llama_memory_seq_add(llama_get_memory(f.get()), 0, 10, 20, 1);
            ok = ok && rows(f.get(), 0, 0, 8).empty() && !append(f.get(), s.pages[1], 1);
        }
        r("refusals", ok);
    }

    { // malformed
        auto b = make_ctx(o);
        eval(b.get(), toks2, 0, 20, 1);
        auto state = [&] {
            bytes w = whole(b.get(), 0);
            const bytes w1 = whole(b.get(), 1);
            w.insert(w.end(), w1.begin(), w1.end());
            return w;
        };
        if (has_rows) {
            auto put_back = [&] {
                llama_memory_seq_rm(llama_get_memory(b.get()), 0, -1, -1);
                append(b.get(), s.pages[0], 0);
            };
            put_back();
            const size_t n_ext = s.pages[1][8] & 1 ? 12*page_size : 0;
            r("fuzz", fuzz(s.pages[1], 20 + n_ext + 20, [&](const bytes & x) { return append(b.get(), x, 0); }, state, put_back));
        }
        if (has_fold) {
            auto put_back = [&] {
                llama_memory_seq_rm(llama_get_memory(b.get()), 0, -1, -1);
                put(b.get(), s, 0, s.fold);
            };
            put_back();
            r("fuzz-fold", fuzz(s.fold, 400, [&](const bytes & x) {
                const bool taken = set_folded(b.get(), x, 0, n_prompt);
                if (!taken && read_in_place() && llama_memory_seq_pos_max(llama_get_memory(b.get()), 0) == -1) {
                    put_back();
                }
                return taken;
            }, state, put_back));
        }
        b.reset();
    }

    size_t n_rows = 0;
    for (const auto & p : s.pages) {
        n_rows += p.size();
    }
    printf("%-22s%s | rows %zu fold %zu small %zu partial %zu whole %zu\n", name_of(o).c_str(), r.line.c_str(),
            n_rows, s.fold.size(), s.fold_small.size(), s.partial.size(), s.state.size());
    fflush(stdout);
}

int main(int argc, char ** argv) {
    std::string path;
    for (int i = 1; i < argc; ++i) {
        const std::string a = argv[i];
        if      (a == "-n") n_prompt  = atoi(argv[++i]);
        else if (a == "-p") page_size = atoi(argv[++i]);
        else if (a == "-t") n_threads = atoi(argv[++i]);
        else if (a == "-f") n_fuzz    = atoi(argv[++i]);
        else if (a == "-v") verbose   = true;
        else path = a;
    }
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (verbose && level >= GGML_LOG_LEVEL_WARN) {
            fputs(text, stderr);
        }
    }, nullptr);
    llama_backend_init();
    model = llama_model_load_from_file(path.c_str(), llama_model_default_params());
    if (!model) {
        fprintf(stderr, "cannot load %s\n", path.c_str());
        return 2;
    }
    for (const ggml_type type : { GGML_TYPE_F16, GGML_TYPE_Q8_0 }) {
        for (const bool fa : { true, false }) {
            for (const bool unified : { true, false }) {
                test({ type, fa, unified });
            }
        }
    }
    llama_model_free(model);
    printf("%s: %d failed\n", path.c_str(), n_failed);
    return n_failed ? 1 : 0;
}

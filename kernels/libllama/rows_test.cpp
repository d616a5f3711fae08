// Does a sequence that was cut into rows and a folded part, and put together again, go on as if nothing had happened?
//
//   rows_test MODEL.gguf [-n TOKENS] [-p PAGE] [-t THREADS] [-f FUZZED INPUTS]
//
// It is asked for every cache type and layout, in one process; state_test.cpp asks it across two, through the store.

#include "rows_testing.h"
#include "state_copies.h"

#include "ggml-cpp.h"

#include <cstdlib>
#include <functional>
#include <numeric>

// Upstream reads this memory's state into the live caches: a refusal leaves the sequence empty, not as it was.
static bool read_in_place() {
    char arch[64] = "";
    llama_model_meta_val_str(model, "general.architecture", arch, sizeof(arch));
    return strcmp(arch, "deepseek4") == 0;
}

// Tries every truncation and many flips. `put_back` makes the live state whole again after something was (rightly) accepted.
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
        // It is an exact copy on the heap, so that a sanitizer sees one byte too many.
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

// What the cases share: a sequence that was evaluated and saved in one context, and the words it was made of.
struct fixture {
    options                  o;
    std::vector<llama_token> toks  = make_tokens(n_prompt + n_next, 1);
    std::vector<llama_token> toks2 = make_tokens(std::max(n_prompt, 256), 2); // of the company
    saved                    s;

    bool has_rows() const { return s.parts & LLAMA_STATE_PART_ROWS; }
    bool has_fold() const { return s.parts & LLAMA_STATE_PART_FOLDED; }
};

static void a_model_with_whole_state_only_refuses_parts(const fixture & f, report & r) {
    auto a = make_ctx(f.o);
    eval(a.get(), f.toks, 0, n_prompt, 0);
    r("refuses", rows(a.get(), 0, 0, page_size).empty() && folded(a.get(), 0, 0).empty() &&
            llama_state_rows_count(a.get(), 0) == 0 && !append(a.get(), bytes(4096), 0));
}

static void a_sequence_put_together_goes_on_bit_by_bit(const fixture & f, report & r) {
    for (const bool fold_first : { false, true }) {
        auto b = make_ctx(f.o);
        const bool ok = put(b.get(), f.s, 0, f.s.fold, fold_first);
        r(fold_first ? "fold-first" : "put", ok);
        r("bytes", whole(b.get(), 0) == f.s.state);
        const auto l = go_on(b.get(), f.toks, 0);
        r("logits", same(l, f.s.logits));
        r("after", whole(b.get(), 0) == f.s.state_after);
        if (ok && !same(l, f.s.logits)) {
            r.note("apart", std::to_string(apart(l, f.s.logits)));
        }
        if (!f.has_rows() || !f.has_fold()) {
            break;
        }
    }
}

static void a_folded_part_without_its_layout_gives_the_same_state(const fixture & f, report & r) {
    auto b = make_ctx(f.o);
    r("small", put(b.get(), f.s, 0, f.s.fold_small) && whole(b.get(), 0) == f.s.state);
    const auto l = go_on(b.get(), f.toks, 0);
    r.note("small logits", same(l, f.s.logits) ? "equal" : "apart " + std::to_string(apart(l, f.s.logits)));
}

// Upstream's flag is no promise of ours: what it gives is noted, not checked.
static void note_upstreams_partial_state(const fixture & f, report & r) {
    auto b = make_ctx(f.o);
    saved rows_only = f.s;
    rows_only.parts &= ~LLAMA_STATE_PART_FOLDED;
    put(b.get(), rows_only, 0, {});
    bytes p = f.s.partial;
    const bool ok = llama_state_seq_set_data_ext(b.get(), p.data(), p.size(), 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) != 0;
    const bool eq = ok && whole(b.get(), 0) == f.s.state;
    const auto l = go_on(b.get(), f.toks, 0);
    r.note("upstream partial", !ok ? "refused" : !eq ? "other bytes" : same(l, f.s.logits) ? "equal" :
            "same bytes, logits apart " + std::to_string(apart(l, f.s.logits)));
}

static void a_folded_part_is_refused_at_any_other_length(const fixture & f, report & r) {
    auto b = make_ctx(f.o);
    bool refused = true;
    for (int n = 0; n <= n_prompt + 3; ++n) {
        refused = refused && (n == n_prompt || !set_folded(b.get(), f.s.fold, 0, n));
    }
    r("other-length", refused);
}

static void a_prefix_goes_on_with_the_rest_evaluated(const fixture & f, report & r) {
    auto b = make_ctx(f.o);
    bool ok = true;
    const int mid = 2*page_size;
    for (int i = 0; f.has_rows() && i < 2; ++i) {
        ok = ok && append(b.get(), f.s.pages[i], 0);
    }
    if (f.has_fold()) {
        ok = ok && set_folded(b.get(), f.s.fold_mid, 0, mid);
    }
    ok = ok && eval(b.get(), f.toks, mid, n_prompt, 0);
    r("prefix", ok && whole(b.get(), 0) == f.s.state && same(go_on(b.get(), f.toks, 0), f.s.logits));
}

// The rows so far stay where they are; what came after them, and the folded part, go.
static void rows_that_are_kept_go_on_with_those_that_follow(const fixture & f, report & r) {
    auto b = make_ctx(f.o);
    const int mid = 2*page_size;
    bool ok = put(b.get(), f.s, 0, f.s.fold) && go_on(b.get(), f.toks, 0).size() > 0;
    ok = ok && !llama_state_rows_keep(b.get(), 0, n_prompt + n_next + 1) && !llama_state_rows_keep(b.get(), 1, mid);
    ok = ok && llama_state_rows_keep(b.get(), 0, mid) && llama_state_rows_count(b.get(), 0) == mid;
    ok = ok && append(b.get(), std::vector<bytes>(f.s.pages.begin() + 2, f.s.pages.end()), 0);
    ok = ok && (!f.has_fold() || set_folded(b.get(), f.s.fold, 0, n_prompt));
    r("kept", ok && whole(b.get(), 0) == f.s.state && same(go_on(b.get(), f.toks, 0), f.s.logits));
}

// The folded part of an earlier length, put back under rows that reach further, which go afterwards.
static void a_sequence_goes_back_in_place(const fixture & f, report & r) {
    auto b = make_ctx(f.o);
    const int mid = 2*page_size;
    bool ok = put(b.get(), f.s, 0, f.s.fold) && go_on(b.get(), f.toks, 0).size() > 0;
    ok = ok && set_folded(b.get(), f.s.fold_mid, 0, mid) && llama_memory_seq_rm(llama_get_memory(b.get()), 0, mid, -1);
    ok = ok && eval(b.get(), f.toks, mid, n_prompt, 0);
    r("back", ok && whole(b.get(), 0) == f.s.state && same(go_on(b.get(), f.toks, 0), f.s.logits));
}

// It is put into another sequence, beside others, also in a context of another shape.
static void company_and_another_shape_of_context_change_nothing(const fixture & f, report & r) {
    for (const bool reshaped : { false, true }) {
        options o = f.o;
        o.unified = o.unified != reshaped;
        auto b = make_ctx(o, 4, 1024);
        bool ok = eval(b.get(), f.toks2, 0, 75, 0, 15) && eval(b.get(), f.toks2, 0, 20, 3);
        const bytes w0 = whole(b.get(), 0);
        const bytes w3 = whole(b.get(), 3);
        ok = ok && put(b.get(), f.s, 2, f.s.fold);
        for (size_t i = 0; i < f.s.pages.size(); ++i) {
            ok = ok && rows(b.get(), 2, i*page_size, std::min<int>((i + 1)*page_size, n_prompt)) == f.s.pages[i];
        }
        ok = ok && (!f.has_rows() || llama_state_rows_count(b.get(), 2) == n_prompt);
        ok = ok && whole(b.get(), 0) == w0 && whole(b.get(), 3) == w3;
        const double d = apart(go_on(b.get(), f.toks, 2), f.s.logits);
        r(reshaped ? "reshaped" : "company", ok && d < 0.25);
        if (verbose) {
            r.note("apart", std::to_string(d));
        }
    }
}

static void cells_in_pieces_and_out_of_order_are_cut_and_filled(const fixture & f, report & r) {
    auto d = make_ctx(f.o);
    bool ok = true;
    // 0 and 1 take turns, 1 leaves, 2 fills the holes and some more, 0 is taken out and put back around it.
    for (int i = 0; ok && i < 140; i += 7) {
        ok = eval(d.get(), f.toks, i, i + 7, 0, 7) && eval(d.get(), f.toks2, i, std::min(i + 7, 100), 1, 7);
    }
    llama_memory_seq_rm(llama_get_memory(d.get()), 1, -1, -1);
    ok = ok && eval(d.get(), f.toks2, 0, 33, 2, 3);
    ok = ok && eval(d.get(), f.toks, 140, n_prompt, 0, 5);
    saved t = f.s;
    t.pages = cut(d.get(), 0, n_prompt);
    const bytes fold = f.has_fold() ? folded(d.get(), 0, LLAMA_STATE_FOLDED_LAYOUT) : bytes();
    const bytes w2 = whole(d.get(), 2);
    // An empty context gives the same rows again.
    auto e = make_ctx(f.o);
    ok = ok && put(e.get(), t, 0, fold) && cut(e.get(), 0, n_prompt) == t.pages;
    // So do the holes.
    llama_memory_seq_rm(llama_get_memory(d.get()), 0, -1, -1);
    ok = ok && put(d.get(), f.s, 0, f.s.fold) && cut(d.get(), 0, n_prompt) == f.s.pages && whole(d.get(), 2) == w2;
    ok = ok && apart(go_on(d.get(), f.toks, 0), f.s.logits) < 0.25;
    r("pieces", ok);
}

static void what_is_not_the_next_page_is_refused(const fixture & f, report & r) {
    const std::vector<bytes> & pages = f.s.pages;
    auto c = make_ctx(f.o);
    bool ok = append(c.get(), pages[0], 0);
    const bytes w = whole(c.get(), 0);
    ok = ok && !append(c.get(), pages[0], 0) && !append(c.get(), pages[2], 0) && !append(c.get(), pages[1], -1) &&
         !append(c.get(), pages[1], 4) && !append(c.get(), pages[1], 1) && !append(c.get(), bytes(), 0);
    r("next-page", ok && whole(c.get(), 0) == w);
}

static void several_pages_are_taken_together_or_not_at_all(const fixture & f, report & r) {
    const std::vector<bytes> & pages = f.s.pages;
    auto c = make_ctx(f.o);
    bool ok = append(c.get(), pages[0], 0);
    const bytes w = whole(c.get(), 0);
    bytes cut_off = pages[2];
    cut_off.pop_back();
    ok = ok && !append(c.get(), { pages[1], pages[1] }, 0) && !append(c.get(), { pages[1], pages[3] }, 0) &&
         !append(c.get(), { pages[1], cut_off }, 0) && !append(c.get(), { pages[1], bytes() }, 0) &&
         !append(c.get(), std::vector<bytes>(), 0);
    r("together", ok && whole(c.get(), 0) == w);
}

static void rows_that_are_not_there_are_not_given(const fixture & f, report & r) {
    auto c = make_ctx(f.o);
    bool ok = append(c.get(), f.s.pages[0], 0);
    const bytes w = whole(c.get(), 0);
    ok = ok && rows(c.get(), 0, 0, page_size + 1).empty() && rows(c.get(), 0, -1, 2).empty() && rows(c.get(), 0, 2, 2).empty() &&
         rows(c.get(), 0, 5, 3).empty() && rows(c.get(), 9, 0, 1).empty();
    r("absent", ok && whole(c.get(), 0) == w);
}

// Some models decide about V themselves: bytes of the same shape may be taken, and then they are the same rows.
static void a_page_of_another_type_is_refused_or_taken_as_it_is(const fixture & f, report & r) {
    const options other_type = { f.o.type == GGML_TYPE_F16 ? GGML_TYPE_Q8_0 : GGML_TYPE_F16, f.o.fa, f.o.unified };
    const options other_fa   = { f.o.type, !f.o.fa, f.o.unified };
    bool ok = true;
    for (const options & o : { other_type, other_fa }) {
        auto g = make_ctx(o);
        if (g && append(g.get(), f.s.pages[0], 0)) {
            ok = ok && rows(g.get(), 0, 0, page_size) == f.s.pages[0];
        }
    }
    r("other-type", ok);
}

static void a_full_cache_refuses_a_page_and_takes_what_fits(const fixture & f, report & r) {
    auto c = make_ctx(f.o);
    auto h = make_ctx(f.o, 2, 256);
    bool ok = append(c.get(), f.s.pages[0], 0) && eval(h.get(), f.toks2, 0, 256 - page_size/2, 1);
    ok = ok && !append(h.get(), f.s.pages[0], 0) && llama_state_rows_count(h.get(), 0) == 0;
    ok = ok && append(h.get(), rows(c.get(), 0, 0, page_size/2), 0);
    r("full", ok);
}

static void a_shift_that_has_not_happened_yet_refuses(const fixture & f, report & r) {
    auto c = make_ctx(f.o);
    bool ok = append(c.get(), f.s.pages[0], 0);
    if (llama_memory_can_shift(llama_get_memory(c.get())) && !f.has_fold()) {
        llama_memory_seq_add(llama_get_memory(c.get()), 0, 10, 20, 1);
        ok = ok && rows(c.get(), 0, 0, 8).empty() && !append(c.get(), f.s.pages[1], 1);
    }
    r("shift", ok);
}

// Gives the state of the sequence that malformed input is given to, and of the one beside it.
static bytes both_states(llama_context * ctx) {
    bytes w = whole(ctx, 0);
    const bytes w1 = whole(ctx, 1);
    w.insert(w.end(), w1.begin(), w1.end());
    return w;
}

static void malformed_rows_leave_the_state_as_it_is(const fixture & f, report & r) {
    auto b = make_ctx(f.o);
    eval(b.get(), f.toks2, 0, 20, 1);
    auto put_back = [&] {
        llama_memory_seq_rm(llama_get_memory(b.get()), 0, -1, -1);
        append(b.get(), f.s.pages[0], 0);
    };
    put_back();
    const size_t n_ext = f.s.pages[1][8] & 1 ? 12*page_size : 0;
    r("fuzz", fuzz(f.s.pages[1], 20 + n_ext + 20, [&](const bytes & x) { return append(b.get(), x, 0); },
            [&] { return both_states(b.get()); }, put_back));
}

static void a_malformed_folded_part_leaves_the_state_as_it_is(const fixture & f, report & r) {
    auto b = make_ctx(f.o);
    eval(b.get(), f.toks2, 0, 20, 1);
    auto put_back = [&] {
        llama_memory_seq_rm(llama_get_memory(b.get()), 0, -1, -1);
        put(b.get(), f.s, 0, f.s.fold);
    };
    put_back();
    r("fuzz-fold", fuzz(f.s.fold, 400, [&](const bytes & x) {
        const bool taken = set_folded(b.get(), x, 0, n_prompt);
        if (!taken && read_in_place() && llama_memory_seq_pos_max(llama_get_memory(b.get()), 0) == -1) {
            put_back();
        }
        return taken;
    }, [&] { return both_states(b.get()); }, put_back));
}

// llama.cpp leaves such views behind where K or V of a layer is larger than one of the device's buffers.
static void a_view_without_an_address_is_found_in_what_it_views(report & r) {
    const ggml_context_ptr ctx(ggml_init({ 2*ggml_tensor_overhead(), nullptr, true }));
    ggml_tensor * viewed = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I8, 64);
    ggml_tensor * view   = ggml_view_1d(ctx.get(), viewed, 16, 32);
    uint8_t in[64];
    std::iota(in, in + sizeof(in), 0);
    const ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), sizeof(in)));
    ggml_backend_tensor_alloc(buffer.get(), viewed, ggml_backend_buffer_get_base(buffer.get()));
    ggml_backend_tensor_set(viewed, in, 0, sizeof(in));

    uint8_t            out[8] = {};
    state_rows::copies noted;
    noted.note(view, 4, out, sizeof(out));
    noted.make(state_rows::copies::TO_HOST, [](ggml_backend_dev_t) { return nullptr; }, 1);
    r("view", view->data == nullptr && memcmp(out, in + 36, sizeof(out)) == 0);
}

static void test(const options & o) {
    report  r;
    fixture f;
    f.o = o;
    if (!run_saved(o, f.s, f.toks)) {
        printf("%-22s not possible with this model\n", name_of(o).c_str());
        return;
    }
    if (f.s.parts == 0) {
        a_model_with_whole_state_only_refuses_parts(f, r);
        printf("%-22s whole state only:%s\n", name_of(o).c_str(), r.line.c_str());
        return;
    }
    a_view_without_an_address_is_found_in_what_it_views(r);
    a_sequence_put_together_goes_on_bit_by_bit(f, r);
    a_prefix_goes_on_with_the_rest_evaluated(f, r);
    company_and_another_shape_of_context_change_nothing(f, r);
    if (f.has_fold()) {
        a_sequence_goes_back_in_place(f, r);
        a_folded_part_without_its_layout_gives_the_same_state(f, r);
        note_upstreams_partial_state(f, r);
        a_folded_part_is_refused_at_any_other_length(f, r);
        a_malformed_folded_part_leaves_the_state_as_it_is(f, r);
    }
    if (f.has_rows()) {
        rows_that_are_kept_go_on_with_those_that_follow(f, r);
        cells_in_pieces_and_out_of_order_are_cut_and_filled(f, r);
        what_is_not_the_next_page_is_refused(f, r);
        several_pages_are_taken_together_or_not_at_all(f, r);
        rows_that_are_not_there_are_not_given(f, r);
        a_page_of_another_type_is_refused_or_taken_as_it_is(f, r);
        if (o.unified) {
            a_full_cache_refuses_a_page_and_takes_what_fits(f, r);
        }
        a_shift_that_has_not_happened_yet_refuses(f, r);
        malformed_rows_leave_the_state_as_it_is(f, r);
    }

    size_t n_rows = 0;
    for (const auto & p : f.s.pages) {
        n_rows += p.size();
    }
    printf("%-22s%s | rows %zu fold %zu small %zu partial %zu whole %zu\n", name_of(o).c_str(), r.line.c_str(),
            n_rows, f.s.fold.size(), f.s.fold_small.size(), f.s.partial.size(), f.s.state.size());
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

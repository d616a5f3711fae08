// A sequence saved through the store by one process and restored by another: is it the same, bit by bit?
//
//   state_test save    MODEL DIR [OPTION ...]   evaluates tokens, saves them in two turns, notes state and logits in DIR
//   state_test restore MODEL DIR [OPTION ...]   restores both turns in fresh contexts and compares
//   state_test pair    MODEL DIR -d DRAFT ...   a target and its draft model, open at the same time in one folder
//   state_test bench   MODEL DIR [OPTION ...]   restore through the store against upstream's restore of the whole state
//
//   -k TYPE (f16)   -f on|off (on)   -n TOKENS (of the first turn, 300)   -p PAGE SIZE (64)   -t THREADS (2)
//
// tests/server/test_state_store.py runs the first three; benchmarks/state_restore.py the last.
#include "llama/model_fingerprint.h"
#include "llama/sequence_store.h"

#include "kvtier/env.h"

#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using kvtier::status;
using kvtier::token;

using bytes = std::vector<uint8_t>;

static constexpr int n_split = 32; // tokens per llama_decode: logits are equal bit by bit only for equal splits
static constexpr int n_next  = 16; // logits compared after each restore

struct settings {
    std::string mode;
    std::string model;
    std::string folder;
    std::string draft;
    ggml_type   type       = GGML_TYPE_F16;
    bool        flash      = true;
    int         n_tokens   = 300;
    int         page_size  = 64;
    int         n_threads  = 2;
};

struct model_deleter   { void operator()(llama_model * m) const { llama_model_free(m); } };
struct context_deleter { void operator()(llama_context * c) const { llama_free(c); } };

using model_ptr   = std::unique_ptr<llama_model, model_deleter>;
using context_ptr = std::unique_ptr<llama_context, context_deleter>;

[[noreturn]] static void fail(const std::string & message) {
    std::fprintf(stderr, "FAILED: %s\n", message.c_str());
    std::exit(1);
}

static void check(bool condition, const std::string & message) {
    if (!condition) {
        fail(message);
    }
}

static void check(const status & s, const std::string & what) {
    check(s.is_ok(), what + ": " + s.message());
}

static context_ptr make_context(llama_model * model, const settings & opt) {
    llama_context_params p = llama_context_default_params();
    p.n_ctx           = static_cast<uint32_t>(2 * opt.n_tokens + 256);
    p.n_batch         = 512;
    p.n_ubatch        = 512;
    p.n_seq_max       = 1;
    p.n_threads       = opt.n_threads;
    p.n_threads_batch = opt.n_threads;
    p.type_k          = opt.type;
    p.type_v          = opt.flash ? opt.type : GGML_TYPE_F16; // upstream wants flash attention for a quantised V
    p.flash_attn_type = opt.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context_ptr ctx(llama_init_from_model(model, p));
    check(ctx != nullptr, "the context cannot be made");
    return ctx;
}

// Words of no meaning, the same in every process.
static std::vector<token> make_tokens(const llama_model * model, size_t n) {
    const uint32_t     n_vocab = static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
    std::vector<token> tokens(n);
    uint32_t           state = 1;
    for (token & t : tokens) {
        state = state * 1664525 + 1013904223;
        t     = static_cast<token>((state >> 8) % n_vocab);
    }
    return tokens;
}

static void evaluate(llama_context * ctx, std::vector<token> & tokens, int from, int to, int at_once) {
    for (int i = from; i < to; i += at_once) {
        const int n = std::min(at_once, to - i);
        check(llama_decode(ctx, llama_batch_get_one(tokens.data() + i, n)) == 0, "llama_decode");
    }
}

static bytes whole_state(llama_context * ctx) {
    bytes out(llama_state_seq_get_size(ctx, 0));
    check(llama_state_seq_get_data(ctx, out.data(), out.size(), 0) == out.size(), "the whole state cannot be had");
    return out;
}

// Logits of the next tokens, each decoded on its own.
static bytes next_logits(llama_context * ctx, std::vector<token> & tokens, int from) {
    const size_t row = sizeof(float) * static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))));
    bytes        out;
    for (int i = from; i < from + n_next; i++) {
        evaluate(ctx, tokens, i, i + 1, 1);
        const uint8_t * logits = reinterpret_cast<const uint8_t *>(llama_get_logits_ith(ctx, -1));
        out.insert(out.end(), logits, logits + row);
    }
    return out;
}

static void write_file(const std::string & path, const bytes & data) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char *>(data.data()), static_cast<std::streamsize>(data.size()));
    check(file.good(), "cannot write " + path);
}

static bytes read_file(const std::string & path) {
    std::ifstream file(path, std::ios::binary);
    check(file.good(), "cannot read " + path);
    return bytes(std::istreambuf_iterator<char>(file), {});
}

static model_ptr load_model(const std::string & path) {
    model_ptr model(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
    check(model != nullptr, path + " cannot be loaded");
    return model;
}

static std::unique_ptr<llama_run::sequence_store> open_store(llama_context * ctx, const settings & opt, uint64_t ram_bytes = 0,
                                                             std::shared_ptr<kvtier::disk_budget> budget = nullptr) {
    llama_run::fingerprint_request fingerprint;
    fingerprint.model_path = opt.model;
    fingerprint.ctx        = ctx;
    fingerprint.type_k     = opt.type;
    fingerprint.type_v     = opt.type;

    llama_run::sequence_store_options options;
    options.backend          = "cpu";
    options.store.root_dir   = opt.folder + "/kv-cache";
    options.store.page_size  = static_cast<uint32_t>(opt.page_size);
    options.store.written_by = "test";
    options.store.ram_bytes  = ram_bytes;
    options.store.budget     = std::move(budget);
    check(llama_run::model_fingerprint(fingerprint, options.store.fingerprint), "fingerprint");

    std::unique_ptr<llama_run::sequence_store> store;
    check(llama_run::sequence_store::open(kvtier::posix_env(), ctx, options, store), "the store cannot be opened");
    return store;
}

// A conversation of two turns: [0, first) with a static prefix, then [0, second).
struct plan {
    int n_static, first, second;

    explicit plan(const settings & opt) : n_static(opt.n_tokens / 3), first(opt.n_tokens), second(2 * opt.n_tokens - 7) {}
};

static std::vector<token> prefix(const std::vector<token> & tokens, int n) {
    return { tokens.begin(), tokens.begin() + n };
}

static void save(const settings & opt, llama_model * model) {
    const plan         at(opt);
    std::vector<token> tokens = make_tokens(model, static_cast<size_t>(at.second + n_next));
    context_ptr        ctx    = make_context(model, opt);
    const auto         store  = open_store(ctx.get(), opt);

    llama_run::sequence_turn turn;
    turn.n_static = static_cast<uint32_t>(at.n_static);

    evaluate(ctx.get(), tokens, 0, at.n_static, n_split);
    write_file(opt.folder + "/state-static", whole_state(ctx.get()));
    if (store->folded()) {
        turn.anchors.emplace_back();
        check(store->take_anchor(0, turn.n_static, turn.anchors.back()), "anchor of the static prefix");
        check(store->take_anchor(0, turn.n_static - 1, turn.anchors.back()).is_miss(), "an anchor of another length was taken");
    }

    int done = at.n_static;
    for (const auto & [name, end] : { std::make_pair("first", at.first), std::make_pair("second", at.second) }) {
        evaluate(ctx.get(), tokens, done, end, n_split);
        write_file(opt.folder + "/state-" + name, whole_state(ctx.get()));
        turn.tokens = prefix(tokens, end);
        check(store->save(0, turn), "save");
        turn.anchors.clear();
        write_file(opt.folder + "/logits-" + name, next_logits(ctx.get(), tokens, end));
        done = end + n_next;
    }
    store->flush();
    check(store->queue().last_error().empty(), store->queue().last_error());
    const auto stats = store->store().stats();
    std::printf("%llu bytes written, %llu of them state\n", static_cast<unsigned long long>(stats.values.bytes_written),
                static_cast<unsigned long long>(stats.values.payload_written));
}

static void compare(const std::string & what, const bytes & expected, const bytes & actual) {
    check(expected.size() == actual.size(), what + ": " + std::to_string(actual.size()) + " bytes instead of " +
                                                std::to_string(expected.size()));
    const auto differ = std::mismatch(expected.begin(), expected.end(), actual.begin());
    check(differ.first == expected.end(), what + ": differs at byte " + std::to_string(differ.first - expected.begin()));
}

static uint64_t n_uses(llama_run::sequence_store & store) {
    uint64_t n = 0;
    for (const kvtier::conversation_info & c : store.store().list()) {
        n += c.hits;
    }
    return n;
}

// Restores what is stored of the first `limit` tokens into a fresh context; gives their number.
static size_t restore_up_to(const settings & opt, llama_model * model, const std::vector<token> & tokens, int limit,
                            const std::function<void(llama_context *)> & then) {
    context_ptr          ctx   = make_context(model, opt);
    const auto           store = open_store(ctx.get(), opt);
    const auto           asked = prefix(tokens, limit);
    const kvtier::match  match = store->find({}, asked, asked.size());
    const uint64_t       uses  = n_uses(*store);
    kvtier::loaded_state state;
    check(store->read(match, asked, state), "read");

    if (store->folded()) {
        // An anchor is for its own length: one token more or less must be refused, and nothing may stay behind.
        for (const int by : { -1, 1 }) {
            kvtier::loaded_state wrong = state;
            wrong.n_tokens += static_cast<size_t>(by);
            check(!store->put(0, wrong).is_ok(), "an anchor was restored at another length");
            check(llama_memory_seq_pos_max(llama_get_memory(ctx.get()), 0) == -1, "a refused restore left state behind");
        }
    }
    if (state.runs.size() > 1 && state.runs.back().data->size() > 0) {
        // The last run cannot be read: the others do without it, where there is no anchor that needs all of them.
        kvtier::loaded_state cut = state;
        cut.runs.back().data.reset();
        kvtier::loading reading(cut);
        size_t          n_put = 0;
        check(store->put(0, reading, n_put).is_ok() != store->folded(), "what could be read of the rows was not put");
        check(n_put == (store->folded() ? 0 : cut.runs.back().p0), "a restore in part has another length");
        check(llama_memory_seq_pos_max(llama_get_memory(ctx.get()), 0) + 1 == static_cast<llama_pos>(n_put),
              "a restore in part left state behind");
    }
    check(store->put(0, state), "put");
    check(n_uses(*store) == uses, "state counts as used before it is");
    store->used(match);
    check(n_uses(*store) == uses + (match.kind == kvtier::match_kind::conversation), "a use was not counted");
    then(ctx.get());
    return state.n_tokens;
}

static void restore(const settings & opt, llama_model * model) {
    const plan         at(opt);
    std::vector<token> tokens = make_tokens(model, static_cast<size_t>(at.second + n_next));
    for (const auto & [name, end] : { std::make_pair("first", at.first), std::make_pair("second", at.second) }) {
        const std::string turn = name;
        const int         last = end;
        const size_t n = restore_up_to(opt, model, tokens, last, [&](llama_context * ctx) {
            compare("state of the " + turn + " turn", read_file(opt.folder + "/state-" + turn), whole_state(ctx));
            compare("logits after the " + turn + " turn", read_file(opt.folder + "/logits-" + turn),
                    next_logits(ctx, tokens, last));
        });
        check(n == static_cast<size_t>(last), "restored " + std::to_string(n) + " tokens of " + std::to_string(last));
    }

    // One token less than was saved: rows are cut there, folded state goes back to the anchor before.
    const auto rows_only = [&](llama_context * ctx) { return !open_store(ctx, opt)->folded(); };
    const bool cut       = rows_only(make_context(model, opt).get());
    const int  expected  = cut ? at.first - 1 : at.n_static;
    const size_t n = restore_up_to(opt, model, tokens, at.first - 1, [&](llama_context * ctx) {
        if (!cut) {
            compare("state of the static prefix", read_file(opt.folder + "/state-static"), whole_state(ctx));
        }
    });
    check(n == static_cast<size_t>(expected), "restored " + std::to_string(n) + " tokens, not " + std::to_string(expected));
    std::printf("restored %d, %d and %d tokens: equal\n", at.first, at.second, expected);
}

// Each model has a fingerprint and objects of its own; folder and budget are one.
static void pair(const settings & opt, llama_model * target) {
    struct side {
        context_ptr                                ctx;
        std::unique_ptr<llama_run::sequence_store> store;
        std::vector<token>                         tokens;
        bytes                                      state;
    };
    const model_ptr draft  = load_model(opt.draft);
    const auto      budget = std::make_shared<kvtier::disk_budget>(uint64_t(1) << 30);
    std::vector<side> sides(2);
    for (size_t i = 0; i < sides.size(); i++) {
        side &         s     = sides[i];
        settings       own   = opt;
        llama_model *  model = i == 0 ? target : draft.get();
        own.model = i == 0 ? opt.model : opt.draft;
        s.ctx    = make_context(model, own);
        s.store  = open_store(s.ctx.get(), own, 0, budget);
        s.tokens = make_tokens(model, static_cast<size_t>(opt.n_tokens));
        evaluate(s.ctx.get(), s.tokens, 0, opt.n_tokens, n_split);
        s.state = whole_state(s.ctx.get());
        llama_run::sequence_turn turn;
        turn.tokens = s.tokens;
        check(s.store->save(0, turn), "save");
        s.store->flush();
    }
    const auto restore_one = [](side & s) {
        kvtier::loaded_state state;
        check(s.store->read(s.store->find({}, s.tokens, s.tokens.size()), s.tokens, state), "read");
        check(s.store->put(0, state), "put");
        compare("state", s.state, whole_state(s.ctx.get()));
    };
    restore_one(sides[0]);
    restore_one(sides[1]);

    // Without the draft model nothing of the target's is lost, and its room is free again.
    const uint64_t before = budget->used();
    uint64_t       freed  = 0;
    const uint64_t hash   = kvtier::conversation_hash(sides[1].tokens.data(), sides[1].tokens.size());
    check(sides[1].store->store().remove_conversation({}, hash, freed), "remove");
    check(freed > 0 && budget->used() < before, "the budget does not learn of what was freed");
    check(sides[1].store->find({}, sides[1].tokens, sides[1].tokens.size()).n_tokens == 0, "a removed conversation is found");
    restore_one(sides[0]);
    std::printf("target and draft restored: equal\n");
}

static double seconds(const std::function<void()> & body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// All ways of restoring in turn, several times, and the best of each: what else the machine does only ever adds time.
static constexpr int n_rounds = 15;

static void bench(const settings & opt, llama_model * model) {
    std::vector<token> tokens = make_tokens(model, static_cast<size_t>(opt.n_tokens));
    context_ptr        ctx    = make_context(model, opt);
    evaluate(ctx.get(), tokens, 0, opt.n_tokens, 512);

    const bytes       whole      = whole_state(ctx.get());
    const std::string whole_file = opt.folder + "/whole-state";
    check(llama_state_seq_save_file(ctx.get(), whole_file.c_str(), 0, tokens.data(), tokens.size()) > 0, "save_file");

    llama_run::sequence_turn turn;
    turn.tokens = tokens;
    settings in_ram = opt, in_files = opt;
    in_ram.folder   += "/ram";
    in_files.folder += "/files";
    for (const settings & at : { in_ram, in_files }) {
        std::filesystem::create_directories(at.folder);
    }
    const auto ram   = open_store(ctx.get(), in_ram, uint64_t(8) << 30);
    const auto files = open_store(ctx.get(), in_files);
    for (llama_run::sequence_store * store : { ram.get(), files.get() }) {
        check(store->save(0, turn), "save");
        store->flush();
    }

    double upstream_ram = 1e9, upstream_file = 1e9, ram_total = 1e9, files_read = 1e9, files_total = 1e9;
    for (int i = 0; i < n_rounds; i++) {
        const auto through = [&](llama_run::sequence_store & store, double & read, double & total) {
            llama_memory_seq_rm(llama_get_memory(ctx.get()), 0, -1, -1);
            kvtier::loaded_state state;
            const double reading = seconds([&] {
                check(store.read(store.find({}, tokens, tokens.size()), tokens, state), "read");
            });
            const double putting = seconds([&] { check(store.put(0, state), "put"); });
            read  = std::min(read, reading);
            total = std::min(total, reading + putting);
        };
        double ram_read = 1e9;
        llama_memory_seq_rm(llama_get_memory(ctx.get()), 0, -1, -1);
        upstream_ram = std::min(upstream_ram, seconds([&] {
            check(llama_state_seq_set_data(ctx.get(), whole.data(), whole.size(), 0) == whole.size(), "set_data");
        }));
        through(*ram, ram_read, ram_total);
        llama_memory_seq_rm(llama_get_memory(ctx.get()), 0, -1, -1);
        upstream_file = std::min(upstream_file, seconds([&] {
            std::vector<token> out(tokens.size());
            size_t             n = 0;
            check(llama_state_seq_load_file(ctx.get(), whole_file.c_str(), 0, out.data(), out.size(), &n) > 0, "load_file");
        }));
        through(*files, files_read, files_total);
    }
    std::printf("{\"tokens\": %d, \"bytes\": %zu, \"upstream_ram_ms\": %.2f, \"upstream_file_ms\": %.2f, "
                "\"ram_ms\": %.2f, \"files_ms\": %.2f, \"files_read_ms\": %.2f}\n",
                opt.n_tokens, whole.size(), 1e3 * upstream_ram, 1e3 * upstream_file, 1e3 * ram_total, 1e3 * files_total,
                1e3 * files_read);
}

static settings parse(int argc, char ** argv) {
    if (argc < 4 || argc % 2 != 0) {
        fail("usage: state_test save|restore|pair|bench MODEL DIR [-d DRAFT] [-k TYPE] [-f on|off] [-n TOKENS] [-p PAGE] [-t THREADS]");
    }
    settings opt;
    opt.mode   = argv[1];
    opt.model  = argv[2];
    opt.folder = argv[3];
    for (int i = 4; i < argc; i += 2) {
        const std::string name = argv[i], value = argv[i + 1];
        if (name == "-k") {
            opt.type = value == "q8_0" ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
        } else if (name == "-f") {
            opt.flash = value == "on";
        } else if (name == "-d") {
            opt.draft = value;
        } else if (name == "-n") {
            opt.n_tokens = std::stoi(value);
        } else if (name == "-p") {
            opt.page_size = std::stoi(value);
        } else if (name == "-t") {
            opt.n_threads = std::stoi(value);
        } else {
            fail("unknown option " + name);
        }
    }
    return opt;
}

int main(int argc, char ** argv) {
    const settings opt = parse(argc, argv);
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_ERROR) {
            std::fputs(text, stderr);
        }
    }, nullptr);
    llama_backend_init();
    const model_ptr model = load_model(opt.model);
    if (opt.mode == "save") {
        save(opt, model.get());
    } else if (opt.mode == "restore") {
        restore(opt, model.get());
    } else if (opt.mode == "pair") {
        pair(opt, model.get());
    } else if (opt.mode == "bench") {
        bench(opt, model.get());
    } else {
        fail("no such mode: " + opt.mode);
    }
    return 0;
}

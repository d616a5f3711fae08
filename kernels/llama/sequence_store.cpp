#include "llama/sequence_store.h"

#include "state_rows.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace llama_run {

using kvtier::buffer;
using kvtier::status;

// Enough for the copies of one append to be made at full speed.
static constexpr uint64_t put_bytes = uint64_t(32) << 20;

// Appends are ordered for so long before the next batch of others, and at least one of them. Their copies go on beside it: enough to keep
// a device busy meanwhile, and few enough for who gives up to wait for them, and for other restores to come between.
static constexpr std::chrono::milliseconds ordering{ 2 };
static constexpr size_t                    most_ordered = 4;

// Memory at hand for pages and anchors, at most: what a batch of a large model's leaves.
static constexpr uint64_t most_stock = uint64_t(384) << 20;
static constexpr uint64_t n_anchors_at_hand = 2;

// A blob for kinds of memory that have nothing to store for a run but its tokens.
static kvtier::blob no_rows() {
    static const kvtier::blob empty = std::make_shared<const buffer>(0);
    return empty;
}

namespace {

// State that llama_state_*_take copies into buffers, which it keeps until then. It is made before that: were there no memory for
// it afterwards, nobody would keep them.
class taken_state : public kvtier::arriving_data {
public:
    explicit taken_state(std::vector<kvtier::blob> into) : into(std::move(into)) {}
    ~taken_state() override { (void) wait(); }

    // False: there is nothing to wait for.
    bool begin(llama_state_taking * begun) {
        taking = begun;
        return taking != nullptr;
    }

    bool wait() const override {
        std::lock_guard<std::mutex> guard(mu);
        if (!finished) {
            there    = llama_state_taking_finish(taking);
            finished = true;
        }
        return there;
    }

    bool is_there() const override {
        std::unique_lock<std::mutex> guard(mu, std::try_to_lock);
        return finished || (guard && llama_state_taking_ready(taking)); // Else somebody waits for it just now.
    }

private:
    llama_state_taking *            taking = nullptr;
    const std::vector<kvtier::blob> into;
    mutable std::mutex              mu;
    mutable std::atomic<bool>       finished{ false };
    mutable bool                    there    = false;
};

} // namespace

sequence_store::sequence_store(llama_context * ctx, const sequence_store_options & options) :
    ctx(ctx), options(options), parts(llama_state_parts(ctx)) {}

status sequence_store::open(kvtier::env & e, llama_context * ctx, const sequence_store_options & options,
                            std::unique_ptr<sequence_store> & out) {
    std::unique_ptr<sequence_store> made(new sequence_store(ctx, options));
    const status s = kvtier::store::open(e, options.store, made->store_);
    if (!s.is_ok()) {
        return s;
    }
    made->writer_ = std::make_unique<kvtier::writer>(*made->store_, options.queue_bytes, options.on_trouble, options.settle);
    made->prepare();
    out = std::move(made);
    return s;
}

// Neither the first page that is copied nor one that is read should wait for memory.
void sequence_store::prepare() {
    llama_state_prepare(ctx);
    uint64_t     left   = std::min(most_stock, options.store.ram_bytes / 4);
    const size_t anchor = llama_state_folded_estimate(ctx);
    if (anchor != 0 && anchor * n_anchors_at_hand <= left / 2) {
        stocks.push_back(std::make_unique<kvtier::buffer_stock>(anchor, n_anchors_at_hand));
        left -= anchor * n_anchors_at_hand;
    }
    const size_t page = llama_state_rows_estimate(ctx, options.store.page_size);
    if (page != 0) {
        const uint64_t n = std::min<uint64_t>(left / page, llama_n_ctx(ctx) / options.store.page_size);
        stocks.push_back(std::make_unique<kvtier::buffer_stock>(page, n));
    }
}

bool sequence_store::folded() const {
    return parts != LLAMA_STATE_PART_ROWS;
}

kvtier::chain_root sequence_store::root(const sequence_scope & scope) const {
    return { options.store.fingerprint, options.store.page_size, scope.user, scope.adapters };
}

// The number of tokens that the sequence holds, as its memory counts them.
static uint32_t n_held(const llama_context * ctx, llama_seq_id seq) {
    return static_cast<uint32_t>(llama_memory_seq_pos_max(llama_get_memory(ctx), seq) + 1);
}

status sequence_store::take_anchor(llama_seq_id seq, uint32_t n_tokens, anchor_copy & out) const {
    if (!folded()) {
        return status::miss("the state has no folded part");
    }
    if (n_held(ctx, seq) != n_tokens) {
        return status::miss("the sequence holds " + std::to_string(n_held(ctx, seq)) + " tokens, not " +
                            std::to_string(n_tokens));
    }
    const status refused = status::miss("the context does not give its folded state now");
    if (!(parts & LLAMA_STATE_PART_FOLDED)) {
        const size_t size = llama_state_seq_get_size(ctx, seq);
        const auto   data = std::make_shared<buffer>(size);
        out = { n_tokens, data, nullptr, false };
        return size > 0 && llama_state_seq_get_data(ctx, data->data(), size, seq) == size ? status::ok() : refused;
    }
    const size_t size = llama_state_folded_size(ctx, seq, LLAMA_STATE_FOLDED_LAYOUT);
    const auto   data = std::make_shared<buffer>(size);
    const auto   state = std::make_shared<taken_state>(std::vector<kvtier::blob> { data });
    if (!state->begin(llama_state_folded_take(ctx, data->data(), size, seq, LLAMA_STATE_FOLDED_LAYOUT))) {
        return refused;
    }
    out = { n_tokens, data, state, false };
    return status::ok();
}

uint64_t sequence_store::estimate(const std::vector<kvtier::save_run> & runs) const {
    uint64_t n_bytes = 0;
    for (const kvtier::save_run & run : runs) {
        n_bytes += llama_state_rows_estimate(ctx, run.p1 - run.p0);
    }
    return n_bytes;
}

status sequence_store::take_rows(llama_seq_id seq, kvtier::save_request & request) const {
    std::vector<llama_state_rows_room> rooms;
    std::vector<kvtier::blob>          into;
    for (kvtier::save_run & run : request.runs) {
        if (!(parts & LLAMA_STATE_PART_ROWS)) {
            run.data = no_rows();
            continue;
        }
        const llama_pos p0   = static_cast<llama_pos>(run.p0);
        const llama_pos p1   = static_cast<llama_pos>(run.p1);
        const auto      data = std::make_shared<buffer>(llama_state_rows_size(ctx, seq, p0, p1));
        if (data->size() == 0) {
            return status::miss("the sequence does not hold the rows of tokens " + std::to_string(run.p0) + " to " +
                                std::to_string(run.p1));
        }
        rooms.push_back({ p0, p1, data->data(), data->size() });
        into.push_back(data);
        run.data = data;
    }
    if (rooms.empty()) {
        return status::ok();
    }
    const auto state = std::make_shared<taken_state>(std::move(into));
    request.arriving.push_back(state);
    if (!state->begin(llama_state_rows_take(ctx, rooms.data(), rooms.size(), seq))) {
        return status::miss("the context does not give its rows now");
    }
    return status::ok();
}

// Rows that were stored before are not stored again, and those of another evaluation may be rounded otherwise.
static size_t rows_as_stored(const kvtier::save_request & request, size_t n_same) {
    for (const kvtier::save_run & run : request.runs) {
        n_same = run.p0 <= n_same ? std::max<size_t>(n_same, run.p1) : n_same;
    }
    return n_same;
}

status sequence_store::save(llama_seq_id seq, const sequence_turn & turn, size_t & n_same) {
    std::vector<anchor_copy> anchors = turn.anchors;
    const uint32_t           n       = static_cast<uint32_t>(turn.tokens.size());
    if (folded() && turn.anchor_end && (anchors.empty() || anchors.back().n_tokens != n)) {
        anchor_copy last;
        const status s = take_anchor(seq, n, last);
        if (!s.is_ok()) {
            return s;
        }
        anchors.push_back(std::move(last));
    }

    kvtier::plan_request wanted;
    wanted.root     = root(turn.scope);
    wanted.tokens   = turn.tokens.data();
    wanted.n_tokens = turn.tokens.size();
    wanted.n_static = turn.n_static;
    for (const anchor_copy & anchor : anchors) {
        wanted.anchors.push_back(anchor.n_tokens);
    }

    kvtier::save_request request = writer_->plan(wanted);
    request.conversation = turn.conversation;
    request.checkpoint   = turn.complete;
    request.folded       = folded();
    request.n_prompt     = turn.n_prompt;
    request.roles        = turn.roles;
    request.backend      = options.backend;
    const status behind = status::no_space("the writer is behind: this turn is not stored");
    if (!writer_->has_room(estimate(request.runs))) {
        return behind;
    }
    if (const status s = take_rows(seq, request); !s.is_ok()) {
        return s;
    }
    for (kvtier::save_anchor & planned : request.anchors) {
        for (const anchor_copy & anchor : anchors) {
            if (anchor.n_tokens == planned.n_tokens) {
                planned.data      = anchor.data;
                planned.is_shared = anchor.is_shared;
                if (anchor.arriving) {
                    request.arriving.push_back(anchor.arriving);
                }
            }
        }
    }
    const size_t n_then = rows_as_stored(request, n_same);
    if (!writer_->enqueue(std::move(request))) {
        return behind;
    }
    n_same = n_then;
    return status::ok();
}

kvtier::lookup_request sequence_store::question(const sequence_scope & scope, const std::vector<kvtier::token> & tokens, size_t limit,
                                               uint64_t conversation) const {
    kvtier::lookup_request request;
    request.root         = root(scope);
    request.tokens       = tokens.data();
    request.n_tokens     = tokens.size();
    request.limit        = limit;
    request.folded       = folded();
    request.conversation = conversation;
    return request;
}

kvtier::match sequence_store::find(const sequence_scope & scope, const std::vector<kvtier::token> & tokens,
                                   size_t limit, uint64_t conversation) const {
    return writer_->find(question(scope, tokens, limit, conversation));
}

bool sequence_store::is_in_ram(const sequence_scope & scope, const std::vector<kvtier::token> & tokens, size_t n_tokens,
                               uint64_t conversation) const {
    kvtier::lookup_request asked = question(scope, tokens, n_tokens, conversation);
    asked.counted = false;
    const kvtier::match found = writer_->find(asked);
    const bool          waits = !found.runs.empty() && found.runs.back().node == nullptr;
    return found.n_tokens == n_tokens && found.bytes_disk == 0 && (!waits || writer_->last_error().empty());
}

status sequence_store::read(const kvtier::match & m, const std::vector<kvtier::token> & tokens,
                            kvtier::loaded_state & out) {
    return store_->load(m, tokens.data(), tokens.size(), out);
}

status sequence_store::begin_read(const kvtier::match & m, const std::vector<kvtier::token> & tokens,
                                  std::unique_ptr<kvtier::loading> & out) {
    return store_->begin_load(m, tokens.data(), tokens.size(), out);
}

status sequence_store::put(llama_seq_id seq, const kvtier::loaded_state & state) const {
    kvtier::loading whole(state);
    size_t          n_tokens = 0;
    return put(seq, whole, n_tokens);
}

status sequence_store::put(llama_seq_id seq, kvtier::loading & state, size_t & n_tokens) const {
    const auto arriving = begin_put(seq, state, {}, 0);
    (void) arriving->advance(true);
    n_tokens = arriving->n_tokens();
    return arriving->result();
}

std::unique_ptr<arriving_sequence> sequence_store::begin_put(llama_seq_id seq, kvtier::loading & state, const kvtier::match & m,
                                                             size_t n_same) const {
    std::unique_ptr<arriving_sequence> arriving(new arriving_sequence(*this, seq, state));
    size_t n_runs = 0;
    while (n_runs < m.runs.size() && m.runs[n_runs].p1 <= n_same) {
        n_runs++;
    }
    if (n_runs > 0 && llama_state_rows_keep(ctx, seq, static_cast<llama_pos>(m.runs[n_runs - 1].p1))) {
        arriving->n_runs_put = n_runs;
        arriving->n_put      = std::min<size_t>(m.runs[n_runs - 1].p1, state.n_tokens());
    } else {
        llama_memory_seq_rm(llama_get_memory(ctx), seq, -1, -1);
    }
    return arriving;
}

arriving_sequence::~arriving_sequence() {
    (void) finish_copies(true);
    if (!over || !outcome.is_ok()) {
        llama_memory_seq_rm(llama_get_memory(store.ctx), seq, -1, -1);
    }
}

// Those that are made by now; wait: all. False: one could not be made.
bool arriving_sequence::finish_copies(bool wait) {
    bool made = true;
    while (!copies.empty() && (wait || llama_state_taking_ready(copies.front()))) {
        made = llama_state_taking_finish(copies.front()) && made;
        copies.pop_front();
    }
    return made;
}

// Rows come first, all of them or those before the first that cannot be read; then what goes with them.
bool arriving_sequence::advance(bool wait) {
    const bool has_rows = store.parts & LLAMA_STATE_PART_ROWS;
    const auto until    = std::chrono::steady_clock::now() + ordering;
    while (!over) {
        if (!finish_copies(wait && copies.size() >= most_ordered) && outcome.is_ok()) {
            outcome = status::miss("rows could not be copied into the context");
        }
        if (!wait && !copies.empty() && (copies.size() >= most_ordered || std::chrono::steady_clock::now() > until)) {
            return false;
        }
        const bool all_read = wait || state.wait_at_most(std::chrono::milliseconds(0));
        size_t     end      = n_runs_put;
        if (outcome.is_ok() && has_rows && n_runs_put < state.n_runs()) {
            end = state.wait_for_runs(n_runs_put, wait ? put_bytes : 0);
        }
        std::vector<llama_state_rows_block> rows;
        uint64_t                            n_bytes = 0;
        for (size_t i = n_runs_put; i < end; i++) {
            rows.push_back({ state.run(i).data->data(), state.run(i).data->size() });
            n_bytes += rows.back().size;
            if (!wait && n_bytes >= put_bytes) {
                end = i + 1; // Others wait for each step.
            }
        }
        const bool worth_a_step = n_bytes >= put_bytes || (end > n_runs_put && end == state.n_runs());
        if (!all_read && !worth_a_step && outcome.is_ok()) {
            return false; // Nor do others wait for files.
        }
        if (end > n_runs_put) {
            if (llama_state_taking * const ordered = llama_state_rows_append_begin(store.ctx, rows.data(), rows.size(), seq)) {
                copies.push_back(ordered);
                n_runs_put = end;
                n_put      = std::min<size_t>(state.run(end - 1).p1, state.n_tokens());
                continue;
            }
            outcome = status::miss("the context refuses the rows of " + std::to_string(state.n_tokens()) + " tokens");
        }
        if (!wait && !copies.empty()) {
            return false;
        }
        if (!finish_copies(true) && outcome.is_ok()) {
            outcome = status::miss("rows could not be copied into the context");
        }
        n_put   = has_rows ? n_put : state.n_tokens();
        outcome = outcome.is_ok() ? store.put_rest(seq, state, n_put) : outcome;
        over    = true;
        if (!outcome.is_ok()) {
            llama_memory_seq_rm(llama_get_memory(store.ctx), seq, -1, -1);
            n_put = 0;
        }
    }
    return true;
}

// Once the rows of n_tokens are there.
status sequence_store::put_rest(llama_seq_id seq, kvtier::loading & state, size_t n_tokens) const {
    if (!folded()) {
        // The last run may reach beyond what the prompts have in common.
        llama_memory_seq_rm(llama_get_memory(ctx), seq, static_cast<llama_pos>(n_tokens), -1);
        if (n_held(ctx, seq) != n_tokens) {
            return status::miss("the rows are not those of " + std::to_string(n_tokens) + " tokens");
        }
        return n_tokens > 0 ? status::ok() : state.wait();
    }
    const kvtier::blob anchor = n_tokens == state.n_tokens() ? state.wait_for_anchor() : nullptr;
    if (!anchor) {
        const status s = state.wait();
        return s.is_ok() ? status::miss("there is no anchor at " + std::to_string(state.n_tokens()) + " tokens") : s;
    }
    return put_anchor(seq, anchor, n_tokens);
}

status sequence_store::put_anchor(llama_seq_id seq, const kvtier::blob & anchor, size_t n_tokens) const {
    const llama_pos length = static_cast<llama_pos>(n_tokens);
    const size_t    taken  = parts & LLAMA_STATE_PART_FOLDED
                                 ? llama_state_folded_set(ctx, anchor->data(), anchor->size(), seq, length)
                                 : llama_state_seq_set_data(ctx, anchor->data(), anchor->size(), seq);
    // State in one piece does not say at which length it was taken, but the sequence does afterwards.
    if (taken != anchor->size() || n_held(ctx, seq) != n_tokens) {
        return status::miss("the context refuses the anchor at " + std::to_string(n_tokens) + " tokens");
    }
    return status::ok();
}

status sequence_store::share(llama_seq_id from, llama_seq_id to, size_t n_tokens, const anchor_copy & anchor) const {
    llama_memory_t memory = llama_get_memory(ctx);
    llama_memory_seq_rm(memory, to, -1, -1);
    status s = status::ok();
    if (folded() && (anchor.n_tokens != n_tokens || (anchor.arriving && !anchor.arriving->wait()))) {
        s = status::miss("there is no anchor at " + std::to_string(n_tokens) + " tokens");
    } else if ((parts & LLAMA_STATE_PART_ROWS) && !llama_state_rows_share(ctx, from, to, static_cast<llama_pos>(n_tokens))) {
        s = status::miss("the other sequence does not hold the rows of " + std::to_string(n_tokens) + " tokens");
    } else if (folded()) {
        s = put_anchor(to, anchor.data, n_tokens);
    }
    if (!s.is_ok()) {
        llama_memory_seq_rm(memory, to, -1, -1);
    }
    return s;
}

status sequence_store::go_back(llama_seq_id seq, size_t n_tokens, const anchor_copy & anchor) const {
    llama_memory_t  memory = llama_get_memory(ctx);
    const llama_pos length = static_cast<llama_pos>(n_tokens);
    status s = status::ok();
    if (!anchor.data || anchor.n_tokens != n_tokens || (anchor.arriving && !anchor.arriving->wait())) {
        s = status::miss("there is no anchor at " + std::to_string(n_tokens) + " tokens");
    } else if ((parts & LLAMA_STATE_PART_ROWS) && llama_state_rows_count(ctx, seq) < length) {
        s = status::miss("the sequence does not hold the rows of " + std::to_string(n_tokens) + " tokens");
    } else {
        s = put_anchor(seq, anchor.data, n_tokens);
    }
    if (!s.is_ok() || !llama_memory_seq_rm(memory, seq, length, -1)) {
        llama_memory_seq_rm(memory, seq, -1, -1);
        return s.is_ok() ? status::miss("the context does not give up what comes after " + std::to_string(n_tokens) + " tokens") : s;
    }
    return s;
}

void sequence_store::used(const kvtier::match & m) {
    store_->touch(m);
}

void sequence_store::close() {
    if (writer_) {
        writer_->stop();
    }
    if (!closed) { // Once: another context may be at this address by now.
        waited_before = llama_state_waited_ms(ctx);
        closed        = true;
        llama_state_finish(ctx);
    }
}

bool sequence_store::takes_beside() const {
    return !closed && llama_state_takes_beside(ctx);
}

bool sequence_store::puts_beside() const {
    return !closed && llama_state_puts_beside(ctx);
}

double sequence_store::waited_ms() const {
    return closed ? waited_before.load() : llama_state_waited_ms(ctx);
}

void sequence_store::flush() {
    writer_->flush();
}

} // namespace llama_run

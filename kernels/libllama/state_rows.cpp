// The functions of state_rows.h: they parse and note down through llama_state_access, and have the copies made, at once or by
// the context's taker.

#include "state_rows.h"

#include "device_backend.h"
#include "state_access.h"

#include "llama-impl.h"

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <vector>

struct llama_state_taking {
    std::shared_future<bool> result;
    size_t                   size; // bytes
};

namespace {

// Enough for any device; a request waits for what is restored.
constexpr unsigned NOW_THREADS = 8;

void make_now(const llama_context * ctx, copies & noted, copies::direction dir) {
    noted.make(dir, [ctx](ggml_backend_dev_t device) { return llama_device_backend(ctx->get_sched(), device); }, NOW_THREADS);
}

// The threads of the contexts that have been prepared.
kvtier::mutex takers_mu;
auto & takers GUARDED_BY(takers_mu) = *new std::map<const llama_context *, std::unique_ptr<taker>>(); // drivers may be gone before us

// Null: the context has not been prepared, or has evaluated nothing yet.
taker * taker_of(llama_context * ctx) {
    kvtier::mutex_lock lock(takers_mu);
    const auto known = takers.find(ctx);
    if (known == takers.end() || !ctx->get_sched()) {
        return nullptr;
    }
    known->second->connect(ctx->get_sched());
    return known->second.get();
}

template <typename F>
size_t guarded(const char * func, F && f) {
    try {
        return f();
    } catch (const std::exception & err) {
        LLAMA_LOG_WARN("%s: %s\n", func, err.what());
        return 0;
    }
}

// Bytes of all rooms; the copies into those that have data are noted down.
size_t rows_write(llama_context * ctx, const llama_state_rows_room * rooms, size_t n_rooms, llama_seq_id seq_id, rows_order & out) {
    const llama_state_access mem(ctx);
    if (!mem.rows) {
        return 0;
    }
    mem.check_seq(ctx, seq_id);
    size_t size = 0;
    for (size_t i = 0; i < n_rooms; ++i) {
        writer io(rooms[i].data, rooms[i].size, out.what);
        mem.write_block(io, *mem.rows, seq_id, rooms[i].p0, rooms[i].p1, 0, {}, &out.cells);
        size += io.n_bytes();
    }
    out.from = mem.rows;
    return size;
}

size_t folded_write(llama_context * ctx, uint8_t * dst, size_t size, llama_seq_id seq_id, uint32_t flags, copies & out) {
    const llama_state_access mem(ctx);
    if (!mem.folded()) {
        return 0;
    }
    mem.check_seq(ctx, seq_id);
    writer io(dst, size, out);
    mem.write_folded(io, seq_id, flags);
    return io.n_bytes();
}

// Waits for what was taken, and gives its bytes.
size_t finish(llama_state_taking * taking) {
    const size_t size = taking ? taking->size : 0;
    return llama_state_taking_finish(taking) ? size : 0;
}

// The blocks go into free cells. Gives their bytes; the copies are noted down.
size_t rows_read(llama_context * ctx, const llama_state_rows_block * blocks, size_t n_blocks, llama_seq_id seq_id, rows_order & out) {
    ctx->synchronize();
    const llama_state_access mem(ctx);
    if (!mem.rows || n_blocks == 0) {
        return 0;
    }
    mem.check_seq(ctx, seq_id);
    std::vector<reader> ios;
    size_t size = 0;
    for (size_t i = 0; i < n_blocks; ++i) {
        ios.emplace_back(blocks[i].data, blocks[i].size);
        size += blocks[i].size;
    }
    mem.append_rows(ios, *mem.rows, seq_id, ctx->get_model().vocab.n_tokens(), out.what, out.cells);
    out.from = mem.rows;
    return size;
}

std::shared_future<bool> at_once(llama_context * ctx, copies & noted, copies::direction dir = copies::TO_HOST) {
    ctx->synchronize();
    make_now(ctx, noted, dir);
    std::promise<bool> done;
    done.set_value(true);
    return done.get_future().share();
}

} // namespace

uint32_t llama_state_parts(const llama_context * ctx) {
    const llama_state_access mem(ctx);
    return (mem.rows ? LLAMA_STATE_PART_ROWS : 0) | (mem.folded() ? LLAMA_STATE_PART_FOLDED : 0);
}

void llama_state_prepare(llama_context * ctx) {
    guarded(__func__, [&] {
        auto made = std::make_unique<taker>([ctx](copies & noted, copies::direction dir) { at_once(ctx, noted, dir); });
        made->connect(ctx->get_sched());
        kvtier::mutex_lock lock(takers_mu);
        takers[ctx] = std::move(made);
        return (size_t) 0;
    });
}

bool llama_state_takes_beside(const llama_context * ctx) {
    kvtier::mutex_lock lock(takers_mu);
    const auto known = takers.find(ctx);
    return known != takers.end() && known->second->takes_beside();
}

bool llama_state_puts_beside(const llama_context * ctx) {
    kvtier::mutex_lock lock(takers_mu);
    const auto known = takers.find(ctx);
    return known != takers.end() && known->second->puts_beside();
}

double llama_state_waited_ms(const llama_context * ctx) {
    kvtier::mutex_lock lock(takers_mu);
    const auto known = takers.find(ctx);
    return known == takers.end() ? 0 : known->second->waited_us()/1000.0;
}

void llama_state_finish(llama_context * ctx) {
    std::unique_ptr<taker> gone;
    kvtier::mutex_lock lock(takers_mu);
    const auto known = takers.find(ctx);
    if (known != takers.end()) {
        gone = std::move(known->second);
        takers.erase(known);
    }
}

bool llama_state_has_window(const llama_context * ctx) {
    const llama_state_access mem(ctx);
    return mem.window || mem.rest;
}

llama_pos llama_state_rows_count(const llama_context * ctx, llama_seq_id seq_id) {
    return (llama_pos) guarded(__func__, [&] {
        const llama_state_access mem(ctx);
        if (!mem.rows) {
            return (size_t) 0;
        }
        mem.check_seq(ctx, seq_id);
        return (size_t) mem.rows_count(seq_id);
    });
}

size_t llama_state_rows_estimate(const llama_context * ctx, uint32_t n) {
    const llama_state_access mem(ctx);
    if (!mem.rows) {
        return 0;
    }
    return mem.row_bytes()*n + HEADERS_BYTES;
}

size_t llama_state_rows_size(llama_context * ctx, llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    return guarded(__func__, [&] {
        const llama_state_rows_room counted = { p0, p1, nullptr, 0 };
        rows_order none;
        return rows_write(ctx, &counted, 1, seq_id, none);
    });
}

size_t llama_state_rows_get(llama_context * ctx, const llama_state_rows_room * rooms, size_t n_rooms, llama_seq_id seq_id) {
    return finish(llama_state_rows_take(ctx, rooms, n_rooms, seq_id));
}

llama_state_taking * llama_state_rows_take(llama_context * ctx, const llama_state_rows_room * rooms, size_t n_rooms, llama_seq_id seq_id) {
    if (std::any_of(rooms, rooms + n_rooms, [](const llama_state_rows_room & room) { return !room.data; })) {
        return nullptr;
    }
    llama_state_taking * out = nullptr;
    guarded(__func__, [&] {
        rows_order   order;
        const size_t size = rows_write(ctx, rooms, n_rooms, seq_id, order);
        if (size > 0) {
            taker * const by = taker_of(ctx);
            out = new llama_state_taking { by ? by->take(std::move(order)) : at_once(ctx, order.what), size };
        }
        return size;
    });
    return out;
}

bool llama_state_taking_ready(const llama_state_taking * taking) {
    return !taking || taking->result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool llama_state_taking_finish(llama_state_taking * taking) {
    const std::unique_ptr<llama_state_taking> gone(taking);
    return taking && taking->result.get();
}

size_t llama_state_rows_append(llama_context * ctx, const llama_state_rows_block * blocks, size_t n_blocks, llama_seq_id seq_id) {
    return guarded(__func__, [&] {
        rows_order   order;
        const size_t size = rows_read(ctx, blocks, n_blocks, seq_id, order);
        make_now(ctx, order.what, copies::TO_TENSOR);
        return size;
    });
}

llama_state_taking * llama_state_rows_append_begin(llama_context * ctx, const llama_state_rows_block * blocks, size_t n_blocks, llama_seq_id seq_id) {
    llama_state_taking * out = nullptr;
    guarded(__func__, [&] {
        rows_order   order;
        const size_t size = rows_read(ctx, blocks, n_blocks, seq_id, order);
        if (size > 0) {
            taker * const by = taker_of(ctx);
            out = new llama_state_taking { by ? by->put(std::move(order)) : at_once(ctx, order.what, copies::TO_TENSOR), size };
        }
        return size;
    });
    return out;
}

bool llama_state_rows_share(llama_context * ctx, llama_seq_id from, llama_seq_id to, llama_pos n) {
    return guarded(__func__, [&] {
        const llama_state_access mem(ctx);
        if (!mem.rows || from == to || n <= 0) {
            return (size_t) 0;
        }
        mem.check_seq(ctx, from);
        mem.check_seq(ctx, to);
        return (size_t) mem.share_rows(from, to, n);
    }) != 0;
}

bool llama_state_rows_keep(llama_context * ctx, llama_seq_id seq_id, llama_pos n) {
    return guarded(__func__, [&] {
        const llama_state_access mem(ctx);
        if (!mem.rows || n <= 0) {
            return (size_t) 0;
        }
        mem.check_seq(ctx, seq_id);
        return (size_t) mem.keep_rows(seq_id, n);
    }) != 0;
}

size_t llama_state_folded_estimate(const llama_context * ctx) {
    const llama_state_access mem(ctx);
    return mem.recr && !mem.window && !mem.rest ? mem.cell_bytes() + HEADERS_BYTES : 0;
}

size_t llama_state_folded_size(llama_context * ctx, llama_seq_id seq_id, uint32_t flags) {
    return guarded(__func__, [&] {
        copies none;
        return folded_write(ctx, nullptr, 0, seq_id, flags, none);
    });
}

size_t llama_state_folded_get(llama_context * ctx, uint8_t * dst, size_t size, llama_seq_id seq_id, uint32_t flags) {
    return finish(llama_state_folded_take(ctx, dst, size, seq_id, flags));
}

llama_state_taking * llama_state_folded_take(llama_context * ctx, uint8_t * dst, size_t size, llama_seq_id seq_id, uint32_t flags) {
    llama_state_taking * out = nullptr;
    guarded(__func__, [&] {
        copies       noted;
        const size_t written = dst ? folded_write(ctx, dst, size, seq_id, flags, noted) : 0;
        if (written > 0) {
            taker * const by = taker_of(ctx);
            out = new llama_state_taking { by ? by->take_folded(std::move(noted)) : at_once(ctx, noted), written };
        }
        return written;
    });
    return out;
}

size_t llama_state_folded_set(llama_context * ctx, const uint8_t * src, size_t size, llama_seq_id seq_id, llama_pos n_tokens) {
    ctx->synchronize();
    return guarded(__func__, [&] {
        const llama_state_access mem(ctx);
        if (!mem.folded()) {
            return (size_t) 0;
        }
        mem.check_seq(ctx, seq_id);

        reader io(src, size);
        llama_state_access::block b {};
        llama_state_access::block before {};
        if (mem.window) {
            const uint32_t n_vocab = ctx->get_model().vocab.n_tokens();
            b = mem.read_block(io, *mem.window, seq_id, n_vocab, BLOCK_MORE);
            if (b.p0 + (llama_pos) b.n != n_tokens) {
                refuse("a window of another length");
            }
            mem.check_window(b.p0, n_tokens);
            if (b.more) {
                before = mem.read_block(io, *mem.window, seq_id, n_vocab);
                if (before.p0 + (llama_pos) before.n != b.p0) {
                    refuse("rows that do not lead to the window");
                }
            }
        }
        const size_t recurrent = io.here();
        if (mem.recr) {
            mem.check_recurrent(io, n_tokens);
        }
        if (!mem.rest && !io.at_end()) {
            refuse("more data than state");
        }

        copies noted;
        io.note_copies(noted);
        try {
            if (mem.rest) {
                mem.read_rest(io, seq_id, n_tokens);
                make_now(ctx, noted, copies::TO_TENSOR); // the window is among them, at cells that its own copies may want
            }
            if (mem.window && !mem.place_window(io, seq_id, b, before)) {
                refuse("no free cells in the window");
            }
            if (mem.recr) {
                io.go_to(recurrent);
                mem.recr->state_read(io, seq_id, 0);
            }
        } catch (...) {
            mem.clear_folded(seq_id);
            throw;
        }
        make_now(ctx, noted, copies::TO_TENSOR);
        return size;
    });
}

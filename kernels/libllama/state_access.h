// What looks inside of upstream's caches: which cells hold a sequence, in which order, and where they go when it comes back.
//
// The K/V data itself is written and read by upstream's own state_write_data / state_read_data, so a change of its layout
// changes ours with it. Ours is what stands before it: which cells, in which order, and where they go.
//
// One block of K/V rows, u32 unless said otherwise:
//
//   magic | version | flags | n_rows | i32 first position | ext, if flagged: n_rows x (i32 x, i32 y, i32 token)
//   cell, if flagged: n_rows x u32 | upstream's data: v_trans, layers, then types, row sizes and rows, layer by layer
//
// Rows stand in the order of their positions, which are consecutive. The folded part is, as far as the model has them: such
// a block for the window; another, where the first is flagged, for the rows just before it; upstream's recurrent state;
// upstream's whole state, for memory that is neither (DeepSeek 4).
//
// Reading is in two steps. Everything is parsed against the live caches first, without touching them, and the copies into
// tensors are noted down. When nothing is left to go wrong, cells are taken and the copies are made. The folded part is
// parsed once more in between: which cells it gets is known only when the ones it replaces are free.

#pragma once

#include "state_rows.h"
#include "state_rows_io.h"
#include "state_takings.h"

#include "llama-context.h"
#include "llama-kv-cache-dsv4.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <typeinfo>
#include <vector>

namespace state_rows {

inline constexpr uint32_t BLOCK_MAGIC   = 0x776f724c; // "Lrow"
inline constexpr uint32_t BLOCK_VERSION = 1;

inline constexpr uint32_t BLOCK_EXT   = 1; // the caches of this model remember more of a cell than its position
inline constexpr uint32_t BLOCK_CELLS = 2; // where each row should go if it can
inline constexpr uint32_t BLOCK_MORE  = 4; // the rows before this block's come in the next one

inline constexpr size_t HEADERS_BYTES = 16u << 10; // of a block and of its layers, at most

struct block_header {
    uint32_t magic;
    uint32_t version;
    uint32_t flags;
    uint32_t n_rows;
    int32_t  p0;
};

} // namespace state_rows

using namespace state_rows; // state_rows.cpp alone includes this

// The one name that upstream's caches know (as a friend): all that looks inside them is here.
struct llama_state_access {
    llama_kv_cache         * rows   = nullptr;
    llama_kv_cache         * window = nullptr;
    llama_memory_recurrent * recr   = nullptr;
    llama_memory_i         * rest   = nullptr; // saved by upstream in one piece, beside the window

    // Exact types: a class that derives from one of these (the indexer of llama_memory_hybrid_idx) keeps more than we know of.
    explicit llama_state_access(const llama_context * ctx) {
        llama_memory_i * mem = ctx->get_memory();
        if (!mem) {
            return;
        }
        const std::type_info & type = typeid(*mem);
        if (type == typeid(llama_kv_cache)) {
            rows = static_cast<llama_kv_cache *>(mem);
        } else if (type == typeid(llama_kv_cache_iswa)) {
            auto * m = static_cast<llama_kv_cache_iswa *>(mem);
            rows   = m->get_base();
            window = m->get_swa();
        } else if (type == typeid(llama_memory_hybrid)) {
            auto * m = static_cast<llama_memory_hybrid *>(mem);
            rows = m->get_mem_attn();
            recr = m->get_mem_recr();
        } else if (type == typeid(llama_memory_hybrid_iswa)) {
            auto * m = static_cast<llama_memory_hybrid_iswa *>(mem);
            rows   = m->get_mem_attn()->get_base();
            window = m->get_mem_attn()->get_swa();
            recr   = m->get_mem_recr();
        } else if (type == typeid(llama_memory_recurrent)) {
            recr = static_cast<llama_memory_recurrent *>(mem);
        } else if (type == typeid(llama_kv_cache_dsv4)) {
            // Rows for several tokens each: not to be cut. Upstream restores the window at other cells than it was in.
            window = static_cast<llama_kv_cache_dsv4 *>(mem)->get_raw()->get_swa();
            rest   = mem;
        }
        // - a cache that lives in another context's cells
        // - a plain one that forgets rows behind a window
        // - T5: what its encoder left in the context is in no state
        if ((rows && (rows->other || rows->swa_type != LLAMA_SWA_TYPE_NONE)) || (window && window->other) ||
                ctx->get_model().arch == LLM_ARCH_T5) {
            rows   = nullptr;
            window = nullptr;
            recr   = nullptr;
            rest   = nullptr;
        }
    }

    bool folded() const {
        return window || recr;
    }

    static void check_seq(const llama_context * ctx, llama_seq_id seq_id) {
        if (seq_id < 0 || (uint32_t) seq_id >= llama_n_seq_max(ctx)) {
            refuse("no such sequence");
        }
    }

    static void check_settled(const llama_kv_cache & kv) {
        if (kv.get_has_shift() || !kv.sc_info.empty()) {
            refuse("a shift or a copy waits for the next llama_decode");
        }
    }

    // cells: empty, or a function from a row's cell to the one it should go to
    using cell_map = std::function<uint32_t(uint32_t)>;

    // taken: gets the cells that rows are written from; null: nobody asks
    static void write_block(writer & io, const llama_kv_cache & kv, llama_seq_id seq_id, llama_pos p0, llama_pos p1,
            uint32_t flags = 0, const cell_map & to_cell = {}, std::vector<cell_range> * taken = nullptr) {
        check_settled(kv);

        llama_kv_cache::cell_ranges_t cr { kv.seq_to_stream[seq_id], {} };

        const auto & cells  = kv.v_cells[cr.strm];
        const auto & by_pos = cells.seq_pos_get(seq_id);

        std::vector<uint32_t> idxs;
        for (auto it = by_pos.lower_bound({ p0, 0 }); it != by_pos.end() && it->first < p1; ++it) {
            if (it->first != p0 + (llama_pos) idxs.size()) {
                refuse("positions are not consecutive");
            }
            const uint32_t i = it->second;
            if (idxs.empty() || idxs.back() + 1 != i) {
                cr.data.emplace_back(i, i);
            }
            cr.data.back().second = i + 1;
            idxs.push_back(i);
        }
        if (p0 < 0 || p1 <= p0 || idxs.size() != (size_t) (p1 - p0)) {
            refuse("the sequence does not hold these positions");
        }

        flags |= kv.has_cell_ext() ? BLOCK_EXT : 0;
        flags |= to_cell ? BLOCK_CELLS : 0;

        const block_header h = { BLOCK_MAGIC, BLOCK_VERSION, flags, (uint32_t) idxs.size(), p0 };
        io.write(&h, sizeof(h));
        if (flags & BLOCK_EXT) {
            for (const uint32_t i : idxs) {
                const llama_kv_cell_ext e = cells.ext_get(i);
                io.write(&e, sizeof(e));
            }
        }
        if (flags & BLOCK_CELLS) {
            for (const uint32_t i : idxs) {
                const uint32_t cell = to_cell(i);
                io.write(&cell, sizeof(cell));
            }
        }
        kv.state_write_data(io, cr);
        for (const auto & [first, end] : cr.data) {
            if (taken) {
                taken->push_back({ cr.strm, first, end });
            }
        }
    }

    // What stands before the data of a block, checked against its cache.
    struct block {
        llama_pos p0;
        uint32_t  n;
        bool      more;

        std::vector<llama_kv_cell_ext> ext;
        std::vector<uint32_t>          wish;

        size_t data; // where it is in what is read
    };

    // may: flags that this block may have, besides those it must
    static block read_head(reader & io, const llama_kv_cache & kv, uint32_t n_vocab, bool with_cells, uint32_t may = 0) {
        block_header h;
        io.read(&h, sizeof(h));
        if (h.magic != BLOCK_MAGIC || h.version != BLOCK_VERSION) {
            refuse("not rows of this version");
        }
        if ((h.flags & ~may) != ((kv.has_cell_ext() ? BLOCK_EXT : 0) | (with_cells ? BLOCK_CELLS : 0))) {
            refuse("rows of another kind");
        }
        if (h.n_rows == 0 || h.n_rows > kv.get_size()) {
            refuse("no rows, or more than the cache has cells");
        }
        if (h.p0 < 0 || h.p0 > std::numeric_limits<llama_pos>::max() - (llama_pos) h.n_rows) {
            refuse("positions out of range");
        }

        block b { h.p0, h.n_rows, (h.flags & BLOCK_MORE) != 0, {}, {}, {} };
        if (h.flags & BLOCK_EXT) {
            b.ext = io.read_n<llama_kv_cell_ext>(b.n);
            for (const auto & e : b.ext) {
                if (e.tok != LLAMA_TOKEN_NULL && (e.tok < 0 || (uint32_t) e.tok >= n_vocab)) {
                    refuse("a token out of range");
                }
            }
        }
        if (with_cells) {
            b.wish = io.read_n<uint32_t>(b.n);
        }
        b.data = io.here();
        return b;
    }

    static void read_data(reader & io, llama_kv_cache & kv, const llama_kv_cache::slot_info & cells) {
        if (!kv.state_read_data(io, cells.strm[0], cells.size(), cells)) {
            refuse("rows of another shape");
        }
    }

    // The whole block; its data fit the cache, and whether there are cells for them is left to be seen.
    static block read_block(reader & io, llama_kv_cache & kv, llama_seq_id seq_id, uint32_t n_vocab, uint32_t may = 0) {
        check_settled(kv);
        block b = read_head(io, kv, n_vocab, true, may);
        llama_kv_cache::slot_info any = slot(kv.seq_to_stream[seq_id], b.n);
        std::iota(any.idxs[0].begin(), any.idxs[0].end(), 0);
        read_data(io, kv, any);
        return b;
    }

    static llama_kv_cache::slot_info slot(uint32_t strm, uint32_t n) {
        llama_kv_cache::slot_info res;
        res.s0 = strm;
        res.s1 = strm;
        res.resize(1);
        res.strm[0] = strm;
        res.idxs[0].resize(n);
        return res;
    }

    // Whether every row of these blocks can have the cell it wishes for.
    static bool can_grant(const llama_kv_cells & cells, std::initializer_list<const block *> blocks) {
        std::vector<bool> taken(cells.size());
        for (const block * b : blocks) {
            for (const uint32_t i : b->wish) {
                if (i >= cells.size() || taken[i] || !cells.is_empty(i)) {
                    return false;
                }
                taken[i] = true;
            }
        }
        return true;
    }

    // Tokens as upstream hands them out to cells. Refers to seq_id.
    static llama_ubatch make_ubatch(const llama_kv_cache & kv, llama_seq_id & seq_id, llama_pos p0, uint32_t n) {
        llama_batch_allocr balloc(kv.hparams.n_pos_per_embd());

        llama_ubatch ubatch = balloc.ubatch_reserve(n, 1);
        ubatch.seq_id_unq[0] = seq_id;
        for (uint32_t i = 0; i < n; ++i) {
            ubatch.pos     [i] = p0 + (llama_pos) i;
            ubatch.n_seq_id[i] = 1;
            ubatch.seq_id  [i] = &seq_id;
        }
        return ubatch;
    }

    // ext: of the cells from `first` on
    static void set_ext(llama_kv_cache & kv, const llama_kv_cache::slot_info & sinfo, size_t first, const std::vector<llama_kv_cell_ext> & ext) {
        for (size_t i = 0; i < ext.size(); ++i) {
            kv.v_cells[sinfo.strm[0]].ext_set(sinfo.idxs[0][first + i], ext[i]);
        }
    }

    // Gives the block its cells and notes down the copies into them; false when there is no room.
    static bool place_block(reader & io, llama_kv_cache & kv, llama_seq_id seq_id, const block & b, bool as_wished) {
        const llama_ubatch ubatch = make_ubatch(kv, seq_id, b.p0, b.n);

        llama_kv_cache::slot_info sinfo = slot(kv.seq_to_stream[seq_id], b.n);
        if (as_wished) {
            sinfo.idxs[0] = b.wish;
        } else {
            sinfo = kv.find_slot(ubatch, false);
            if (sinfo.empty()) {
                return false;
            }
        }

        io.go_to(b.data);
        read_data(io, kv, sinfo);
        kv.apply_ubatch(sinfo, ubatch);
        set_ext(kv, sinfo, 0, b.ext);
        return true;
    }

    // Rows of several blocks, each with a reader of its own, into cells that are found for all of them at once. The copies are
    // left to the caller.
    // filled: gets the cells that rows are written to
    static void append_rows(std::vector<reader> & ios, llama_kv_cache & kv, llama_seq_id seq_id, uint32_t n_vocab,
                            copies & noted, std::vector<cell_range> & filled) {
        check_settled(kv);
        const llama_pos p0 = kv.seq_pos_max(seq_id) + 1;

        std::vector<block> blocks;
        llama_pos p1 = p0;
        for (reader & io : ios) {
            blocks.push_back(read_head(io, kv, n_vocab, false));
            if (blocks.back().p0 != p1) {
                refuse("rows that do not begin where those before them end");
            }
            p1 += blocks.back().n;
            if ((uint32_t) (p1 - p0) > kv.get_size()) {
                refuse("more rows than the cache has cells");
            }
        }

        const llama_ubatch ubatch = make_ubatch(kv, seq_id, p0, p1 - p0);
        const llama_kv_cache::slot_info sinfo = kv.find_slot(ubatch, false);
        if (sinfo.empty()) {
            refuse("no free cells");
        }

        auto cell = sinfo.idxs[0].begin();
        for (size_t i = 0; i < ios.size(); ++i) {
            llama_kv_cache::slot_info own = slot(sinfo.strm[0], 0);
            own.idxs[0].assign(cell, cell + blocks[i].n);
            cell += blocks[i].n;
            ios[i].note_copies(noted);
            read_data(ios[i], kv, own);
            if (!ios[i].at_end()) {
                refuse("more data than rows");
            }
        }

        kv.apply_ubatch(sinfo, ubatch);
        for (const block & b : blocks) {
            set_ext(kv, sinfo, b.p0 - p0, b.ext);
        }
        add_ranges(filled, (uint32_t) sinfo.strm[0], sinfo.idxs[0]);
    }

    // Of all layers together.
    size_t row_bytes() const {
        return (rows->size_k_bytes() + rows->size_v_bytes())/rows->get_n_stream()/rows->get_size();
    }

    // Of recurrent state.
    size_t cell_bytes() const {
        return (recr->size_r_bytes() + recr->size_s_bytes())/recr->size;
    }

    llama_pos rows_count(llama_seq_id seq_id) const {
        const auto & by_pos = rows->v_cells[rows->seq_to_stream[seq_id]].seq_pos_get(seq_id);
        if (by_pos.empty()) {
            return 0;
        }
        const llama_pos n = by_pos.rbegin()->first + 1;
        return by_pos.begin()->first == 0 && by_pos.size() == (size_t) n ? n : 0;
    }

    bool share_rows(llama_seq_id from, llama_seq_id to, llama_pos n) const {
        const bool one_stream = rows->seq_to_stream[from] == rows->seq_to_stream[to];
        if (!one_stream || rows->get_has_shift() || rows_count(from) < n || rows->seq_pos_max(to) >= 0) {
            return false;
        }
        rows->seq_cp(from, to, 0, n);
        return true;
    }

    bool keep_rows(llama_seq_id seq_id, llama_pos n) const {
        if (rows->get_has_shift() || rows_count(seq_id) < n) {
            return false;
        }
        rows->seq_rm(seq_id, n, -1);
        clear_folded(seq_id);
        return true;
    }

    void write_folded(writer & io, llama_seq_id seq_id, uint32_t flags) const {
        if (window) {
            const auto & by_pos = window->v_cells[window->seq_to_stream[seq_id]].seq_pos_get(seq_id);
            if (by_pos.empty()) {
                refuse("the sequence is empty");
            }
            const llama_pos p0 = by_pos.begin()->first;
            const llama_pos p1 = by_pos.rbegin()->first + 1;
            llama_pos pw = p0;
            while (llama_hparams::is_masked_swa(window->n_swa, window->swa_type, pw, p1 - 1)) {
                ++pw;
            }
            check_window(pw, p1);
            if (flags & LLAMA_STATE_FOLDED_LAYOUT) {
                const cell_map as_it_is = [](uint32_t i) { return i; };
                write_block(io, *window, seq_id, pw, p1, pw > p0 ? BLOCK_MORE : 0, as_it_is);
                if (pw > p0) {
                    write_block(io, *window, seq_id, p0, pw, 0, as_it_is);
                }
            } else {
                // from the first cell on, in the order of the cells they are in: what upstream's restore does
                std::vector<uint32_t> kept;
                for (auto it = by_pos.lower_bound({ pw, 0 }); it != by_pos.end(); ++it) {
                    kept.push_back(it->second);
                }
                std::sort(kept.begin(), kept.end());
                write_block(io, *window, seq_id, pw, p1, 0, [&](uint32_t i) {
                    return (uint32_t) (std::lower_bound(kept.begin(), kept.end(), i) - kept.begin());
                });
            }
        }
        if (recr) {
            if (recr->seq_pos_max(seq_id) < 0) {
                refuse("the sequence is empty");
            }
            recr->state_write(io, seq_id, 0);
        }
        if (rest) {
            rest->state_write(io, seq_id, 0);
        }
    }

    // The rows before the window are there for the layout alone: where that cannot be had, they would only take up room.
    bool place_window(reader & io, llama_seq_id seq_id, const block & b, const block & before) const {
        window->seq_rm(seq_id, -1, -1);
        const bool as_wished = can_grant(window->v_cells[window->seq_to_stream[seq_id]], { &before, &b });
        if (as_wished && b.more) {
            place_block(io, *window, seq_id, before, true);
        }
        return place_block(io, *window, seq_id, b, as_wished);
    }

    // Upstream reads this part into the live caches as it goes; a refusal leaves it to the caller to clear them.
    void read_rest(reader & io, llama_seq_id seq_id, llama_pos n_tokens) const {
        rest->state_read(io, seq_id, 0);
        if (!io.at_end()) {
            refuse("more data than state");
        }
        if (rest->seq_pos_max(seq_id) + 1 != n_tokens) {
            refuse("state of another length");
        }
    }

    void clear_folded(llama_seq_id seq_id) const {
        if (rest) {
            rest->seq_rm(seq_id, -1, -1);
        }
        if (window) {
            window->seq_rm(seq_id, -1, -1);
        }
        if (recr) {
            recr->seq_rm(seq_id, -1, -1);
        }
    }

    // Everything that the next token will look at has to be there.
    void check_window(llama_pos p0, llama_pos p1) const {
        if (p0 > 0 && !llama_hparams::is_masked_swa(window->n_swa, window->swa_type, p0 - 1, p1)) {
            refuse("the window is not complete");
        }
    }

    // Upstream's reader of recurrent state aborts on some malformed headers, and clears the sequence before it looks at the
    // data: look at all of it first.
    void check_recurrent(reader & io, llama_pos n_tokens) const {
        struct { uint32_t n_cells; int32_t pos; uint32_t n_seq_id; } h;
        static_assert(sizeof(h) == 12, "three words");

        io.read(&h, sizeof(h));
        if (h.n_cells != 1 || h.n_seq_id != 0 || h.pos != n_tokens - 1) {
            refuse("recurrent state of another length");
        }
        if (!recr->state_read_data(io, 1)) {
            refuse("recurrent state of another shape");
        }
    }
};

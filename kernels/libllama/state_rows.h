// A sequence's state, cut in two: the part that may be cut by position, and the part that may not.
//
//   rows    attention K/V, one row per token and layer. Rows [0, n) of a sequence are valid without the rows after them.
//   folded  sliding-window K/V and recurrent state. It describes the sequence at one exact length and nothing else.
//
// Rows [0, n) and the folded part at n tokens, put back in either order, are the whole state at n tokens: the bytes of
// llama_state_seq_get_data are those of the sequence that was saved.
//
// These functions are compiled into libllama (libllama.cmake) because they need its memory classes; callers need llama.h
// and this header only. Like the rest of llama.h they are not thread-safe: one thread per context. No exception leaves them.
//
// The bytes do not depend on context size, number of sequences, unified or split KV, nor on the sequence id. They do depend
// on the model, the K and V types and on flash attention (V is stored transposed without it). They are in host byte order.
// Bytes from a hostile source are refused, or are rows and states of the right shape with the wrong content: what they
// cannot do is crash, write outside the sequence, or leave a refused append half done. Content is for a checksum to prove.

#pragma once

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the state of this context's sequences consists of. 0: it cannot be taken apart (or the context keeps no memory of its
// own); only llama_state_seq_get_data, for an exact length, will do.
enum llama_state_part {
    LLAMA_STATE_PART_ROWS   = 1,
    LLAMA_STATE_PART_FOLDED = 2,
};

LLAMA_API uint32_t llama_state_parts(const struct llama_context * ctx);

// Gets what copies between this context and host memory need: memory that devices reach by themselves, and a thread that takes
// state while the context goes on evaluating. Without it, what is taken is copied at once.
LLAMA_API void llama_state_prepare(struct llama_context * ctx);

// Returns when everything that was taken is copied. To be called before the context is freed, if it was prepared.
LLAMA_API void llama_state_finish(struct llama_context * ctx);

// Whether state is taken while the context goes on evaluating, from all its devices; and how many milliseconds it has waited
// since it was prepared, for cells that were being copied and for room for folded state.
LLAMA_API bool   llama_state_takes_beside(const struct llama_context * ctx);
LLAMA_API bool   llama_state_puts_beside (const struct llama_context * ctx); // into a device; host memory is there at once
LLAMA_API double llama_state_waited_ms   (const struct llama_context * ctx);

// State on its way between a context and host memory. What is there must stay until llama_state_taking_finish, which any thread may
// call.
struct llama_state_taking;

// Whether finishing it would not wait.
LLAMA_API bool llama_state_taking_ready(const struct llama_state_taking * taking);

// Waits until it is copied and frees it. False: something could not be copied; also for null.
LLAMA_API bool llama_state_taking_finish(struct llama_state_taking * taking);

// Whether the folded part has a sliding window. Upstream's partial state (LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) does not keep a
// window's cells where they were, so evaluation after it may round differently; recurrent state it copies.
LLAMA_API bool llama_state_has_window(const struct llama_context * ctx);

// The number of positions [0, n) whose rows the sequence holds without a gap; 0 where there are none or no rows part.
// llama_memory_seq_pos_max answers for the folded part where there is one, so it is no substitute.
LLAMA_API llama_pos llama_state_rows_count(const struct llama_context * ctx, llama_seq_id seq_id);

// About as many bytes as the rows of n positions take, a few more rather than less; 0 where there is no rows part.
LLAMA_API size_t llama_state_rows_estimate(const struct llama_context * ctx, uint32_t n);

// Rows of positions [p0, p1). 0: no rows part, positions missing or shared by several cells (an image), a shift or a copy
// that waits for the next llama_decode, or dst is too small. Otherwise the number of bytes.
LLAMA_API size_t llama_state_rows_size(
        struct llama_context * ctx,
                llama_seq_id   seq_id,
                   llama_pos   p0,
                   llama_pos   p1);

// Room for the rows of positions [p0, p1).
struct llama_state_rows_room {
    llama_pos p0;
    llama_pos p1;
    uint8_t * data;
    size_t    size;
};

// Fills each of them. Returns the bytes of all, or 0. Many in one call are faster than one after the other.
LLAMA_API size_t llama_state_rows_get(
                      struct llama_context * ctx,
        const struct llama_state_rows_room * rooms,
                                    size_t   n_rooms,
                              llama_seq_id   seq_id);

// The same, copied while the context goes on evaluating. Null where llama_state_rows_get gives 0.
LLAMA_API struct llama_state_taking * llama_state_rows_take(
                      struct llama_context * ctx,
        const struct llama_state_rows_room * rooms,
                                    size_t   n_rooms,
                              llama_seq_id   seq_id);

// Exactly what llama_state_rows_get fills one room with.
struct llama_state_rows_block {
    const uint8_t * data;
    size_t          size;
};

// Append rows: the first block begins where the sequence's rows end, each other one where the block before it ends.
// Returns the bytes of all blocks, or 0 and nothing has changed: malformed, another model or cache type, not the next
// position, no free cells. Many blocks in one call are faster than one after the other.
LLAMA_API size_t llama_state_rows_append(
                       struct llama_context * ctx,
        const struct llama_state_rows_block * blocks,
                                     size_t   n_blocks,
                               llama_seq_id   seq_id);

// The same, copied while the context goes on evaluating other sequences: this one must not be used, but may be removed, until it is
// finished. Null where llama_state_rows_append gives 0.
LLAMA_API struct llama_state_taking * llama_state_rows_append_begin(
                       struct llama_context * ctx,
        const struct llama_state_rows_block * blocks,
                                     size_t   n_blocks,
                               llama_seq_id   seq_id);

// Gives the rows of positions [0, n) to another sequence as well, which must hold none: both have them in the same cells, and
// nothing is copied. False, and nothing has changed: no rows part, sequences whose cells are apart (K/V that is not unified), rows
// that are not all there.
LLAMA_API bool llama_state_rows_share(
        struct llama_context * ctx,
                llama_seq_id   from,
                llama_seq_id   to,
                   llama_pos   n);

// Removes what the sequence holds but for the rows of positions [0, n): the folded part is empty afterwards. False, and nothing has
// changed: no rows part, rows that are not all there.
LLAMA_API bool llama_state_rows_keep(
        struct llama_context * ctx,
                llama_seq_id   seq_id,
                   llama_pos   n);

// Keep, besides the window, the rows that have left it and are not overwritten yet, so that the cells of the sequence are
// laid out as they were: with it, evaluation after a restore into an empty context is bit for bit that of a process that
// never stopped. Without it the part is smaller and exact in content, and sums over the window may round differently.
#define LLAMA_STATE_FOLDED_LAYOUT 1

// About as many bytes as the folded part takes; 0 where there is none, or its size depends on what it holds.
LLAMA_API size_t llama_state_folded_estimate(const struct llama_context * ctx);

// The folded part as it is now. 0: none, or as for rows.
LLAMA_API size_t llama_state_folded_size(
        struct llama_context * ctx,
                llama_seq_id   seq_id,
                    uint32_t   flags);

LLAMA_API size_t llama_state_folded_get(
        struct llama_context * ctx,
                     uint8_t * dst,
                      size_t   size,
                llama_seq_id   seq_id,
                    uint32_t   flags);

// The same, copied while the context goes on evaluating. Null where llama_state_folded_get gives 0.
LLAMA_API struct llama_state_taking * llama_state_folded_take(
        struct llama_context * ctx,
                     uint8_t * dst,
                      size_t   size,
                llama_seq_id   seq_id,
                    uint32_t   flags);

// Replace the folded part by one that was taken at exactly n_tokens. Returns size, or 0: malformed or another length, and
// nothing has changed; or the caches have no room for it, or the memory is one that upstream reads as it goes (DeepSeek 4),
// and the folded part is empty (drop the sequence).
LLAMA_API size_t llama_state_folded_set(
        struct llama_context * ctx,
               const uint8_t * src,
                      size_t   size,
                llama_seq_id   seq_id,
                   llama_pos   n_tokens);

#ifdef __cplusplus
}
#endif

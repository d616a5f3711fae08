// The cells of a K/V cache that all slots share: who has been promised how many.
//
// A request gets its slot only when the cells for its prompt and its answer are there, so that none fails half-way because others
// grew. What does not fit now waits, and whoever came after it waits too: a small request must not overtake a large one for ever.
// What idle slots hold counts as free: upstream clears them when cells are needed.
//
// An answer without a limit, or with one that only says that it may be long, is promised a share, and grows beyond it while there
// are cells that nobody was promised. When there are none it ends, as it would at the end of a context of its own.
//
// Where every slot has cells of its own there is nothing to promise, and everything fits.
//
// Thread safety: questions may be asked from any thread; reserve, grow and release belong to the inference thread.
#pragma once

#include "kvtier/thread_annotations.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>

namespace llama_run {

// What a request may take.
struct cell_need {
    size_t n_prompt  = 0; // tokens, which all of its answers share
    size_t n_answer  = 0; // tokens of each answer that are promised
    size_t n_most    = 0; // tokens of each answer that may come of it
    size_t n_answers = 1;
    bool   open_end  = false; // n_answer is its share, and it may grow

    size_t cells() const { return n_prompt + n_answer * n_answers; }
    size_t most_cells() const { return n_prompt + n_most * n_answers; }
};

class cell_pool {
public:
    // n_cells: 0 where slots do not share. n_ctx: tokens that a slot may hold.
    void open(size_t n_cells, size_t n_ctx, size_t n_slots) {
        kvtier::mutex_lock guard(mu);
        cells   = n_cells;
        context = n_ctx;
        slots   = std::max<size_t>(n_slots, 1);
        promised.clear();
        first_waiting.reset();
    }

    // n_predict: -1: no limit. An answer ends with its slot's context, whatever was asked for.
    cell_need need(size_t n_prompt, int32_t n_predict, size_t n_answers) const {
        kvtier::mutex_lock guard(mu);
        const size_t left = context > n_prompt ? context - n_prompt : 0;
        cell_need    out;
        out.n_prompt  = n_prompt;
        out.n_answers = n_answers;
        const size_t share = std::min(left, cells / slots / 2);
        const size_t limit = n_predict < 0 ? share : std::min(left, static_cast<size_t>(n_predict));
        out.open_end  = n_predict < 0 || (limit > share && n_predict > meant);
        out.n_answer  = out.open_end ? share : limit;
        out.n_most    = limit;
        return out;
    }

    bool can_ever_fit(const cell_need & n) const {
        kvtier::mutex_lock guard(mu);
        return cells == 0 || n.most_cells() <= cells;
    }

    bool fits_now(const cell_need & n) const {
        kvtier::mutex_lock guard(mu);
        return cells == 0 || (first_waiting.expired() && n.cells() <= cells - taken());
    }

    // For a request that was offered a slot. False: it waits, and for as long as `request` lives, those that came later wait
    // behind it. A request that is put off for another reason may come again.
    bool reserve(int id_slot, int id_task, const cell_need & n, const std::shared_ptr<void> & request) {
        kvtier::mutex_lock guard(mu);
        if (cells == 0) {
            return true;
        }
        for (auto p = promised.begin(); p != promised.end();) {
            const auto owner = p->second.owner.lock();
            p = !p->second.shared && (!owner || owner == request || !p->second.placed) ? promised.erase(p) : std::next(p);
        }
        const auto first = first_waiting.lock();
        if (first && first != request) {
            return false;
        }
        if (n.cells() > cells - taken()) {
            first_waiting = request;
            return false;
        }
        first_waiting.reset();
        promised[id_slot] = { n.cells(), n.n_prompt, n.n_answer, n.open_end, id_task, false, request, false };
        return true;
    }

    // The request is in its slot. One that was put off once more, for want of slots, holds nothing while others are offered theirs.
    void placed(int id_slot) {
        kvtier::mutex_lock guard(mu);
        if (const auto own = promised.find(id_slot); own != promised.end()) {
            own->second.placed = true;
        }
    }

    // A further answer of a request begins in a slot of its own.
    void share(int id_slot, int id_task) {
        kvtier::mutex_lock guard(mu);
        for (auto & [id, from] : promised) {
            if (from.id_task == id_task && !from.shared) {
                from.n_cells     -= std::min(from.n_cells, from.n_answer);
                promised[id_slot] = { from.n_answer, 0, from.n_answer, from.open_end, id_task, true, {}, true };
                return;
            }
        }
    }

    // Whether a slot that holds n_tokens, n_prompt of them its prompt, may hold one more.
    bool grow(int id_slot, size_t n_prompt, size_t n_tokens) {
        static constexpr size_t step = 64;
        kvtier::mutex_lock guard(mu);
        const auto own = promised.find(id_slot);
        if (own == promised.end() || !own->second.open_end) {
            return true;
        }
        // A further answer's slot counts the prompt, too, which it was not promised.
        const size_t n_own = own->second.shared && own->second.n_prompt == 0 ? own->second.n_cells + n_prompt : own->second.n_cells;
        if (n_tokens < n_own) {
            return true;
        }
        const size_t n_more = std::min(step, cells - taken());
        own->second.n_cells += n_more;
        return n_more > 0;
    }

    // Gives whether somebody waits who should be offered a slot again.
    bool release(int id_slot) {
        kvtier::mutex_lock guard(mu);
        const auto own = promised.find(id_slot);
        if (own == promised.end()) {
            return !first_waiting.expired();
        }
        const promise gone = own->second;
        promised.erase(own);
        for (auto & [id, other] : promised) {
            if (gone.n_prompt > 0 && other.id_task == gone.id_task) { // It still uses the prompt that they share.
                other.n_cells  += gone.n_prompt;
                other.n_prompt  = gone.n_prompt;
                break;
            }
        }
        return !first_waiting.expired();
    }

    bool somebody_waits() const {
        kvtier::mutex_lock guard(mu);
        return !first_waiting.expired();
    }

    size_t n_cells() const {
        kvtier::mutex_lock guard(mu);
        return cells;
    }

    size_t n_context() const {
        kvtier::mutex_lock guard(mu);
        return context;
    }

    size_t n_free() const {
        kvtier::mutex_lock guard(mu);
        return cells - taken();
    }

private:
    // Who asks for no more than so many tokens means it, and would rather wait than get less.
    static constexpr int32_t meant = 2048;

    struct promise {
        size_t              n_cells  = 0;
        size_t              n_prompt = 0; // of them
        size_t              n_answer = 0; // of them, for each answer
        bool                open_end = false;
        int                 id_task  = -1;
        bool                shared   = false; // it is a further answer's
        std::weak_ptr<void> owner;            // while it lives, the promise holds
        bool                placed   = false; // the request has the slot
    };

    size_t taken() const REQUIRES(mu) {
        size_t n = 0;
        for (const auto & [id, given] : promised) {
            n += given.shared || !given.owner.expired() ? given.n_cells : 0;
        }
        return std::min(n, cells);
    }

    mutable kvtier::mutex  mu;
    size_t                 cells GUARDED_BY(mu)   = 0;
    size_t                 context GUARDED_BY(mu) = 0;
    size_t                 slots GUARDED_BY(mu)   = 1;
    std::map<int, promise> promised GUARDED_BY(mu); // by slot
    std::weak_ptr<void>    first_waiting GUARDED_BY(mu);
};

} // namespace llama_run

#include "history/cut.h"

#include <algorithm>
#include <unordered_map>

namespace history {

namespace {

constexpr uint64_t near_percent = 90; // of the high mark: from here on the next cut is settled

// A message that brings the results of calls is part of the exchange that made them, whoever's name it bears.
bool starts_exchange(const message & m) {
    return m.role == role::user && m.results.empty();
}

class walker {
public:
    walker(const std::vector<message> & messages, const limits & l)
        : messages(messages),
          l(l),
          high(l.n_tokens * l.high_percent / 100),
          near(high * near_percent / 100),
          // What comes in between settling a cut and making it is left room for: after it, about the low mark is kept.
          target(l.n_tokens * l.low_percent / 100 - std::min(l.n_tokens * l.low_percent / 100, high - near)) {}

    cut run() {
        while (n < messages.size()) {
            add(messages[n]);
            if (n_kept(first) > near && planned == first) {
                settle();
            }
            if (n_kept(first) > high) {
                drop();
            }
        }
        return result();
    }

private:
    // What is known of a message once it was walked past.
    struct known {
        uint64_t n_before        = 0; // tokens of all messages before it that can be dropped
        size_t   n_open          = 0; // calls without a result
        size_t   last_result     = 0; // index of the last message that brings a result of its calls
        bool     starts_exchange = false;
    };

    void add(const message & m) {
        known k;
        k.n_before        = n_droppable;
        k.starts_exchange = starts_exchange(m);
        k.n_open          = m.calls.size();
        for (const std::string & id : m.results) {
            const auto call = open_calls.find(id);
            if (call != open_calls.end()) {
                past[call->second].last_result = n;
                past[call->second].n_open--;
                open_calls.erase(call);
            }
        }
        for (const std::string & id : m.calls) {
            open_calls[id] = n; // some clients number their calls from one again in every turn
        }
        if (k.starts_exchange) {
            start_before_last = last_start;
            last_start        = n;
        }
        (m.role == role::system ? n_system : n_droppable) += m.n_tokens;
        past.push_back(k);
        n++;
    }

    // Tokens of what is kept if all up to `start` is dropped.
    uint64_t n_kept(size_t start) const {
        return n_system + (start > 0 ? l.n_note_tokens : 0) + n_droppable - (start > 0 ? past[start].n_before : 0);
    }

    void settle() {
        const size_t start = find_start();
        if (n_kept(start) <= target) {
            planned = start;
        }
    }

    void drop() {
        if (planned == first || n_kept(planned) > high) {
            planned = find_start(); // nothing was settled, or more came at once than that left room for
        }
        n_cuts += planned != first;
        first = planned;
    }

    // The first message to keep after a cut: the earliest that leaves no more than the target, else the latest there is,
    // else `first`.
    size_t find_start() const {
        if (last_start <= first) {
            return first;
        }
        size_t best  = first;
        size_t reach = 0; // the last result of any call so far
        for (size_t i = first; i <= last_start; i++) {
            const bool drops_something = past[i].n_before > past[first].n_before;
            if (past[i].starts_exchange && reach < i && drops_something) {
                best = i;
                if (n_kept(i) <= target) {
                    break;
                }
            }
            reach = std::max(reach, past[i].last_result);
            if (past[i].n_open > 0 && i >= start_before_last) {
                reach = n; // its result may still come
            }
        }
        return best;
    }

    std::vector<range> kept_from(size_t start) const {
        std::vector<range> out;
        for (size_t i = 0; i < n; i++) {
            if (i < start && messages[i].role != role::system) {
                continue;
            }
            if (!out.empty() && out.back().end == i) {
                out.back().end++;
            } else {
                out.push_back({ i, i + 1 });
            }
        }
        return out;
    }

    cut result() const {
        cut c;
        c.kept = kept_from(first);
        if (planned != first) {
            c.ahead = kept_from(planned);
        }
        c.n_tokens = n_kept(first);
        c.n_over   = c.n_tokens > l.n_tokens ? c.n_tokens - l.n_tokens : 0;
        c.n_cuts   = n_cuts;
        for (size_t i = 0; i < first; i++) {
            if (messages[i].role != role::system) {
                c.n_dropped++;
                c.n_tokens_dropped += messages[i].n_tokens;
            }
        }
        return c;
    }

    const std::vector<message> & messages;
    const limits &               l;
    const uint64_t               high;
    const uint64_t               near;
    const uint64_t               target;

    std::vector<known>                      past;
    std::unordered_map<std::string, size_t> open_calls;

    size_t   n                 = 0; // messages walked past
    size_t   first             = 0; // to keep
    size_t   planned           = 0; // to keep after the next cut; `first` as long as that is not settled
    size_t   last_start        = 0; // of an exchange
    size_t   start_before_last = 0;
    uint64_t n_system          = 0; // tokens
    uint64_t n_droppable       = 0;
    size_t   n_cuts            = 0;
};

} // namespace

cut cut_history(const std::vector<message> & messages, const limits & l) {
    return walker(messages, l).run();
}

} // namespace history

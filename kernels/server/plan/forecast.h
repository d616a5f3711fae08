// How long a request will take to its first token, from what earlier ones took.
//
// A prompt's time is that of restoring what is stored of it and of evaluating the rest. Both are fitted, with the newest
// measurements weighing most: restoring by bytes, from RAM and from disk apart; evaluating by tokens, and by how much came
// before them, which attention looks at. What is minimised is the relative error: an answer that is predicted to come in ten
// seconds may be a second off.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "kvtier/thread_annotations.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <istream>
#include <ostream>
#include <string>

namespace llama_run {

// What is known of a prompt before anything is done for it.
struct prompt_facts {
    size_t   n_tokens   = 0;
    size_t   n_reused   = 0; // of them need not be evaluated
    uint64_t bytes_ram  = 0; // that are copied for it
    uint64_t bytes_disk = 0; // that are read

    size_t n_evaluated() const { return n_tokens - n_reused; }
};

struct forecast {
    double queue_ms   = 0; // until it has a slot
    double restore_ms = 0;
    double eval_ms    = 0;
    bool   known      = false; // something like it was measured

    double first_token_ms() const { return queue_ms + restore_ms + eval_ms; }
};

// y = sum of weights times features, none of them negative, fitted to what was seen. Not thread-safe.
template <size_t N>
class fitted {
public:
    using features = std::array<double, N>;

    void add(const features & x, double y) {
        if (!(y > 0)) {
            return;
        }
        for (size_t i = 0; i < N; i++) {
            for (size_t j = 0; j < N; j++) {
                squares[i][j] = fading * squares[i][j] + x[i] * x[j] / (y * y);
            }
            products[i] = fading * products[i] + x[i] / y; // y / y^2: errors are relative
        }
        n++;
        solve();
    }

    double at(const features & x) const {
        double y = 0;
        for (size_t i = 0; i < N; i++) {
            y += weights[i] * x[i];
        }
        return y;
    }

    bool known() const { return n > 0; }

    void write(std::ostream & out) const {
        out << " " << n;
        for (size_t i = 0; i < N; i++) {
            out << " " << products[i];
            for (size_t j = 0; j < N; j++) {
                out << " " << squares[i][j];
            }
        }
    }

    // Of what an earlier process wrote; it counts for less than what is seen now. False: it is not of that kind.
    bool read(std::istream & in) {
        static constexpr double remembered = 0.1;
        fitted before;
        in >> before.n;
        for (size_t i = 0; i < N; i++) {
            in >> before.products[i];
            before.products[i] *= remembered;
            for (size_t j = 0; j < N; j++) {
                in >> before.squares[i][j];
                before.squares[i][j] *= remembered;
            }
        }
        if (!in) {
            return false;
        }
        before.solve();
        *this = before;
        return true;
    }

private:
    static constexpr double fading = 0.97;
    static constexpr int    rounds = 400;

    // One weight after the other is set to its best, and never below zero; for a few weights that soon stands still.
    void solve() {
        for (int round = 0; round < rounds; round++) {
            for (size_t i = 0; i < N; i++) {
                double rest = products[i];
                for (size_t j = 0; j < N; j++) {
                    rest -= j != i ? squares[i][j] * weights[j] : 0;
                }
                weights[i] = squares[i][i] > 0 && rest > 0 ? rest / squares[i][i] : 0;
            }
        }
    }

    std::array<features, N> squares{};
    features                products{};
    features                weights{};
    uint64_t                n = 0;
};

// How predictions compare with what happened.
struct residuals {
    uint64_t n             = 0; // compared
    uint64_t n_recent      = 0; // of them the last, which the rest is about
    double   within_1_5    = 0; // share within a factor of 1.5
    double   median_factor = 0; // what happened by what was predicted
    double   worst_factor  = 0; // the largest of factor and its inverse
};

class forecaster {
public:
    forecast predict(const prompt_facts & prompt) const;

    // What a request really took. alone: nobody else was being evaluated meanwhile; what took longer for others teaches nothing.
    void restored(const prompt_facts & prompt, double ms);
    void evaluated(const prompt_facts & prompt, double ms, bool alone);

    // The two are compared.
    void happened(const forecast & said, double first_token_ms);

    // A request has left its slot after so long.
    void served(double ms);
    double mean_service_ms() const; // 0: unknown

    residuals how_good() const;

    // What was learnt, for the next process. A text that is none is passed over.
    std::string learnt() const;
    void        recall(const std::string & text);

private:
    static constexpr size_t n_kept = 128;

    using by_bytes  = fitted<2>;
    using by_tokens = fitted<3>;

    static by_bytes::features  bytes_features(uint64_t bytes);
    static by_tokens::features token_features(const prompt_facts & prompt);

    mutable kvtier::mutex mu;
    by_bytes              ram GUARDED_BY(mu);
    by_bytes              disk GUARDED_BY(mu);
    by_tokens             eval GUARDED_BY(mu);
    double                service_ms GUARDED_BY(mu) = 0;
    uint64_t              n_compared GUARDED_BY(mu) = 0;
    std::deque<double>    factors GUARDED_BY(mu);
};

} // namespace llama_run

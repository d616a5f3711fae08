#include "server/warm/warmer.h"

#include "server/cache/stopwatch.h"
#include "server/state_cache.h"
#include "server/warm/continuations.h"

#include "log.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <vector>

namespace llama_run {

common_json warm_result::describe() const {
    return {
        { "tokens",      n_tokens },
        { "evaluated",   n_evaluated },
        { "restored",    n_restored },
        { "on_disk",     on_disk },
        { "bytes",       bytes },
        { "ms",          ms },
        { "interrupted", n_interrupted },
    };
}

// How many tokens every continuation of the prompt begins with.
size_t warmer::shared_tokens(const std::string & route, const http_headers & headers, const common_json & body) const {
    const std::vector<common_json> bodies = continuations(route, body);
    const std::vector<kvtier::token> first = probe.look(route, headers, bodies[0]).tokens;
    size_t n = first.size();
    for (size_t i = 1; i < bodies.size(); i++) {
        const std::vector<kvtier::token> other = probe.look(route, headers, bodies[i]).tokens;
        const size_t n_both = std::min(n, other.size());
        n = static_cast<size_t>(std::mismatch(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(n_both), other.begin()).first -
                                first.begin());
    }
    // The last token of a prompt is always evaluated: where the answer is one of the continuations, the one before is the last
    // of use.
    return bodies.size() > 1 ? std::min(n, first.size() - std::min<size_t>(first.size(), 1)) : n;
}

warm_result warmer::prepare(const std::string & route, const http_headers & headers, const common_json & body,
                            const std::function<bool()> & client_left) {
    const auto stop = [&] { return stopping || client_left(); };
    warm_result out;
    out.n_tokens = shared_tokens(route, headers, body);
    if (out.n_tokens == 0) {
        throw std::invalid_argument("prompts that begin like this share nothing that could be prepared");
    }
    n_wanted    = out.n_tokens;
    n_evaluated = 0;

    // The template wants a continuation; its tokens are cut off again.
    const common_json whole = continuations(route, body)[0];
    foreseen          found = probe.look(route, headers, whole, out.n_tokens).found;
    const size_t      n_before = found.prompt.n_reused;
    bool              evaluated = n_before == out.n_tokens && found.source != cache_source::slot;
    out.n_restored = n_before;
    while (!evaluated) {
        if (!cache.wait_until_idle(stop)) {
            throw std::runtime_error(stopping ? stopping_message : "whoever asked has gone");
        }
        const stopwatch watch;
        errand          own;
        own.n_keep  = out.n_tokens;
        own.posting = [&](int id_task) {
            n_restored = n_evaluated = 0;
            interrupted = false;
            running     = id_task;
            if (!cache.is_idle()) {
                interrupted = true; // Whoever came since saw nothing to interrupt.
            }
        };
        evaluated = probe.evaluate(own, route, headers, whole, [&] { return interrupted || stop(); });
        running = -1;
        out.ms += watch.ms();
        if (!evaluated) {
            out.n_interrupted++;
        } else if (out.n_interrupted == 0) {
            out.n_restored  = n_restored;
            out.n_evaluated = n_evaluated;
        } else {
            out.n_evaluated = out.n_tokens - n_before;
        }
    }
    if (!cache.saves_power()) {
        cache.flush();
    }
    found       = probe.look(route, headers, whole, out.n_tokens).found;
    out.bytes   = found.prompt.bytes_ram + found.prompt.bytes_disk;
    out.on_disk = found.source != cache_source::slot && found.prompt.n_reused == out.n_tokens;
    return out;
}

warm_result warmer::warm(const std::string & route, const http_headers & headers, const common_json & body,
                         const std::function<bool()> & client_left) {
    n_queued++;
    {
        kvtier::mutex_lock guard(mu);
        const uint64_t number = n_came++;
        while (n_gone < number) {
            if (stopping || client_left()) {
                gave_up.insert(number);
                n_queued--;
                n_failed++;
                throw std::runtime_error(stopping ? stopping_message : "whoever asked has gone");
            }
            (void) changed.wait_until(guard, std::chrono::steady_clock::now() + std::chrono::seconds(1));
        }
    }
    // What it ends with, whatever happens.
    const std::shared_ptr<void> turn(this, [](void * of) {
        auto & own = *static_cast<warmer *>(of);
        own.n_queued--;
        own.running  = -1;
        own.n_wanted = 0;
        kvtier::mutex_lock guard(own.mu);
        do {
            own.n_gone++;
        } while (own.gave_up.erase(own.n_gone) > 0);
        own.changed.notify_all();
    });
    try {
        const warm_result out = prepare(route, headers, body, client_left);
        n_done++;
        LOG_INF("cache: warmed %zu tokens, %zu of them evaluated, in %.0f ms\n", out.n_tokens, out.n_evaluated, out.ms);
        return out;
    } catch (const std::exception &) {
        n_failed++;
        throw;
    }
}

void warmer::give_way() {
    const int id_task = running;
    if (id_task >= 0 && !interrupted.exchange(true)) {
        cache.cancel(id_task);
    }
}

void warmer::start_from(const std::string & file) {
    starter = std::thread([this, file] { run_file(file); });
}

void warmer::run_file(const std::string & file) {
    while (!http.is_ready) {
        if (stopping || cache.is_stopping()) {
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    std::ifstream in(file);
    if (!in) {
        LOG_ERR("cache: nothing is warmed: cannot read %s\n", file.c_str());
        return;
    }
    std::string text;
    for (size_t line = 1; !stopping && std::getline(in, text); line++) {
        if (text.find_first_not_of(" \t\r") == std::string::npos) {
            continue;
        }
        try {
            const common_json body = common_json::parse(text);
            (void) warm(route_of_body(body), {}, body, [] { return false; });
        } catch (const std::exception & e) {
            LOG_ERR("cache: %s, line %zu: not warmed: %s\n", file.c_str(), line, e.what());
        }
    }
}

void warmer::stop() {
    stopping = true;
    if (starter.joinable()) {
        starter.join();
    }
}

common_json warmer::describe() const {
    return {
        { "queued",    n_queued.load() },
        { "done",      n_done.load() },
        { "failed",    n_failed.load() },
        { "tokens",    n_wanted.load() },
        { "evaluated", n_evaluated.load() },
    };
}

} // namespace llama_run

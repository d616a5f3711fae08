#include "server/plan/forecast.h"

#include <algorithm>
#include <sstream>
#include <vector>

namespace llama_run {

// What grows comes first: as long as little was seen, that is what the time is put down to.
forecaster::by_bytes::features forecaster::bytes_features(uint64_t bytes) {
    return { static_cast<double>(bytes) / 1e6, 1 };
}

// Each evaluated token looks at all before it: the middle one at so many.
forecaster::by_tokens::features forecaster::token_features(const prompt_facts & prompt) {
    const double n      = static_cast<double>(prompt.n_evaluated()) / 1e2;
    const double middle = (static_cast<double>(prompt.n_reused) + static_cast<double>(prompt.n_evaluated()) / 2) / 1e4;
    return { n, 1, n * middle };
}

forecast forecaster::predict(const prompt_facts & prompt) const {
    kvtier::mutex_lock guard(mu);
    forecast out;
    out.eval_ms = eval.at(token_features(prompt));
    out.known   = eval.known();
    if (prompt.bytes_disk > 0) {
        // What is in RAM of it is copied while the rest is read.
        const by_bytes & like = disk.known() ? disk : ram;
        out.restore_ms = like.at(bytes_features(prompt.bytes_disk + prompt.bytes_ram));
        out.known      = out.known && like.known();
    } else if (prompt.bytes_ram > 0) {
        out.restore_ms = ram.at(bytes_features(prompt.bytes_ram));
        out.known      = out.known && ram.known();
    }
    return out;
}

void forecaster::restored(const prompt_facts & prompt, double ms) {
    kvtier::mutex_lock guard(mu);
    if (prompt.bytes_disk > 0) {
        disk.add(bytes_features(prompt.bytes_disk + prompt.bytes_ram), ms);
    } else if (prompt.bytes_ram > 0) {
        ram.add(bytes_features(prompt.bytes_ram), ms);
    }
}

void forecaster::evaluated(const prompt_facts & prompt, double ms, bool alone) {
    if (alone && prompt.n_evaluated() > 0) {
        kvtier::mutex_lock guard(mu);
        eval.add(token_features(prompt), ms);
    }
}

void forecaster::happened(const forecast & said, double first_token_ms) {
    if (!said.known || !(first_token_ms > 0) || !(said.first_token_ms() > 0)) {
        return;
    }
    kvtier::mutex_lock guard(mu);
    n_compared++;
    factors.push_back(first_token_ms / said.first_token_ms());
    if (factors.size() > n_kept) {
        factors.pop_front();
    }
}

void forecaster::served(double ms) {
    kvtier::mutex_lock guard(mu);
    service_ms = service_ms == 0 ? ms : 0.8 * service_ms + 0.2 * ms;
}

double forecaster::mean_service_ms() const {
    kvtier::mutex_lock guard(mu);
    return service_ms;
}

static constexpr const char * learnt_kind = "llama-run-speeds-1";

std::string forecaster::learnt() const {
    kvtier::mutex_lock guard(mu);
    std::ostringstream out;
    out.precision(17);
    out << learnt_kind;
    ram.write(out);
    disk.write(out);
    eval.write(out);
    out << "\n";
    return out.str();
}

void forecaster::recall(const std::string & text) {
    std::istringstream in(text);
    std::string        kind;
    by_bytes           of_ram;
    by_bytes           of_disk;
    by_tokens          of_eval;
    if (in >> kind && kind == learnt_kind && of_ram.read(in) && of_disk.read(in) && of_eval.read(in)) {
        kvtier::mutex_lock guard(mu);
        ram  = of_ram;
        disk = of_disk;
        eval = of_eval;
    }
}

residuals forecaster::how_good() const {
    std::vector<double> sorted;
    residuals           out;
    {
        kvtier::mutex_lock guard(mu);
        sorted.assign(factors.begin(), factors.end());
        out.n = n_compared;
    }
    out.n_recent = sorted.size();
    if (sorted.empty()) {
        return out;
    }
    std::sort(sorted.begin(), sorted.end());
    const auto good = std::count_if(sorted.begin(), sorted.end(), [](double f) { return f <= 1.5 && f >= 1 / 1.5; });
    out.within_1_5    = static_cast<double>(good) / static_cast<double>(sorted.size());
    out.median_factor = sorted[sorted.size() / 2];
    out.worst_factor  = std::max(sorted.back(), 1 / sorted.front());
    return out;
}

} // namespace llama_run

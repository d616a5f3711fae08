// What the cache says about itself: JSON for the routes, text for /metrics.
#include "server/cache_core.h"

#include "kvtier/file_names.h"

#include <utility>

namespace llama_run {

// For /cache as they are, for /metrics with a prefix.
struct number {
    const char * name;
    const char * meaning;
    uint64_t     value;
};

static std::vector<number> counted(const kvtier::counter_values & v) {
    return {
#define LLAMA_RUN_NUMBER(name, meaning) { #name, meaning, v.name },
        KVTIER_COUNTERS(LLAMA_RUN_NUMBER)
#undef LLAMA_RUN_NUMBER
    };
}

static std::vector<number> measured(const kvtier::store_stats & s, const kvtier::writer & queue) {
    return {
        { "disk_bytes",    "bytes on disk, other models included", s.disk_bytes },
        { "disk_limit",    "bytes on disk at most",                s.disk_limit },
        { "ram_bytes",     "bytes of state in RAM",                s.ram_bytes },
        { "ram_limit",     "bytes of state in RAM at most",        s.ram_limit },
        { "index_bytes",   "bytes of RAM that the index takes",    s.index_bytes },
        { "conversations", "conversations stored",                 s.n_conversations },
        { "checkpoints",   "checkpoints stored",                   s.n_checkpoints },
        { "anchors",       "anchors stored",                       s.n_anchors },
        { "pages",         "pages and parts of pages stored",      s.n_runs },
        { "segments",      "files they are in",                    s.n_segments },
        { "queued",        "saves waiting for the disk",           queue.queued() },
        { "queued_bytes",  "their bytes",                          queue.queued_bytes() },
    };
}

static common_json object_of(const std::vector<number> & numbers) {
    common_json out = common_json::object();
    for (const number & n : numbers) {
        out[n.name] = n.value;
    }
    return out;
}

common_json cache_core::describe() const {
    const kvtier::store_stats stats = target->store().stats();
    common_json damaged = common_json::object();
    for (size_t i = 1; i < stats.values.damaged.size(); i++) {
        damaged[kvtier::damage_name(static_cast<kvtier::damage>(i))] = stats.values.damaged[i];
    }
    common_json sources = common_json::object();
    for (size_t i = 0; i < by_source.size(); i++) {
        sources[cache_source_name(static_cast<cache_source>(i))] = by_source[i].load();
    }
    common_json misses = common_json::object();
    for (size_t i = 0; i < by_miss.size(); i++) {
        misses[cache_miss_name(static_cast<cache_miss>(i))] = by_miss[i].load();
    }
    const kvtier::store_options & options = target->store().options();
    common_json out = {
        { "enabled",     true },
        { "path",        root_dir },
        { "fingerprint", kvtier::hex(options.fingerprint) },
        { "page_size",   options.page_size },
        { "restores_at", target->folded() ? "anchors" : "any_token" },
        { "draft",       draft != nullptr },
        { "requests",    {
            { "finished",         n_requests.load() },
            { "tokens_reused",    n_reused.load() },
            { "tokens_evaluated", n_evaluated.load() },
            { "by_source",        sources },
            { "by_miss",          misses },
        } },
        { "speed",       {
            { "disk_bytes_per_s",  disk_speed.get() },
            { "copy_bytes_per_s",  copy_speed.get() },
            { "eval_tokens_per_s", eval_speed.get() },
        } },
        { "last_error",  target->queue().last_error() },
    };
    out["state"]    = object_of(measured(stats, target->queue()));
    out["counters"] = object_of(counted(stats.values));
    out["damaged"]  = damaged;
    return out;
}

common_json cache_core::conversations() const {
    common_json out = common_json::array();
    for (const kvtier::conversation_info & c : target->store().list()) {
        if (c.name_space != kvtier::user_key("")) {
            continue; // a user's conversations are that user's business
        }
        out.push_back({
            { "hash",         kvtier::hex(c.hash) },
            { "turns",        c.turns },
            { "tokens",       c.n_tokens },
            { "bytes_own",    c.bytes_own },
            { "bytes_shared", c.bytes_shared },
            { "hits",         c.hits },
            { "tier",         kvtier::tier_name(c.where) },
            { "created_ms",   c.created_ms },
            { "last_used_ms", c.last_used_ms },
            { "backend",      c.backend },
        });
    }
    return out;
}

static void add_metric(std::string & out, const std::string & name, const std::string & meaning, const char * type,
                       double value) {
    out += "# HELP llamacpp:cache_" + name + " " + meaning + "\n# TYPE llamacpp:cache_" + name + " " + type +
           "\nllamacpp:cache_" + name + " " + std::to_string(value) + "\n";
}

std::string cache_core::metrics() const {
    const kvtier::store_stats stats = target->store().stats();
    std::string out;
    for (const number & n : measured(stats, target->queue())) {
        add_metric(out, n.name, n.meaning, "gauge", static_cast<double>(n.value));
    }
    for (const number & n : counted(stats.values)) {
        add_metric(out, std::string(n.name) + "_total", n.meaning, "counter", static_cast<double>(n.value));
    }
    add_metric(out, "damaged_total", "files set aside", "counter", static_cast<double>(stats.values.damaged_total()));
    add_metric(out, "requests_total", "requests served with the cache on", "counter", static_cast<double>(n_requests.load()));
    add_metric(out, "tokens_reused_total", "prompt tokens not evaluated again", "counter", static_cast<double>(n_reused.load()));
    add_metric(out, "tokens_evaluated_total", "prompt tokens evaluated", "counter", static_cast<double>(n_evaluated.load()));
    return out;
}

bool cache_core::remove_conversation(uint64_t hash, uint64_t & bytes_freed) {
    {
        std::lock_guard<std::mutex> guard(notice_mu);
        for (slot_notice & notice : notices) {
            notice.forget = notice.forget || notice.conversation == hash;
        }
    }
    flush();
    bool found = false;
    bytes_freed = 0;
    for (sequence_store * s : { target.get(), draft.get() }) {
        uint64_t freed = 0;
        if (s != nullptr && s->store().remove_conversation(kvtier::user_key(""), hash, freed).is_ok()) {
            found = true;
            bytes_freed += freed;
        }
    }
    return found;
}

} // namespace llama_run

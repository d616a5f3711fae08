#include "server/state_cache.h"

#include "server/cache_core.h"

#include "log.h"

#include <utility>

namespace llama_run {

void state_cache::open(common_params & params, llama_context * target, llama_context * draft, std::function<void()> retry) {
    if (params.cache_ssd.path.empty()) {
        return;
    }
    std::shared_ptr<cache_core> made;
    const kvtier::status s = cache_core::open(params, target, draft, std::move(retry), made);
    std::lock_guard<std::mutex> guard(mu);
    if (!s.is_ok()) {
        why_off = s.message();
        LOG_ERR("cache: off, serving without it: %s\n", why_off.c_str());
        return;
    }
    // One cache in RAM is enough, and ours shares what prompts have in common.
    params.cache_ram_mib    = 0;
    params.cache_idle_slots = false;
    open_ = std::move(made);
    LOG_INF("cache: on, in %s\n", params.cache_ssd.path.c_str());
}

void state_cache::close() {
    std::shared_ptr<cache_core> closing;
    {
        std::lock_guard<std::mutex> guard(mu);
        std::swap(closing, open_);
    }
    if (closing) {
        closing->close();
    }
}

std::shared_ptr<cache_core> state_cache::core() const {
    std::lock_guard<std::mutex> guard(mu);
    return open_;
}

void state_cache::arrive(server_task & task) const {
    if (const auto c = core()) {
        c->arrive(task);
    }
}

bool state_cache::ready(const slot_view & slot, server_task & task) const {
    const auto c = core();
    return !c || c->ready(slot, task);
}

cache_report state_cache::restore(const slot_view & slot, server_prompt & prompt, const server_task & task,
                                  const std::function<bool()> & make_room) const {
    const auto c = core();
    return c ? c->restore(slot, prompt, task, make_room) : cache_report();
}

void state_cache::anchor(const slot_view & slot, int64_t n_tokens) const {
    if (const auto c = core()) {
        c->anchor(slot, static_cast<uint32_t>(n_tokens));
    }
}

void state_cache::evaluated(const slot_view & slot) const {
    if (const auto c = core()) {
        c->evaluated(slot);
    }
}

void state_cache::released(const slot_view & slot) const {
    if (const auto c = core()) {
        c->released(slot);
    }
}

common_json state_cache::describe() const {
    if (const auto c = core()) {
        return c->describe();
    }
    std::lock_guard<std::mutex> guard(mu);
    return { { "enabled", false }, { "reason", why_off } };
}

common_json state_cache::conversations() const {
    const auto c = core();
    return c ? c->conversations() : common_json::array();
}

std::string state_cache::metrics() const {
    const auto c = core();
    return c ? c->metrics() : std::string();
}

void state_cache::flush() const {
    if (const auto c = core()) {
        c->flush();
    }
}

bool state_cache::remove_conversation(uint64_t hash, uint64_t & bytes_freed) const {
    const auto c = core();
    return c && c->remove_conversation(hash, bytes_freed);
}

} // namespace llama_run

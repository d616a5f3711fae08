#include "server/state_cache.h"

#include "server/cache/cache_core.h"
#include "server/lost_worker.h"
#include "server/plan/errand.h"
#include "server/printable.h"
#include "server/warm/vendors.h"
#include "server/warm/warmer.h"

#include "log.h"

#include <chrono>
#include <thread>
#include <utility>

namespace llama_run {

state_cache::state_cache() : planner(std::make_unique<request_planner>()) {}

state_cache::~state_cache() {
    forget_workers();
}

void state_cache::open(common_params & params, llama_context * target, llama_context * draft, server_queue & queue) {
    experts.open(target);
    overflow.open(params, target);
    planner->open(params, target, false);
    live->slots.open(static_cast<size_t>(params.n_parallel));
    watch_workers([&queue] { queue.terminate(); }, [this] {
        if (const auto c = core()) {
            c->write_taken();
        }
    });
    if (params.cache_ssd.path.empty()) {
        return;
    }
    std::shared_ptr<cache_core> made;
    const kvtier::status s = cache_core::open(params, target, draft, queue, stopping, made);
    kvtier::mutex_lock guard(mu);
    this->queue = &queue;
    model_names = params.model_alias;
    last_metrics.clear();
    if (!s.is_ok()) {
        why_off = s.message();
        held_by = s.holder();
        path    = params.cache_ssd.path;
        LOG_ERR("cache: off, serving without it: %s\n", why_off.c_str());
        return;
    }
    // One cache in RAM is enough, and ours shares what prompts have in common.
    params.cache_ram_mib    = 0;
    params.cache_idle_slots = false;
    planner->open(params, target, true);
    planner->recall(made->speeds_file());
    made->hold_writes(power.is_low());
    made->admin().finished.told = [live = live](const finished_request & request) { live->finished(request); };
    open_ = std::move(made);
    if (!sweeping) {
        sweeping = std::make_unique<sweeper>([this] { sweep(); }, std::chrono::seconds(params.cache_ssd.sweep_seconds));
    }
    guard.unlock();
    ahead_warmer::keeper keeper;
    keeper.stored = [this](const server_task & task, const std::string & user) {
        const auto c = core();
        return c ? c->stored(task, user) : size_t(0);
    };
    keeper.arrive = [this](server_task & task, const ahead_warmer::job & of, bool last) {
        admission from;
        from.user         = of.user;
        from.conversation = of.conversation;
        arrive(task, from);
        task.cache->warms = last ? warming::end : warming::part;
    };
    overflow.ahead.open(params, target, queue, std::move(keeper));
    LOG_INF("cache: on, in %s\n", params.cache_ssd.path.c_str());
}

void state_cache::close() {
    overflow.close();
    experts.close();
    planner->close();
    if (stopping && warming_) {
        warming_->stop();
    }
    std::shared_ptr<cache_core> closing;
    {
        kvtier::mutex_lock guard(mu);
        std::swap(closing, open_);
        why_off = closing ? "closed while the server sleeps: the next request wakes both" : why_off;
    }
    if (closing) {
        closing->close();
        std::string said = closing->admin().metrics();
        kvtier::mutex_lock guard(mu);
        last_metrics = std::move(said);
    }
}

std::shared_ptr<cache_core> state_cache::core() const {
    kvtier::mutex_lock guard(mu);
    return open_;
}

// A server that sleeps has closed its cache, and is left alone: what expires meanwhile goes when it wakes.
void state_cache::sweep() {
    server_queue * known = known_queue();
    const auto held = known->awake.hold(); // It comes before the question whether it sleeps.
    const auto c    = known->is_sleeping() ? nullptr : core();
    if (c) {
        c->handovers().forget_silent();
    }
    if (c && !power.is_low()) { // Removing writes what was kept back. The next sweep finds what has expired.
        forget_expired(*c);
    }
}

void state_cache::forget_expired(cache_core & from) {
    for (const kvtier::conversation_id & id : from.admin().sweep()) {
        overflow.ahead.forget(id);
    }
}

std::shared_ptr<void> state_cache::wake() const {
    server_queue * known = known_queue();
    if (known == nullptr) {
        return nullptr;
    }
    auto held = known->awake.hold();
    known->wait_until_no_sleep();
    return held;
}

std::string state_cache::off_because() const {
    kvtier::mutex_lock guard(mu);
    return open_ ? std::string() : stopping ? stopping_message : why_off;
}

// Agents insist on names like claude-... and gpt-...; whoever wonders which model answers them finds it in the log, once.
void state_cache::say_model(const common_json & body) {
    if (said_model || !body.contains("model") || !body.at("model").is_string()) {
        return;
    }
    const std::string asked = body.at("model").get<std::string>();
    kvtier::mutex_lock guard(mu);
    if (!asked.empty() && !model_names.empty() && model_names.count(asked) == 0 && !said_model.exchange(true)) {
        LOG_INF("a client asks for the model '%s': there is one here, '%s', and it serves every name\n", printable(asked).c_str(),
                model_names.begin()->c_str());
    }
}

std::shared_ptr<admission> state_cache::admit(const server_http_req & req, const common_json & body, task_response_type api,
                                              const cache_options & options) {
    const bool chat = api != TASK_RESPONSE_TYPE_NONE && api != TASK_RESPONSE_TYPE_OAI_CMPL;
    // Who asks matters to the cache, to the limit and to the memory; without them, a client may call its user what it likes.
    const bool asked = !options.path.empty() || options.max_concurrent_per_user > 0 || (chat && context_overflow::was_cut());
    auto made = std::make_shared<admission>();
    made->user  = asked ? user_of_request(req.headers, body, api == TASK_RESPONSE_TYPE_ANTHROPIC, options) : std::string();
    if (asked) {
        made->conversation = conversation_of_request(req.headers, body, api == TASK_RESPONSE_TYPE_ANTHROPIC);
        if (chat) {
            context_overflow::name_conversation(made->conversation);
        }
    }
    if (errand::current() != nullptr) {
        made->conversation.title.clear(); // What it says may be made up, to see where prompts part.
        return made;
    }
    if (core() && asks_to_warm(body, api)) {
        warm_for_vendor(req, body, api);
    }
    made->place = gate.enter(made->user, options.max_concurrent_per_user);
    if (!made->place) {
        return nullptr;
    }
    made->in_line = planner->enter(options);
    if (warming_) {
        warming_->give_way();
    }
    say_model(body);
    made->under_way = overflow.ahead.enter();
    if (chat) {
        made->dropped = overflow.admit(made->user, made->conversation);
    }
    if (chat && !options.path.empty()) {
        made->stable = body.contains(stable_field) ? static_cast<uint8_t>(body.at(stable_field).get<int>()) : uint8_t(0);
        n_made_stable += made->stable != 0;
        tools.see(made->user, body);
    }
    return made;
}

void admission::tell(http_headers & answer) const {
    if (dropped.n_messages > 0) {
        answer["X-Llama-Dropped-Messages"] = std::to_string(dropped.n_messages);
        answer["X-Llama-Dropped-Tokens"]   = std::to_string(dropped.n_tokens);
    }
}

common_json too_many_requests(const cache_options & options) {
    return {
        { "code",    429 },
        { "message", "this user has " + std::to_string(options.max_concurrent_per_user) +
                     " requests under way already, as many as --max-concurrent-per-user allows: try again later" },
        { "type",    "rate_limit_error" },
    };
}

// The client gets the vendor's own kind of answer, instead of what the request would be answered with.
void state_cache::warm_for_vendor(const server_http_req & req, const common_json & body, task_response_type api) {
    const vendor_warm what = warm_of_vendor(body, api);
    try {
        const warm_result done = warming_->warm(what.route, req.headers, what.body, [&] { return stopping || req.should_stop(); });
        tell_instead({ 200, vendor_answer(body, api, done), {} });
    } catch (const handler_refusal & refused) {
        tell_instead({ refused.status, common_json::parse(refused.what()), {} });
    }
}

void state_cache::arrive(server_task & task, const admission & from) const {
    const auto c = core();
    if (errand * own = errand::current()) {
        run_errand(*own, task, [&](const server_task & cut, bool all) { return c ? c->look_ahead(cut, from, all) : foreseen(); });
    }
    planner->refuse_what_never_fits(task);
    foreseen what;
    what.prompt.n_tokens = static_cast<size_t>(task.n_tokens());
    if (c) {
        c->arrive(task, from);
        what = c->foresee(*task.cache);
    } else {
        // The cache may be there when its turn comes.
        task.cache = std::make_shared<cache_ticket>(from.user, from.conversation);
    }
    task.cache->dropped = from.dropped;
    if (from.in_line) {
        planner->arrived(*from.in_line, task, what);
    }
    task.cache->in_line = live->slots.enter(from.user, static_cast<uint64_t>(task.n_tokens()));
}

int state_cache::choose_among(const std::vector<slot_candidate> & slots, const server_task & task) const {
    const auto c = core();
    return c ? c->choose(slots, task) : -1;
}

bool state_cache::prepare(const slot_view & slot, server_task & task) const {
    const auto c = core();
    const bool ready = !c || c->prepare(slot, task);
    if (!ready && task.cache->in_line) {
        task.cache->in_line->waits_for(task.cache->reading ? wait_reason::files : wait_reason::prefix);
    }
    return ready && (!c || planner->reserve(slot.id, task));
}

void state_cache::deferred() const {
    if (const auto c = core()) {
        c->deferred();
    }
}

bool state_cache::is_in_the_way(const slot_view & idle, const slot_view & slot, const server_task & task) const {
    const auto c = core();
    return c && c->is_in_the_way(idle, slot, task);
}

void state_cache::cleared(const slot_view & slot, const server_task & task) const {
    if (const auto c = core()) {
        c->cleared(slot, task);
    }
}

cache_report state_cache::restore(const slot_view & slot, server_prompt & prompt, const server_task & task,
                                  const std::function<bool()> & make_room) const {
    const auto c = core();
    planner->placed(slot.id, task);
    const context_dropped dropped = task.cache ? task.cache->dropped : context_dropped();
    if (task.cache) {
        task.cache->in_line.reset();
    }
    live->slots.begin(slot.id, task.cache ? task.cache->scope.user : "", static_cast<uint64_t>(task.n_tokens()));
    cache_report report = c ? c->restore(slot, prompt, task, make_room) : cache_report();
    report.dropped = dropped;
    return report;
}

bool state_cache::is_arriving(const slot_view & slot, server_prompt & prompt, cache_report & report, int32_t n_beside) const {
    const auto c = core();
    const context_dropped dropped  = report.dropped; // The cache knows nothing of it.
    const bool            arriving = c && c->is_arriving(slot, prompt, report, static_cast<size_t>(n_beside));
    report.dropped = dropped;
    if (!arriving) {
        planner->began(slot.id, report.restore_ms);
    }
    if (!arriving && slot.task != nullptr && live->slots.is_restoring(slot.id)) {
        live->slots.restored(slot.id, slot.prompt.tokens.get_common_prefix(slot.task->tokens));
    }
    return arriving;
}

bool state_cache::is_cut(int id_slot, int64_t n_tokens) const {
    const auto c = core();
    return c && c->ends_batch(id_slot, static_cast<size_t>(n_tokens));
}

bool state_cache::may_grow(const slot_view & slot) const {
    return slot.task == nullptr ||
           planner->may_grow(slot.id, static_cast<size_t>(slot.task->n_tokens()), static_cast<size_t>(slot.prompt.n_tokens()) + 1);
}

bool state_cache::takes_anchors(const slot_view & slot) const {
    const auto c = core();
    return c && c->takes_anchors(slot);
}

void state_cache::evaluated(const slot_view & slot) const {
    if (slot.task == nullptr) {
        return;
    }
    const server_slot_stats & stats = slot.stats;
    live->slots.advance(slot.id, stats.n_prompt_cached, stats.n_prompt_processed, stats.n_gen,
                        std::chrono::microseconds(stats.n_gen > 0 ? stats.t_gen_us() : stats.t_elapsed_us()));
    planner->evaluated(slot.id, stats);
    if (warming_) {
        warming_->evaluated(slot.task->id, slot.prompt.tokens.size());
    }
    if (const auto c = core()) {
        c->evaluated(slot);
    }
}

void state_cache::ending(const slot_view & slot) const {
    if (warming_ && slot.task != nullptr) {
        warming_->finished(slot.task->id, slot.stats.n_prompt_cached, slot.stats.n_prompt_processed);
    }
    if (const auto c = core()) {
        c->ending(slot);
    }
}

void state_cache::released(const slot_view & slot) {
    live->slots.end(slot.id);
    const request_times times = planner->times_of(slot.id, slot.stats);
    if (const auto c = core()) {
        c->released(slot, times);
    }
    if (planner->released(slot.id)) {
        offer_again();
    }
    if (slot.task != nullptr) {
        overflow.ahead.released(slot.task->id, slot.stats.n_prompt_processed);
    }
}

void state_cache::interrupted(const slot_view & slot) const {
    if (const auto c = core()) {
        c->interrupted(slot);
    }
}

void state_cache::distrust(const slot_view & slot) const {
    if (const auto c = core()) {
        c->distrust(slot);
    }
}

void state_cache::replaced(const slot_view & slot) const {
    if (const auto c = core()) {
        c->replaced(slot);
    }
}

common_json state_cache::describe() const {
    if (const auto c = core()) {
        common_json out = c->admin().describe();
        out["plan"]   = planner->describe();
        out["memory"] = planner->describe_memory();
        if (warming_) {
            out["warm"] = warming_->describe();
        }
        out["power"]   = power.describe();
        out["written"] = c->written(power);
        out["prompts"] = {
            { "made_stable",     n_made_stable.load() },
            { "tools_reordered", tools.reordered() },
        };
        out["overflow"] = overflow.describe();
        out["load"]     = live->load();
        return out;
    }
    kvtier::mutex_lock guard(mu);
    common_json off = { { "enabled", false }, { "reason", stopping ? stopping_message : why_off } };
    off["overflow"] = overflow.describe(); // It does without a cache.
    if (held_by > 0) {
        off["held_by"] = held_by;
        off["path"]    = path;
    }
    return off;
}

common_json state_cache::describe_user(const std::string & user) const {
    const auto c = core();
    return c ? c->admin().describe_user(user) : describe();
}

common_json state_cache::conversations(const std::string & user) const {
    const auto c = core();
    return c ? c->admin().conversations(user) : common_json::array();
}

common_json state_cache::requests(const std::string & user) const {
    const auto c = core();
    return c ? c->admin().finished.describe(user) : common_json::array();
}

common_json state_cache::saved(const std::string & user) const {
    const auto c = core();
    return c ? c->admin().saved(user) : describe();
}

common_json state_cache::disk() const {
    const auto c = core();
    return c ? c->admin().disk() : describe();
}

std::string state_cache::metrics() const {
    if (const auto c = core()) {
        return c->admin().metrics();
    }
    kvtier::mutex_lock guard(mu);
    return last_metrics;
}

void state_cache::serve_warm(const server_http_context & http, const std::string & file) {
    warming_ = std::make_unique<warmer>(http, *this);
    if (!file.empty()) {
        warming_->start_from(file);
    }
}

bool state_cache::wait_until_idle(const std::function<bool()> & stop) const {
    while (planner->requests().wait_until_idle(stop)) {
        if (!power.is_low()) {
            return true;
        }
        std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    return false;
}

bool state_cache::is_idle() const {
    return planner->requests().is_idle();
}

server_queue * state_cache::known_queue() const {
    kvtier::mutex_lock guard(mu);
    return queue;
}

void state_cache::cancel(int id_task) const {
    if (server_queue * known = known_queue()) {
        server_task task(SERVER_TASK_TYPE_CANCEL);
        task.id        = known->get_new_id();
        task.id_target = id_task;
        known->post(std::move(task), true);
    }
}

void state_cache::offer_again() const {
    if (server_queue * known = known_queue()) {
        known->offer_deferred();
    }
}

common_json state_cache::plan(const errand & looked) const {
    return planner->describe(looked.found, looked.n_predict, looked.n_answers);
}

void state_cache::set_power(bool mains, int battery) {
    power.set(mains, battery);
    overflow.ahead.pause(power.is_low());
    if (const auto c = core()) {
        c->hold_writes(power.is_low());
    }
}

void state_cache::flush() const {
    if (const auto c = core()) {
        c->admin().flush();
    }
}

kvtier::status state_cache::remove_conversation(const std::string & user, uint64_t hash, removal_result & out) {
    overflow.ahead.forget(user, hash);
    const auto           c       = core();
    const kvtier::status removed = c ? c->admin().remove_conversation(user, hash, out) : kvtier::status::miss(off_because());
    overflow.ahead.forget(user, hash); // Also what a request has planned meanwhile.
    return removed;
}

kvtier::status state_cache::remove_user(const std::string & user, removal_result & out) {
    overflow.ahead.forget(user, 0);
    const auto           c       = core();
    const kvtier::status removed = c ? c->admin().remove_user(user, out) : kvtier::status::miss(off_because());
    overflow.ahead.forget(user, 0);
    return removed;
}

bool state_cache::is_owner(const std::string & key) const {
    const auto c = core();
    return c && c->admin().is_owner(key);
}

common_json state_cache::all_conversations() const {
    const auto c = core();
    return c ? c->admin().all_conversations() : common_json::array();
}

kvtier::status state_cache::remove_everything(removal_result & out) {
    overflow.ahead.forget_all();
    const auto           c       = core();
    const kvtier::status removed = c ? c->admin().remove_everything(out) : kvtier::status::miss(off_because());
    overflow.ahead.forget_all();
    return removed;
}

kvtier::status state_cache::collect(uint64_t & bytes_freed) {
    const auto c = core();
    if (!c) {
        return kvtier::status::miss(off_because());
    }
    forget_expired(*c);
    return c->admin().collect(bytes_freed);
}

kvtier::status state_cache::verify(const std::function<bool()> & is_over, common_json & out) const {
    const auto c = core();
    return c ? c->admin().verify([&] { return is_stopping() || is_over(); }, out) : kvtier::status::miss(off_because());
}

kvtier::status state_cache::keep(const std::string & user, uint64_t hash, const kvtier::lifetime_change & change,
                                 common_json & out) const {
    const auto c = core();
    return c ? c->admin().keep(user, hash, change, out) : kvtier::status::miss(off_because());
}

kvtier::status state_cache::warm(const std::string & user, uint64_t hash, common_json & out) const {
    const auto c = core();
    return c ? c->admin().warm(user, hash, out) : kvtier::status::miss(off_because());
}

std::shared_ptr<handover_desk> state_cache::handovers() const {
    const auto c = core();
    return c ? std::shared_ptr<handover_desk>(c, &c->handovers()) : nullptr;
}

} // namespace llama_run

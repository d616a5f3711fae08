#include "server/cache/cache_admin.h"

#include "server/live/disk_view.h"
#include "server/live/live_view.h"
#include "server/owner/owner_key.h"

#include "kvtier/file_names.h"

#include <algorithm>
#include <set>
#include <utility>

namespace llama_run {

using kvtier::status;

// /cache has it as it is, /metrics with a prefix.
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

static std::vector<number> measured(const kvtier::store & store, const kvtier::writer & queue) {
    const kvtier::store_stats s    = store.stats();
    uint64_t                  hits = 0;
    std::set<kvtier::key>     users;
    for (const kvtier::conversation_info & c : store.list()) {
        hits += c.hits;
        if (c.name_space != kvtier::key()) {
            users.insert(c.name_space);
        }
    }
    return {
        { "disk_bytes",    "bytes on disk, other models included", s.disk_bytes },
        { "disk_limit",    "bytes on disk at most",                s.disk_limit },
        { "protected_bytes", "bytes that lifetimes keep from eviction", s.protected_bytes },
        { "protected_limit", "of them at most",                    s.protected_limit },
        { "ram_bytes",     "bytes of state in RAM",                s.ram_bytes },
        { "ram_limit",     "bytes of state in RAM at most",        s.ram_limit },
        { "index_bytes",   "bytes of RAM that the index takes",    s.index_bytes },
        { "conversations", "conversations stored",                 s.n_conversations },
        { "users",         "users that have any",                  users.size() },
        { "hits",          "restores that used them",              hits },
        { "checkpoints",   "checkpoints stored",                   s.n_checkpoints },
        { "anchors",       "anchors stored",                       s.n_anchors },
        { "pages",         "pages and parts of pages stored",      s.n_runs },
        { "segments",      "files they are in",                    s.n_segments },
        { "queued",        "saves waiting for the disk",           queue.queued() },
        { "queued_bytes",  "their bytes",                          queue.queued_bytes() },
        { "unwritten",     "anchors in RAM until they settle",     queue.unwritten() },
        { "unwritten_bytes", "their bytes",                        queue.unwritten_bytes() },
    };
}

// How long the inference thread was busy with the cache, by cause, in milliseconds.
static std::vector<std::pair<std::string, double>> waits(const waited & times, const sequence_store & store) {
    std::vector<std::pair<std::string, double>> out;
    for (size_t i = 0; i < static_cast<size_t>(wait_cause::n_kinds); i++) {
        const auto cause = static_cast<wait_cause>(i);
        out.emplace_back(wait_cause_name(cause), times.ms(cause));
    }
    out.emplace_back("cells", store.waited_ms());
    return out;
}

static common_json object_of(const std::vector<number> & numbers) {
    common_json out = common_json::object();
    for (const number & n : numbers) {
        out[n.name] = n.value;
    }
    return out;
}

static common_json summary_of(const request_counts & counts) {
    common_json sources = common_json::object();
    for (size_t i = 0; i < counts.by_source.size(); i++) {
        sources[cache_source_name(static_cast<cache_source>(i))] = counts.by_source[i];
    }
    common_json misses = common_json::object();
    for (size_t i = 0; i < counts.by_miss.size(); i++) {
        misses[cache_miss_name(static_cast<cache_miss>(i))] = counts.by_miss[i];
    }
    return {
        { "finished",         counts.n },
        { "tokens_reused",    counts.n_reused },
        { "tokens_evaluated", counts.n_evaluated },
        { "by_source",        sources },
        { "by_miss",          misses },
    };
}

// What a router may ask for: the conversations of a user that need no disk, those used last first.
static common_json in_ram(const std::string & user, std::vector<kvtier::conversation_info> listed) {
    static constexpr size_t max_listed = 256;
    listed.erase(std::remove_if(listed.begin(), listed.end(), [&](const kvtier::conversation_info & c) {
        return c.name_space != kvtier::user_key(user) || c.where == kvtier::tier::cold;
    }), listed.end());
    std::sort(listed.begin(), listed.end(), [](const auto & a, const auto & b) { return a.last_used_ms > b.last_used_ms; });
    listed.resize(std::min(listed.size(), max_listed));
    common_json out = common_json::array();
    for (const kvtier::conversation_info & c : listed) {
        out.push_back({ { "hash", kvtier::hex(c.hash) }, { "tokens", c.n_tokens }, { "tier", kvtier::tier_name(c.where) } });
    }
    return out;
}

static common_json describe_shared(const kvtier::shared_stats & s) {
    return {
        { "on",              s.is_on },
        { "why",             s.why },
        { "evicts",          s.evicts },
        { "files",           s.n_files },
        { "usable_files",    s.n_usable },
        { "bytes",           s.bytes },
        { "limit",           s.limit },
        { "published",       s.published },
        { "bytes_published", s.bytes_published },
        { "unpublished",     s.unpublished },
        { "fetches",         s.fetches },
        { "tokens_fetched",  s.tokens_fetched },
        { "bytes_fetched",   s.bytes_fetched },
        { "failed_fetches",  s.failed_fetches },
        { "evicted",         s.evicted },
        { "damaged",         s.damaged },
        { "unreadable",      s.unreadable },
        { "stalls",          s.stalls },
    };
}

common_json cache_admin::describe() const {
    const kvtier::store_stats     stats   = stores.target->store().stats();
    const kvtier::store_options & options = stores.target->store().options();
    common_json damaged = common_json::object();
    for (size_t i = 1; i < stats.values.damaged.size(); i++) {
        damaged[kvtier::damage_name(static_cast<kvtier::damage>(i))] = stats.values.damaged[i];
    }
    common_json out = {
        { "enabled",     true },
        { "path",        stores.root_dir },
        { "fingerprint", kvtier::hex(options.fingerprint) },
        { "page_size",   options.page_size },
        { "restores_at", stores.target->folded() ? "anchors" : "any_token" },
        { "draft",       stores.draft != nullptr },
        { "takes_state", stores.target->takes_beside() ? "beside" : "at_once" },
        { "puts_state", stores.target->puts_beside() ? "beside" : "at_once" },
        { "reading_ahead", ahead.is_under_way() },
        { "speed",       {
            { "disk_bytes_per_s",  measured_speeds.disk.get() },
            { "shared_bytes_per_s", measured_speeds.shared.get() },
            { "copy_bytes_per_s",  measured_speeds.copy.get() },
            { "eval_tokens_per_s", measured_speeds.eval.get() },
        } },
        { "last_error",  stores.target->queue().last_error() },
        { "users_by_metadata", metadata_users },
    };
    common_json waited_ms = common_json::object();
    for (const auto & [cause, ms] : waits(times, *stores.target)) {
        waited_ms[cause] = ms;
    }
    out["waited_ms"] = waited_ms;
    out["state"]    = object_of(measured(stores.target->store(), stores.target->queue()));
    out["counters"] = object_of(counted(stats.values));
    out["damaged"]  = damaged;
    out["requests"] = summary_of(totals.all());
    out["in_ram"]   = in_ram("", stores.target->store().list());
    if (stores.shared != nullptr) {
        out["shared"] = describe_shared(stores.shared->stats());
    }
    return out;
}

common_json cache_admin::describe_user(const std::string & user) const {
    uint64_t n_conversations = 0;
    uint64_t bytes           = 0;
    for (const kvtier::conversation_info & c : stores.target->store().list()) {
        if (c.name_space == kvtier::user_key(user)) {
            n_conversations++;
            bytes += c.bytes_own;
        }
    }
    return {
        { "enabled",       true },
        { "user",          user },
        { "conversations", n_conversations },
        { "bytes_own",     bytes },
        { "requests",      summary_of(totals.of(user)) },
        { "in_ram",        in_ram(user, stores.target->store().list()) },
    };
}

static common_json entry_of(const kvtier::conversation_info & c, int64_t store_expire_ms) {
    const int64_t expire_ms = kvtier::expire_of(c.life, store_expire_ms);
    return {
        { "hash",         kvtier::hex(c.hash) },
        { "title",        c.title },
        { "turns",        c.turns },
        { "tokens",       c.n_tokens },
        { "bytes_own",    c.bytes_own },
        { "bytes_shared", c.bytes_shared },
        { "hits",         c.hits },
        { "tier",         kvtier::tier_name(c.where) },
        { "ttl",          kvtier::duration_text(c.life.ttl_ms) },
        { "protected",    c.is_protected },
        { "expire",       kvtier::duration_text(expire_ms) },
        { "created_ms",   c.created_ms },
        { "last_used_ms", c.last_used_ms },
        { "backend",      c.backend },
    };
}

common_json cache_admin::conversations(const std::string & user) const {
    const kvtier::store & store = stores.target->store();
    common_json           out   = common_json::array();
    for (const kvtier::conversation_info & c : store.list()) {
        if (c.name_space == kvtier::user_key(user)) {
            out.push_back(entry_of(c, store.options().expire_ms));
        }
    }
    return out;
}

common_json cache_admin::conversation(const std::string & user, uint64_t hash) const {
    for (const common_json & entry : conversations(user)) {
        if (entry.at("hash").get<std::string>() == kvtier::hex(hash)) {
            return entry;
        }
    }
    return common_json::object();
}

static void add_metric(std::string & out, const std::string & name, const std::string & meaning, const char * type,
                       double value) {
    out += "# HELP llamacpp:cache_" + name + " " + meaning + "\n# TYPE llamacpp:cache_" + name + " " + type +
           "\nllamacpp:cache_" + name + " " + std::to_string(value) + "\n";
}

std::string cache_admin::metrics() const {
    const kvtier::store_stats stats = stores.target->store().stats();
    std::string out;
    for (const number & n : measured(stores.target->store(), stores.target->queue())) {
        add_metric(out, n.name, n.meaning, "gauge", static_cast<double>(n.value));
    }
    for (const number & n : counted(stats.values)) {
        add_metric(out, std::string(n.name) + "_total", n.meaning, "counter", static_cast<double>(n.value));
    }
    for (const auto & [cause, ms] : waits(times, *stores.target)) {
        add_metric(out, std::string("waited_ms_") + cause + "_total", "milliseconds that the inference thread was busy with the cache",
                   "counter", ms);
    }
    add_metric(out, "damaged_total", "files set aside", "counter", static_cast<double>(stats.values.damaged_total()));
    const request_counts requests = totals.all();
    add_metric(out, "requests_total", "requests served with the cache on", "counter", static_cast<double>(requests.n));
    add_metric(out, "tokens_reused_total", "prompt tokens not evaluated again", "counter",
               static_cast<double>(requests.n_reused));
    add_metric(out, "tokens_evaluated_total", "prompt tokens evaluated", "counter",
               static_cast<double>(requests.n_evaluated));
    return out;
}

//
// over restarts, and on disk
//

// It is hidden, because the folder is for stored state.
std::string cache_admin::days_path(const cache_stores & stores) {
    return kvtier::names::join(stores.root_dir, ".days-" + kvtier::hex(stores.target->store().options().fingerprint));
}

day_totals::bytes cache_admin::bytes_so_far(const cache_stores & stores) {
    const kvtier::counter_values values = stores.target->store().stats().values;
    return { values.bytes_written, values.bytes_read };
}

common_json cache_admin::saved(const std::string & user) {
    return describe_saved(user.empty() ? days.all() : days.of(user), days.since_ms());
}

common_json cache_admin::disk() const {
    return describe_disk(kvtier::posix_env(), stores.root_dir, stores.target->store());
}

//
// removing
//

void cache_admin::write_all() {
    board.wait_until_handed_over();
    stores.flush();
}

void cache_admin::flush() {
    write_all();
    stores.publish();
}

// Requests that wait are marked first: one that gets its slot meanwhile brings its mark along. Slots are the inference thread's:
// idle ones are erased through the queue, busy ones forget when they are released.
void cache_admin::forget(const removal & what) {
    ahead.end(); // It may be reading just that.
    reader.remove(what);
    for (const int id : board.remove(what)) {
        server_task task(SERVER_TASK_TYPE_SLOT_ERASE);
        task.id                  = queue.get_new_id();
        task.slot_action.id_slot = id;
        queue.post(std::move(task));
    }
}

// What two stores say together: a problem, else that one of them had it, else that neither had.
static status both(const status & a, const status & b) {
    const auto is_problem = [](const status & s) { return !s.is_ok() && !s.is_miss(); };
    return is_problem(a) || (a.is_ok() && !is_problem(b)) ? a : b;
}

status cache_admin::remove(const removal & what, const std::function<status(kvtier::store &, uint64_t &)> & from,
                           removal_result & out) {
    forget(what);
    on_removal(what);
    write_all();
    kvtier::shared_removal there;
    out.is_shared = stores.shared != nullptr;
    if (out.is_shared) {
        there = what.everything ? stores.shared->begin_removal(what.name_space)
                                : stores.shared->begin_removal(what.name_space, { what.hash });
    }
    status done = status::miss("nothing is stored");
    for (sequence_store * s : stores.all()) {
        uint64_t freed = 0;
        done = both(done, from(s->store(), freed));
        out.bytes_freed += freed;
    }
    if (out.is_shared) {
        out.shared_removed = stores.shared->finish_removal(there, stores.patience, out.shared_files);
    }
    return done;
}

static removal removal_of(const kvtier::conversation_id & id, const std::vector<kvtier::conversation_info> & listed) {
    removal what;
    what.name_space = id.first;
    what.hash       = id.second;
    for (const kvtier::conversation_info & c : listed) {
        if (c.hash == id.second && c.name_space == id.first) {
            what.n_tokens = std::min<size_t>(c.n_tokens, kvtier::n_conversation_tokens);
        }
    }
    return what;
}

status cache_admin::remove_conversation(const std::string & user, uint64_t hash, removal_result & out) {
    const kvtier::conversation_id id = { kvtier::user_key(user), hash };
    const status done = remove(removal_of(id, stores.target->store().list()), [&](kvtier::store & store, uint64_t & freed) {
        return store.remove_conversation(id.first, hash, freed);
    }, out);
    finished.forget_words(id);
    return done;
}

status cache_admin::remove_name_space(const kvtier::key & name_space, removal_result & out) {
    removal what;
    what.name_space = name_space;
    what.everything = true;
    return remove(what, [&](kvtier::store & store, uint64_t & freed) { return store.remove_name_space(name_space, freed); }, out);
}

status cache_admin::remove_user(const std::string & user, removal_result & out) {
    const status done = remove_name_space(kvtier::user_key(user), out);
    finished.forget(user);
    totals.forget(user);
    days.forget(user);
    return done;
}

//
// all users at once
//

bool cache_admin::is_owner(const std::string & key) const {
    return is_owner_key(kvtier::posix_env(), stores.root_dir, key);
}

common_json cache_admin::all_conversations() const {
    const kvtier::store & store = stores.target->store();
    common_json           out   = common_json::array();
    for (const kvtier::conversation_info & c : store.list()) {
        common_json entry = entry_of(c, store.options().expire_ms);
        entry["user"] = c.name_space == kvtier::key() ? common_json(nullptr) : common_json(kvtier::hex(c.name_space));
        out.push_back(entry);
    }
    return out;
}

// Whose state the stores may have: the anonymous user's, and that of everyone with a folder.
static std::set<kvtier::key> name_spaces(const std::vector<sequence_store *> & stores) {
    std::set<kvtier::key> out = { kvtier::key() };
    for (sequence_store * s : stores) {
        const kvtier::store_options &  options = s->store().options();
        std::vector<kvtier::dir_entry> entries;
        (void) kvtier::posix_env().list_dir(kvtier::file_layout(options.root_dir, options.fingerprint).users(), entries).is_ok();
        for (const kvtier::dir_entry & entry : entries) { // There may be none.
            kvtier::key name_space;
            if (kvtier::parse_hex(entry.name, name_space)) {
                out.insert(name_space);
            }
        }
    }
    return out;
}

// Everybody's requests and slots are told first: who has no folder yet would get one later.
status cache_admin::remove_everything(removal_result & out) {
    removal what;
    what.everything = true;
    what.of_all     = true;
    forget(what);
    on_removal(what);
    write_all();
    status done = status::ok();
    for (const kvtier::key & name_space : name_spaces(stores.all())) {
        removal_result of_one;
        done = both(done, remove_name_space(name_space, of_one));
        out.bytes_freed += of_one.bytes_freed;
        out.is_shared      = of_one.is_shared;
        out.shared_removed = out.shared_removed && of_one.shared_removed;
        out.shared_files += of_one.shared_files;
    }
    finished.forget_all();
    totals.forget_users();
    days.forget_users();
    return done;
}

status cache_admin::collect(uint64_t & bytes_freed) {
    flush();
    status done = status::ok();
    for (sequence_store * s : stores.all()) {
        uint64_t freed = 0;
        done = both(done, s->store().gc(freed, false));
        bytes_freed += freed;
    }
    return done;
}

status cache_admin::verify(const std::function<bool()> & is_over, common_json & out) {
    flush();
    kvtier::verify_report report;
    for (sequence_store * s : stores.all()) {
        if (status read = s->store().verify_beside(is_over, report); !read.is_ok()) {
            return read;
        }
    }
    common_json damaged = common_json::array();
    for (const kvtier::damage_note & note : report.damaged) {
        // A disk that cannot be read has no reason of its own among those of a file.
        const bool of_file = note.problem.reason() != kvtier::damage::none;
        damaged.push_back({
            { "path",    note.path },
            { "reason",  of_file ? kvtier::damage_name(note.problem.reason()) : kvtier::kind_name(note.problem.kind()) },
            { "message", note.problem.message() },
        });
    }
    out = { { "files", report.n_files }, { "bytes", report.n_bytes }, { "damaged", damaged } };
    return status::ok();
}

//
// lifetimes
//

std::vector<kvtier::conversation_id> cache_admin::sweep() {
    const std::vector<kvtier::conversation_info> listed = stores.target->store().list();
    std::vector<kvtier::conversation_id>         gone;
    for (const kvtier::conversation_id & id : stores.target->store().expired()) {
        const removal what = removal_of(id, listed);
        if (!board.is_served(what)) { // An answer may take long; it ends with a use.
            forget(what);
            finished.forget_words(id);
            gone.push_back(id);
        }
    }
    if (!gone.empty()) {
        write_all();
    }
    stores.remove_expired(gone);
    return gone;
}

status cache_admin::keep(const std::string & user, uint64_t hash, const kvtier::lifetime_change & change, common_json & out) {
    write_all(); // What an earlier request says, and is not written yet, must not count for more.
    const kvtier::key name_space = kvtier::user_key(user);
    const status      s          = stores.target->store().set_lifetime(name_space, hash, change);
    if (s.is_ok() && stores.draft != nullptr) {
        (void) stores.draft->store().set_lifetime(name_space, hash, change).is_ok(); // It may have nothing of it.
    }
    out = conversation(user, hash);
    return s;
}

status cache_admin::warm(const std::string & user, uint64_t hash, common_json & out) {
    uint64_t bytes_read = 0;
    status   result     = status::ok();
    for (sequence_store * store : stores.all()) {
        uint64_t     n_read = 0;
        const status s      = store->store().warm(kvtier::user_key(user), hash, n_read);
        bytes_read += n_read;
        result = store == stores.target.get() ? s : result; // The draft's may have nothing of it.
    }
    out = conversation(user, hash);
    out["bytes_read"] = bytes_read;
    return result;
}

} // namespace llama_run

#include "kvtier/shared/shared_tier.h"

#include "kvtier/file_names.h"
#include "kvtier/shared/folder_look.h"
#include "kvtier/store_rooms.h"

#include <algorithm>
#include <exception>
#include <random>
#include <utility>

namespace kvtier {

// Enough to keep a network filled.
static constexpr size_t n_folder_threads = 4;

// A look at the folder takes at most this share of the time.
static constexpr int busy_share = 20;

// It is evicted beyond the first, down to the second, so that writers find room.
static constexpr double high_mark = 0.9;
static constexpr double low_mark  = 0.8;

static constexpr uint64_t max_default_limit = uint64_t(64) << 30;

static std::string random_owner() {
    std::random_device source;
    std::string        out;
    for (int i = 0; i < 2; i++) {
        out += hex(uint64_t(source()) << 32 | source());
    }
    return out;
}

shared_tier::shared_tier(env & e, store & target, store_rooms & rooms, shared_options o)
    : target(target), rooms(rooms), options(std::move(o)),
      own(std::make_shared<core>(e, options,
                                 shared_index::scope{ rooms.options.fingerprint, options.all_backends ? "" : backend_folder(options.backend),
                                                      options.users })),
      threads(n_folder_threads),
      notes(rooms.e, names::join(rooms.options.root_dir, "shared-" + hex(rooms.options.fingerprint) + ".notes")),
      since_ms(rooms.e.now_ms()), lease(random_owner(), options.term), unfinished(options.unfinished) {
    keeper = std::thread([this] { keep(); });
}

shared_tier::~shared_tier() {
    close();
}

void shared_tier::close() {
    {
        mutex_lock guard(mu);
        stopping = true;
        changed.notify_all();
    }
    if (keeper.joinable()) {
        keeper.join();
    }
}

//
// the folder's threads
//

shared_tier::job_pointer shared_tier::start(folder_work work, bool urgent) {
    auto job = std::make_shared<folder_job>();
    const bool begun = threads.run([job, own = own, work = std::move(work)] {
        status result = status::miss("given up");
        try {
            result = job->abandoned ? result : work(*own, job->abandoned);
        } catch (const std::exception & e) {
            result = status::exhausted(e.what());
        }
        mutex_lock guard(job->mu);
        job->result = result;
        job->done   = true;
        job->changed.notify_all();
    }, urgent);
    if (!begun) {
        mutex_lock guard(job->mu);
        job->result = status::exhausted(options.dir + ": there are no threads to call it");
        job->done   = true;
    }
    return job;
}

// It looks up now and then: neither a stop nor a call that hangs notifies the job.
status shared_tier::wait_for(const job_pointer & job, clock::time_point until) {
    constexpr auto glance = std::chrono::milliseconds(50);
    for (;;) {
        {
            mutex_lock guard(job->mu);
            if (!job->done) {
                (void) job->changed.wait_until(guard, std::min(until, clock::now() + glance));
            }
            if (job->done) {
                return job->result;
            }
        }
        if (stopping || clock::now() >= until || hangs()) {
            job->abandoned = true;
            return hangs() ? status::io_error(options.dir + ": has not answered for " +
                                              std::to_string(std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count()) + " s")
                           : status::miss(options.dir + ": took too long");
        }
    }
}

// As long as it takes, if it does not hang.
status shared_tier::call(folder_work work) {
    const status s = wait_for(start(std::move(work)), clock::time_point::max());
    if (!s.is_ok() && !stopping) {
        note_trouble(s);
    }
    return s;
}

// The same for what changes the folder: one that can only be read is of use.
status shared_tier::write(folder_work work) {
    const status s = wait_for(start(std::move(work)), clock::time_point::max());
    if (hangs()) {
        note_trouble(s);
    }
    return s;
}

//
// whether it is on
//

bool shared_tier::hangs() const {
    return own->watch->longest() >= options.timeout;
}

status shared_tier::no_answer() const {
    return status::io_error(options.dir + ": does not answer");
}

void shared_tier::note_trouble(const status & problem) {
    mutex_lock guard(mu);
    counted.stalls += hangs() && !is_off;
    is_off    = true;
    why_off   = problem.message();
    off_until = clock::now() + options.off_for;
}

// While a call hangs, the time that the tier is off begins anew.
bool shared_tier::is_usable() {
    if (hangs()) {
        note_trouble(no_answer());
    }
    mutex_lock guard(mu);
    return clock::now() >= off_until;
}

void shared_tier::tell_change() {
    std::string why;
    {
        mutex_lock guard(mu);
        if (is_off == told_off) {
            return;
        }
        told_off = is_off;
        why      = is_off ? why_off : "";
    }
    if (options.on_change) {
        options.on_change(why);
    }
}

void shared_tier::tell_unreadable(const folder_look & found) {
    const std::string what = found.n_unreadable() == 0 ? "" : std::to_string(found.n_unreadable()) +
                             " files or folders cannot be read, and are passed over: " + found.problem;
    bool begins = false;
    {
        mutex_lock guard(mu);
        begins             = found.n_unreadable() > 0 && counted.unreadable == 0;
        counted.unreadable = found.n_unreadable();
        why_unreadable     = what;
    }
    if (begins && options.on_unreadable) {
        options.on_unreadable(what);
    }
}

void shared_tier::hold(bool on) {
    mutex_lock guard(mu);
    held = on;
    changed.notify_all();
}

shared_stats shared_tier::stats() const {
    const shared_index::totals there = own->index.count();
    mutex_lock                 guard(mu);
    shared_stats               out = counted;
    out.is_on    = is_seen && !is_off && !hangs();
    out.why      = is_off ? why_off : hangs() ? no_answer().message() : !is_seen ? "the folder has not been looked at yet"
                 : held && out.unpublished > 0 ? options.dir + ": nothing is written there for now"
                 : why_unpublished.empty() ? why_unreadable : why_unpublished;
    out.n_files  = there.n_files;
    out.bytes    = there.bytes;
    out.n_usable = there.n_known;
    return out;
}

//
// the keeper
//

void shared_tier::keep() {
    while (!stopping) {
        const uint64_t n_saved = rooms.count.saves;
        {
            mutex_lock guard(mu);
            n_begun++;
        }
        try {
            look_after();
        } catch (const std::exception & e) {
            note_trouble(status::exhausted(e.what()));
        }
        tell_change();
        wait_for_work(n_saved);
    }
}

// The folder is looked at again when somebody asks for it, when something was saved here or could not be published, and now and then.
void shared_tier::wait_for_work(uint64_t n_saved) {
    const auto ended = clock::now();
    mutex_lock guard(mu);
    n_ended = n_begun;
    changed.notify_all();
    while (!stopping && n_asked <= n_begun) {
        const bool is_awaited = wanted || is_off || (counted.unpublished > 0 && !held) || rooms.count.saves != n_saved;
        const auto due        = ended + (is_awaited ? look_interval() : options.idle_refresh);
        if (clock::now() >= due) {
            return;
        }
        (void) changed.wait_until(guard, std::min(due, clock::now() + options.refresh));
    }
}

shared_tier::clock::duration shared_tier::look_interval() const {
    return std::clamp<clock::duration>(busy_share * refresh_took, options.refresh,
                                       std::max(options.refresh, options.idle_refresh));
}

// A request asks for a look while something else is done.
bool shared_tier::is_look_due() const {
    mutex_lock guard(mu);
    return wanted && clock::now() - refreshed_at >= look_interval();
}

void shared_tier::look_after() {
    if (!is_usable() || !refresh()) {
        return;
    }
    const auto set_busy = [this](bool on) {
        mutex_lock guard(mu);
        is_busy = on;
        changed.notify_all();
    };
    set_busy(true);
    const std::unique_ptr<void, std::function<void(void *)>> idle_again(this, [&](void *) { set_busy(false); });
    remove_pending();
    if (lease.is_held()) {
        evict(needs_room ? low_mark : high_mark, low_mark);
        needs_room = false;
    }
    publish_all();
    if (needs_room && lease.is_held()) {
        evict(low_mark, low_mark);
    }
}

bool shared_tier::refresh() {
    const auto    began    = clock::now();
    const int64_t began_ms = rooms.e.now_ms();
    const auto    found    = std::make_shared<folder_look>();
    if (!call([found, was_used = notes.has_used(options.dir)](core & its, const std::atomic<bool> & abandoned) {
            return look_into(its.folder, its.index, was_used, abandoned, *found);
        }).is_ok()) {
        return false;
    }
    if (found->is_marked) {
        notes.uses(options.dir);
    }
    tell_unreadable(*found);
    remove_unfinished(unfinished.look(found->unfinished, began));
    limit = options.limit != 0 ? options.limit : std::min((found->free_bytes + own->index.count().bytes) / 5, max_default_limit);
    renew_lease(found->lease);
    refresh_took = clock::now() - began;
    looked_ms    = began_ms;
    mutex_lock guard(mu);
    counted.damaged += found->n_damaged;
    counted.limit    = limit;
    counted.evicts   = lease.is_held();
    refreshed_at     = clock::now();
    wanted           = false;
    is_seen          = true;
    is_off           = clock::now() < off_until; // Others may have met trouble meanwhile.
    changed.notify_all();
    return true;
}

void shared_tier::renew_lease(const std::string & found) {
    if (const auto text = lease.look(found, clock::now())) {
        (void) write([text](core & its, const std::atomic<bool> &) {
            return its.folder.write_text(eviction_lease::file_name, *text);
        }).is_ok(); // Without it nobody evicts, or somebody else does.
    }
}

//
// eviction
//

// Not the evictor alone does it: what nobody writes any more takes room from everybody who publishes.
void shared_tier::remove_unfinished(std::vector<std::string> names) {
    if (!names.empty()) {
        (void) write([names = std::move(names)](core & its, const std::atomic<bool> &) {
            status result = status::ok();
            for (const std::string & name : names) {
                result = its.folder.remove_unfinished(name);
            }
            return result;
        }).is_ok(); // What stays is tried again by the next look.
    }
}

// Beyond `high` of the limit, down to `low` of it.
void shared_tier::evict(double high, double low) {
    const auto share = [&](double of) { return static_cast<uint64_t>(of * static_cast<double>(limit)); };
    const uint64_t n_bytes = own->index.count().bytes;
    if (n_bytes <= share(high)) {
        return;
    }
    const auto     files    = std::make_shared<const std::vector<shared_file>>(own->index.victims());
    const auto     n_gone   = std::make_shared<std::atomic<uint64_t>>(0);
    const uint64_t too_many = n_bytes - share(low);
    const status   s        = write([files, n_gone, too_many](core & its, const std::atomic<bool> & abandoned) {
        std::vector<shared_name> gone;
        status                   result = status::ok();
        uint64_t                 freed  = 0;
        for (size_t i = 0; i < files->size() && freed < too_many && !abandoned; i++) {
            if (const status removed = its.folder.remove((*files)[i].name); removed.is_ok()) {
                gone.push_back((*files)[i].name);
                freed += (*files)[i].bytes;
            } else {
                result = removed; // The next one goes in its place.
            }
        }
        its.index.forget(gone);
        *n_gone = gone.size();
        return result;
    });
    mutex_lock guard(mu);
    counted.evicted += *n_gone;
    if (!s.is_ok() && !s.is_miss()) {
        why_unpublished = s.message();
    }
}

//
// find
//

shared_match shared_tier::find(const lookup_request & request, const match & local) {
    if (!serves(request.root.user) || request.n_tokens < 2) {
        return {};
    }
    {
        const auto asked = clock::now();
        mutex_lock guard(mu);
        if (asked < fetch_after) {
            return {};
        }
        if (!is_off && (!is_seen || asked - refreshed_at >= options.refresh)) {
            wanted = true;
            changed.notify_all();
            while (wanted && !is_off && !is_busy && changed.wait_until(guard, asked + options.longest_look)) {
            } // What it publishes, evicts or removes is not waited for.
        }
        if (!is_seen || is_off) {
            return {};
        }
    }
    shared_match out = own->index.find(request);
    out.conversation = request.conversation;
    if (out.n_tokens <= local.n_tokens) {
        return {};
    }
    std::set<key> stored;
    for (const matched_run & r : local.runs) {
        if (r.p1 <= local.n_tokens && r.node != nullptr) { // What waits to be written cannot be gone on from there.
            stored.insert(r.k);
        }
    }
    out.skip_stored(stored);
    return is_being_removed(user_key(request.root.user), out) ? shared_match() : out;
}

} // namespace kvtier

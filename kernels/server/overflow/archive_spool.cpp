#include "server/overflow/archive_spool.h"

#include "kvtier/blake2b.h"
#include "kvtier/file_names.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>

namespace llama_run {

using kvtier::key;
using kvtier::status;

static constexpr uint64_t max_spool_bytes = uint64_t(1) << 30; // the format's limit
static constexpr uint64_t header_bytes    = 1024; // more than it takes

static constexpr size_t max_conversations = 4096; // whose progress is remembered
static constexpr size_t max_histories     = 64;   // of one conversation: chats that begin alike may take turns

static key digest_of(const std::string & text) {
    key out;
    kvtier::blake2b hash(out.size());
    hash.update(text.data(), text.size());
    hash.finish(out.data());
    return out;
}

static void add(kvtier::blake2b & hash, const archive_spool::message & m) {
    const uint64_t head[2] = { m.seq, m.json.size() };
    hash.update(head, sizeof(head));
    hash.update(m.json.data(), m.json.size());
}

static key finished(kvtier::blake2b hash) {
    key out;
    hash.finish(out.data());
    return out;
}

static std::string line(const std::string & json) {
    return kvtier::hex(digest_of(json)) + " " + json + "\n";
}

static std::string line(const archive_spool::message & m) {
    return line("{\"seq\":" + std::to_string(m.seq) + ",\"message\":" + m.json + "}");
}

static size_t line_bytes(const archive_spool::message & m) {
    return m.json.size() + 80; // the digest, the names and the number
}

archive_spool::archive_spool(kvtier::env & files, std::string folder, std::function<void(const std::string &)> complain,
                             uint64_t max_file_bytes) :
    files(files), folder(std::move(folder)), complain(std::move(complain)), max_file_bytes(max_file_bytes), thread([this] { run(); }) {}

archive_spool::~archive_spool() {
    {
        kvtier::mutex_lock guard(mu);
        stopping = true;
        changed.notify_all();
    }
    thread.join();
}

archive_spool::counts archive_spool::count() const {
    kvtier::mutex_lock guard(mu);
    return so_far;
}

void archive_spool::leave(const std::string & user, uint64_t conversation, std::vector<message> && dropped) {
    batch b;
    b.user         = kvtier::user_key(user);
    b.conversation = conversation;
    kvtier::mutex_lock guard(mu);
    const conversation_key who{ b.user, conversation };
    if (known.size() >= max_conversations && known.count(who) == 0) {
        known.clear();
    }
    histories &     before = known[who];
    progress        reached;
    kvtier::blake2b hash(sizeof(key)); // of all up to `reached`
    kvtier::blake2b ahead(sizeof(key));
    for (size_t i = 0; i < dropped.size(); i++) {
        add(ahead, dropped[i]);
        const progress here{ i + 1, finished(ahead) };
        if (std::find(before.begin(), before.end(), here) != before.end()) {
            reached = here;
            hash    = ahead;
        }
    }
    before.erase(std::remove(before.begin(), before.end(), reached), before.end());
    for (; reached.n_messages < dropped.size(); reached.n_messages++) {
        message &    next    = dropped[reached.n_messages];
        const size_t n_bytes = line_bytes(next);
        const bool   can_fit = header_bytes + n_bytes <= max_file_bytes;
        if (can_fit && n_queued_bytes + b.n_bytes + n_bytes > max_file_bytes) {
            break; // The next request brings the rest again.
        }
        add(hash, next);
        if (!can_fit) {
            so_far.n_refused++;
            complain("a message of " + std::to_string(next.json.size()) + " bytes is too large for the spool");
            continue;
        }
        b.n_bytes += n_bytes;
        b.messages.push_back(std::move(next));
    }
    so_far.n_refused += dropped.size() - reached.n_messages;
    if (reached.n_messages == 0) {
        return;
    }
    reached.digest = finished(hash);
    before.insert(before.begin(), reached);
    before.resize(std::min(before.size(), max_histories));
    if (b.messages.empty()) {
        return;
    }
    n_queued_bytes += b.n_bytes;
    queue.push_back(std::move(b));
    changed.notify_all();
}

void archive_spool::run() {
    kvtier::mutex_lock guard(mu);
    for (;;) {
        while (queue.empty() && !stopping) {
            changed.wait(guard);
        }
        if (queue.empty()) {
            return;
        }
        const batch b = std::move(queue.front());
        queue.pop_front();
        guard.unlock();
        size_t       n_written = 0;
        const status s         = write(b, n_written);
        if (!s.is_ok()) {
            complain(s.message());
        }
        guard.lock();
        n_queued_bytes -= b.n_bytes;
        so_far.n_left += n_written;
        so_far.n_refused += b.messages.size() - n_written;
        if (!s.is_ok()) {
            known.erase({ b.user, b.conversation }); // The next request brings it again.
        }
    }
}

status archive_spool::write(const batch & b, size_t & n_written) {
    uint64_t n_bytes = 0;
    status   s       = files.make_dir(kvtier::names::parent(folder));
    s = s.is_ok() ? files.make_dir(folder) : s;
    s = s.is_ok() ? files.make_dir(kvtier::names::join(folder, kvtier::hex(b.user))) : s;
    s = s.is_ok() ? files.sync_dir(folder) : s; // The user's folder may be new.
    s = s.is_ok() ? kvtier::measure_tree(files, folder, n_bytes) : s;
    if (s.is_ok() && n_bytes + b.n_bytes > max_spool_bytes) {
        s = status::over_budget(folder + " is full, and nobody takes it in: `llama-run memory stats` does");
    }
    size_t begin = 0;
    while (s.is_ok() && begin < b.messages.size()) {
        size_t   end    = begin;
        uint64_t n_file = header_bytes;
        while (end < b.messages.size() && n_file + line_bytes(b.messages[end]) <= max_file_bytes) {
            n_file += line_bytes(b.messages[end++]);
        }
        s = write_file(b, begin, end);
        n_written += s.is_ok() ? end - begin : 0;
        begin = end;
    }
    return s;
}

status archive_spool::write_file(const batch & b, size_t begin, size_t end) {
    static thread_local std::mt19937_64 random{ std::random_device{}() };
    const std::string user         = kvtier::hex(b.user);
    const std::string conversation = kvtier::hex(b.conversation);
    const std::string number       = kvtier::hex(random());
    char created[32];
    std::snprintf(created, sizeof(created), "%013lld", static_cast<long long>(files.now_ms()));

    std::string text = line("{\"spool\":1,\"user\":\"" + user + "\",\"conversation\":\"" + conversation +
                            "\",\"created\":" + std::to_string(std::stoll(created)) +
                            ",\"n\":" + std::to_string(end - begin) + "}");
    for (size_t i = begin; i < end; i++) {
        text += line(b.messages[i]);
    }
    const std::string own        = kvtier::names::join(folder, user);
    const std::string unfinished = kvtier::names::join(own, kvtier::names::temp_prefix + number);
    const std::string complete   = kvtier::names::join(own, conversation + "-" + created + "-" + number + ".spool");

    std::unique_ptr<kvtier::writable_file> file;
    const kvtier::const_span               all = { text.data(), text.size() };
    status s = files.create_file(unfinished, file);
    s = s.is_ok() ? file->append(&all, 1) : s;
    s = s.is_ok() ? file->sync() : s;
    s = s.is_ok() ? file->close() : s;
    s = s.is_ok() ? files.rename(unfinished, complete) : s;
    if (!s.is_ok()) {
        (void) files.remove_file(unfinished).is_ok();
        return s;
    }
    return files.sync_dir(own);
}

} // namespace llama_run

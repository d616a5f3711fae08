// For tests of the shared folder: a network's disk, and servers that share it.
#pragma once

#include "kvtier/file_names.h"
#include "kvtier/shared/shared_tier.h"
#include "kvtier/store_testing.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace kvtier::test {

inline constexpr char shared_dir[] = "/shared";

// A network's disk: its calls hang for as long as a test wants.
struct network_disk : failing_env {
    network_disk() { put_folder(shared_dir); }

    std::atomic<bool> hangs{ false };
    std::atomic<bool> is_stale{ false }; // files are listed that are gone
    std::atomic<int>  n_stale_reads{ 0 }; // the next reads of segments meet a handle that leads nowhere any more
    std::atomic<int>  ms_per_name{ 0 };  // that a list takes
    std::atomic<int>  ms_per_file{ 0 };  // by which its clock goes on when one is made
    std::atomic<int>  n_counted{ 0 };    // how often what is being written was listed

    status open_file(const std::string & path, std::unique_ptr<readable_file> & out) override {
        wait();
        if (is_stale && contains(path, ".seg")) {
            return stale(path);
        }
        std::unique_ptr<readable_file> file;
        const status                   s = failing_env::open_file(path, file);
        out = s.is_ok() ? std::make_unique<network_file>(*this, path, std::move(file)) : nullptr;
        return s;
    }
    status create_file(const std::string & path, std::unique_ptr<writable_file> & out) override {
        wait();
        set_now_ms(now_ms() + ms_per_file);
        return failing_env::create_file(path, out);
    }
    status list_dir(const std::string & path, std::vector<dir_entry> & out) override {
        wait();
        n_counted += contains(path, "/incoming");
        return failing_env::list_dir(path, out);
    }
    status scan_dir(const std::string & path, const entry_visitor & found) override {
        return failing_env::scan_dir(path, [&](dir_entry && entry) {
            std::this_thread::sleep_for(std::chrono::milliseconds(ms_per_name));
            found(std::move(entry));
        });
    }

private:
    struct network_file : readable_file {
        network_file(network_disk & disk, std::string path, std::unique_ptr<readable_file> file)
            : disk(disk), path(std::move(path)), file(std::move(file)) {}

        uint64_t size() const override { return file->size(); }
        status   read(uint64_t offset, const span * parts, size_t n_parts) const override {
            const bool meets = contains(path, ".seg") && disk.n_stale_reads > 0 && disk.n_stale_reads-- > 0;
            return meets ? stale(path) : file->read(offset, parts, n_parts);
        }
        void   will_need(uint64_t offset, uint64_t size) const override { file->will_need(offset, size); }
        bool   is_cached(uint64_t offset, uint64_t size) const override { return file->is_cached(offset, size); }
        void   begin_blocks(uint64_t offset, uint64_t size, bool cached) override { file->begin_blocks(offset, size, cached); }
        status read_blocks(uint64_t offset, const span & part) override { return file->read_blocks(offset, part); }

        network_disk &                       disk;
        const std::string                    path;
        const std::unique_ptr<readable_file> file;
    };

    static status stale(const std::string & path) { return status::miss(path + ": Stale file handle"); }

    void wait() const {
        while (hangs) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
};

// Calls that nobody waits for may outlast the test, and so does the disk.
inline network_disk & new_network_disk() {
    static auto * const all = new std::vector<std::unique_ptr<network_disk>>();
    all->push_back(std::make_unique<network_disk>());
    return *all->back();
}

// What a correct program does at once may take long on a busy machine. Waiting for it costs nothing when it comes.
inline constexpr auto patience = std::chrono::seconds(120);

// What a test waits for is short. What tells trouble is long: that a busy machine stops anybody for seconds is no trouble.
inline shared_options quick() {
    shared_options o;
    o.dir          = shared_dir;
    o.backend      = "cpu";
    o.limit        = uint64_t(1) << 30;
    o.timeout      = std::chrono::seconds(60);
    o.off_for      = std::chrono::milliseconds(100);
    o.refresh      = std::chrono::milliseconds(10);
    o.idle_refresh = std::chrono::milliseconds(20);
    o.term         = std::chrono::milliseconds(200);
    o.unfinished   = std::chrono::seconds(60);
    o.touch        = std::chrono::milliseconds(0);
    return o;
}

// A server's cache: a disk of its own, and the folder.
struct server {
    explicit server(network_disk & network, const model & m = {}, const shared_options & o = quick())
        : m(m), s(open(disk, m.options())), tier(s->share(network, o)) {}

    size_t fetch(const std::vector<token> & tokens, uint64_t conversation = 0) const {
        lookup_request r;
        r.conversation = conversation;
        r.root     = m.root();
        r.tokens   = tokens.data();
        r.n_tokens = tokens.size();
        r.limit    = tokens.size();
        r.folded   = m.folded_size > 0;
        const shared_match found   = tier->find(r, s->lookup(r));
        uint64_t           n_bytes = 0;
        return found.n_tokens > 0 && tier->fetch(r.root, found, patience, n_bytes).is_ok() ? found.n_tokens : 0;
    }

    // What a request would restore of it.
    size_t restore(const std::vector<token> & tokens) const {
        (void) fetch(tokens);
        return m.restore(*s, tokens);
    }

    bool save_as(uint64_t conversation, const std::vector<token> & tokens) const {
        save_request request = m.request(*s, tokens);
        request.conversation.hash = conversation;
        return s->save(request).is_ok();
    }

    // It ends and starts again, on the same disk.
    void restart(network_disk & network) {
        tier.reset();
        s.reset();
        s    = open(disk, m.options());
        tier = s->share(network, quick());
    }

    bool save(const std::vector<token> & tokens, uint32_t n_static = 0) const { return m.save(*s, tokens, n_static).is_ok(); }
    bool save_and_publish(const std::vector<token> & tokens, uint32_t n_static = 0) const {
        return save(tokens, n_static) && tier->publish(patience);
    }

    // It has looked at the folder, and found files of use: these are known a moment before the look has ended.
    bool sees_files() const {
        const shared_stats now = tier->stats();
        return now.is_on && now.n_usable > 0;
    }

    fault_env                    disk;
    const model                  m;
    std::unique_ptr<store>       s;
    std::unique_ptr<shared_tier> tier;
};

// A test that has failed already does not wait long any more: a loop of such waits would take hours.
inline bool within(std::chrono::milliseconds time, const std::function<bool()> & holds) {
    const auto longest = failed_checks() == 0 ? time : std::min<std::chrono::milliseconds>(time, std::chrono::seconds(1));
    for (const auto until = std::chrono::steady_clock::now() + longest; std::chrono::steady_clock::now() < until;) {
        if (holds()) {
            return true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return holds();
}

inline std::vector<std::string> objects(const network_disk & network) {
    std::vector<std::string> out;
    for (const std::string & path : files_with(network, shared_dir)) {
        if (contains(path, ".seg") || contains(path, ".anc")) {
            out.push_back(path);
        }
    }
    return out;
}

} // namespace kvtier::test

#include "kvtier/fault_env.h"

#include "kvtier/budget.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace kvtier {

static std::string folder_of(const std::string & path) {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash);
}

class fault_readable : public readable_file {
public:
    fault_readable(fault_env & owner, std::string path, std::shared_ptr<fault_env::node> file)
        : owner(owner), path(std::move(path)), file(std::move(file)) {}

    uint64_t size() const override {
        mutex_lock guard(owner.mu);
        return file->bytes.size();
    }

    status read(uint64_t offset, const span * parts, size_t n_parts) const override {
        owner.pause();
        mutex_lock guard(owner.mu);
        if (status s = owner.before(path, false); !s.is_ok()) {
            return s;
        }
        for (size_t i = 0; i < n_parts; i++) {
            if (offset > file->bytes.size() || parts[i].size > file->bytes.size() - offset) {
                return status::corrupt(damage::truncated, path + ": ends early");
            }
            if (parts[i].size > 0) {
                std::memcpy(parts[i].data, file->bytes.data() + offset, parts[i].size);
            }
            offset += parts[i].size;
        }
        return status::ok();
    }

    void will_need(uint64_t, uint64_t) const override {}
    bool is_cached(uint64_t, uint64_t) const override { return true; }
    void begin_blocks(uint64_t, uint64_t, bool) override {}

    status read_blocks(uint64_t offset, const span & part) override {
        const uint64_t left = size() - std::min(offset, size());
        const span     rest = { part.data, static_cast<size_t>(std::min<uint64_t>(part.size, left)) };
        return read(offset, &rest, 1);
    }

private:
    fault_env &                            owner;
    const std::string                      path;
    const std::shared_ptr<fault_env::node> file;
};

class fault_writable : public writable_file {
public:
    fault_writable(fault_env & owner, std::string path, std::shared_ptr<fault_env::node> file)
        : owner(owner), path(std::move(path)), file(std::move(file)) {}

    status append(const const_span * parts, size_t n_parts) override {
        owner.pause();
        mutex_lock guard(owner.mu);
        std::string bytes;
        for (size_t i = 0; i < n_parts; i++) {
            bytes.append(static_cast<const char *>(parts[i].data), parts[i].size);
        }
        fault  met = fault::none;
        status s   = owner.before(path, true, &met);
        if (s.is_ok() && owner.capacity > 0 && owner.used() + bytes.size() > owner.capacity) {
            met = fault::no_space;
            s   = status::no_space(path + ": write: No space left on device");
        }
        // A write that fails may have happened in part.
        if (!s.is_ok() && met != fault::none) {
            bytes.resize(bytes.size() / 2);
        }
        if (s.is_ok() || met != fault::none) {
            file->bytes += bytes;
            file->modified_ms = owner.clock_ms;
            owner.appended += bytes.size();
        }
        return s;
    }

    status sync() override {
        mutex_lock guard(owner.mu);
        if (status s = owner.before(path, true); !s.is_ok()) {
            return s;
        }
        file->synced = file->bytes;
        return status::ok();
    }

    status close() override {
        mutex_lock guard(owner.mu);
        return owner.before(path, false);
    }

    status modified_ms(int64_t & out) const override {
        mutex_lock guard(owner.mu);
        out = file->modified_ms;
        return owner.before(path, false);
    }

private:
    fault_env &                            owner;
    const std::string                      path;
    const std::shared_ptr<fault_env::node> file;
};

class fault_lock : public file_lock {
public:
    fault_lock(fault_env & owner, std::shared_ptr<fault_env::node> file) : owner(owner), file(std::move(file)) {}
    ~fault_lock() override {
        mutex_lock guard(owner.mu);
        owner.locks.erase(file);
    }

private:
    fault_env &                            owner;
    const std::shared_ptr<fault_env::node> file;
};

void fault_env::pause() const {
    uint64_t us;
    {
        mutex_lock guard(mu);
        us = delay_us;
    }
    if (us > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(us));
    }
}

fault_env::fault_env() = default;
fault_env::~fault_env() = default;

status fault_env::before(const std::string & path, bool changes, fault * met) {
    n_calls++;
    if (dead) {
        return status::io_error(path + ": the power is gone");
    }
    if (fault_at != 0 && n_calls == fault_at) {
        if (met != nullptr) {
            *met = fault_is;
        }
        switch (fault_is) {
            case fault::none:         break;
            case fault::kill:
            case fault::cut:          dead = true; return status::io_error(path + ": the power is gone");
            case fault::short_append:
            case fault::io_error:     return status::io_error(path + ": Input/output error");
            case fault::no_space:     return status::no_space(path + ": No space left on device");
            case fault::no_access:    return status::io_error(path + ": Permission denied");
        }
    }
    if (changes && read_only) {
        return status::io_error(path + ": Read-only file system");
    }
    return status::ok();
}

uint64_t fault_env::used() const {
    uint64_t bytes = 0;
    for (const auto & [path, file] : now) {
        bytes += file->bytes.size();
    }
    return bytes;
}

void fault_env::add_name(const std::string & path, std::shared_ptr<node> file) {
    file->modified_ms = file->modified_ms != 0 ? file->modified_ms : clock_ms;
    now[path]         = std::move(file);
    const auto folder = now.find(folder_of(path));
    if (folder == now.end()) {
        return;
    }
    const std::string prefix  = folder->first + "/";
    size_t            n_names = 0;
    for (auto it = now.lower_bound(prefix); it != now.end() && it->first.compare(0, prefix.size(), prefix) == 0; ++it) {
        n_names += it->first.find('/', prefix.size()) == std::string::npos;
    }
    folder->second->most_names = std::max(folder->second->most_names, n_names);
}

uint64_t fault_env::size_of(const node & file) {
    if (file.type != file_type::folder) {
        return disk_size(file.bytes.size());
    }
    constexpr size_t names_per_block = 32; // about what ext4 has of ours, its leaves being half empty
    const size_t     n_blocks        = (file.most_names + names_per_block - 1) / names_per_block;
    return (n_blocks <= 1 ? 1 : n_blocks + 1) * disk_block; // the second comes with one for the index of both
}

void fault_env::fail_at(size_t n, fault what) {
    mutex_lock guard(mu);
    fault_at = n_calls + n;
    fault_is = what;
}

size_t fault_env::calls() const {
    mutex_lock guard(mu);
    return n_calls;
}

void fault_env::reset_calls() {
    mutex_lock guard(mu);
    n_calls  = 0;
    fault_at = 0;
}

void fault_env::power_cut(cut_mode mode) {
    mutex_lock guard(mu);
    const bool is_kill = fault_is == fault::kill;
    locks.clear();
    dead      = false;
    fault_at  = 0;
    fault_is  = fault::none;
    read_only = false;
    if (is_kill) { // what was not synced is there, and still not safe
        return;
    }
    tree left;
    if (mode == cut_mode::strict) {
        for (const auto & [path, file] : durable) {
            auto copy = std::make_shared<node>(*file);
            copy->bytes = copy->synced;
            left[path] = copy;
        }
        // A name whose folder did not survive is gone with it.
        for (auto it = left.begin(); it != left.end();) {
            const std::string folder = folder_of(it->first);
            const bool lost = !folder.empty() && folder != "/" && left.count(folder) == 0 && now.count(folder) != 0;
            it = lost ? left.erase(it) : std::next(it);
        }
    } else {
        for (const auto & [path, file] : now) {
            auto copy = std::make_shared<node>(*file);
            if (copy->bytes != copy->synced) {
                copy->bytes = mode == cut_mode::torn ? copy->bytes.substr(0, copy->bytes.size() / 2) : "";
            }
            left[path] = copy;
        }
    }
    for (auto & [path, file] : left) {
        file = std::make_shared<node>(*file);
        file->synced = file->bytes;
    }
    now     = left;
    durable = left;
}

void fault_env::set_read_only(bool on) {
    mutex_lock guard(mu);
    read_only = on;
}

void fault_env::set_capacity(uint64_t bytes) {
    mutex_lock guard(mu);
    capacity = bytes;
}

void fault_env::set_delay_us(uint64_t us) {
    mutex_lock guard(mu);
    delay_us = us;
}

void fault_env::set_now_ms(int64_t ms) {
    mutex_lock guard(mu);
    clock_ms = ms;
}

std::vector<std::string> fault_env::files() const {
    mutex_lock guard(mu);
    std::vector<std::string> out;
    for (const auto & [path, file] : now) {
        if (file->type == file_type::file) {
            out.push_back(path);
        }
    }
    return out;
}

bool fault_env::exists(const std::string & path) const {
    mutex_lock guard(mu);
    return now.count(path) != 0;
}

std::string fault_env::get(const std::string & path) const {
    mutex_lock guard(mu);
    const auto it = now.find(path);
    return it == now.end() ? "" : it->second->bytes;
}

void fault_env::put(const std::string & path, const std::string & bytes) {
    mutex_lock guard(mu);
    auto file = std::make_shared<node>();
    file->bytes = file->synced = bytes;
    add_name(path, file);
    durable[path] = file;
}

void fault_env::damage(const std::string & path) {
    mutex_lock guard(mu);
    const auto it = now.find(path);
    if (it != now.end() && !it->second->bytes.empty()) {
        it->second->bytes.back() ^= 1;
        it->second->synced = it->second->bytes;
    }
}

void fault_env::put_folder(const std::string & path) {
    mutex_lock guard(mu);
    auto folder = std::make_shared<node>();
    folder->type = file_type::folder;
    add_name(path, folder);
    durable[path] = folder;
}

void fault_env::put_link(const std::string & path) {
    mutex_lock guard(mu);
    auto link = std::make_shared<node>();
    link->type = file_type::other;
    add_name(path, link);
    durable[path] = link;
}

void fault_env::erase(const std::string & path) {
    mutex_lock guard(mu);
    now.erase(path);
    durable.erase(path);
}

uint64_t fault_env::disk_bytes() const {
    mutex_lock guard(mu);
    uint64_t bytes = 0;
    for (const auto & [path, file] : now) {
        bytes += size_of(*file);
    }
    return bytes;
}

uint64_t fault_env::bytes_appended() const {
    mutex_lock guard(mu);
    return appended;
}

std::unique_ptr<fault_env> fault_env::clone() const {
    mutex_lock guard(mu);
    auto       copy = std::make_unique<fault_env>();
    mutex_lock copy_guard(copy->mu);
    for (const auto & [path, file] : now) {
        copy->now[path] = std::make_shared<node>(*file);
    }
    for (const auto & [path, file] : durable) {
        const auto it = now.find(path);
        copy->durable[path] = it != now.end() && it->second == file ? copy->now[path] : std::make_shared<node>(*file);
    }
    copy->clock_ms = clock_ms;
    return copy;
}

status fault_env::open_file(const std::string & path, std::unique_ptr<readable_file> & out) {
    mutex_lock guard(mu);
    if (status s = before(path, false); !s.is_ok()) {
        return s;
    }
    const auto it = now.find(path);
    if (it == now.end()) {
        return status::miss(path + ": No such file");
    }
    if (it->second->type != file_type::file) {
        return status::corrupt(damage::wrong_type, path + ": not a plain file");
    }
    out = std::make_unique<fault_readable>(*this, path, it->second);
    return status::ok();
}

status fault_env::create_file(const std::string & path, std::unique_ptr<writable_file> & out) {
    mutex_lock guard(mu);
    if (status s = before(path, true); !s.is_ok()) {
        return s;
    }
    if (now.count(path) != 0) {
        return status::io_error(path + ": File exists");
    }
    if (now.count(folder_of(path)) == 0) {
        return status::miss(path + ": No such folder");
    }
    add_name(path, std::make_shared<node>());
    out = std::make_unique<fault_writable>(*this, path, now[path]);
    return status::ok();
}

status fault_env::make_dir(const std::string & path) {
    mutex_lock guard(mu);
    // A folder that is there is ok even on a disk that cannot be written.
    const auto it = now.find(path);
    if (status s = before(path, it == now.end()); !s.is_ok()) {
        return s;
    }
    if (it != now.end()) {
        return it->second->type == file_type::folder ? status::ok()
                                                     : status::corrupt(damage::wrong_type, path + ": not a folder");
    }
    auto folder = std::make_shared<node>();
    folder->type = file_type::folder;
    add_name(path, folder);
    return status::ok();
}

status fault_env::list_dir(const std::string & path, std::vector<dir_entry> & out) {
    mutex_lock guard(mu);
    out.clear();
    if (status s = before(path, false); !s.is_ok()) {
        return s;
    }
    const auto folder = now.find(path);
    if (folder == now.end() || folder->second->type != file_type::folder) {
        return status::miss(path + ": No such folder");
    }
    const std::string prefix = path + "/";
    for (auto it = now.lower_bound(prefix); it != now.end() && it->first.compare(0, prefix.size(), prefix) == 0; ++it) {
        const std::string name = it->first.substr(prefix.size());
        if (name.find('/') == std::string::npos) {
            out.push_back({ name, it->second->type, it->second->bytes.size(), it->second->modified_ms });
        }
    }
    return status::ok();
}

status fault_env::folder_size(const std::string & path, uint64_t & out) {
    mutex_lock guard(mu);
    if (status s = before(path, false); !s.is_ok()) {
        return s;
    }
    const auto it = now.find(path);
    if (it == now.end()) {
        return status::miss(path + ": No such folder");
    }
    out = size_of(*it->second);
    return status::ok();
}

status fault_env::sync_dir(const std::string & path) {
    mutex_lock guard(mu);
    if (status s = before(path, true); !s.is_ok()) {
        return s;
    }
    const std::string prefix = path == "/" ? path : path + "/";
    const auto is_child = [&](const std::string & name) {
        return name.compare(0, prefix.size(), prefix) == 0 && name.find('/', prefix.size()) == std::string::npos;
    };
    for (auto it = durable.lower_bound(prefix); it != durable.end() && it->first.compare(0, prefix.size(), prefix) == 0;) {
        it = is_child(it->first) && now.count(it->first) == 0 ? durable.erase(it) : std::next(it);
    }
    for (auto it = now.lower_bound(prefix); it != now.end() && it->first.compare(0, prefix.size(), prefix) == 0; ++it) {
        if (is_child(it->first)) {
            durable[it->first] = it->second;
        }
    }
    return status::ok();
}

status fault_env::rename(const std::string & from, const std::string & to) {
    mutex_lock guard(mu);
    if (status s = before(from, true); !s.is_ok()) {
        return s;
    }
    const auto it = now.find(from);
    if (it == now.end()) {
        return status::miss(from + ": No such file");
    }
    if (now.count(folder_of(to)) == 0) {
        return status::miss(to + ": No such folder");
    }
    if (from == to) {
        return status::ok();
    }
    const std::shared_ptr<node> moved = it->second;
    add_name(to, moved); // before the old name goes: a folder has both for a moment
    now.erase(from);
    if (moved->type == file_type::folder) { // its children move along
        const std::string prefix = from + "/";
        tree              children;
        for (auto child = now.lower_bound(prefix);
             child != now.end() && child->first.compare(0, prefix.size(), prefix) == 0;) {
            children[to + "/" + child->first.substr(prefix.size())] = child->second;
            child = now.erase(child);
        }
        now.insert(children.begin(), children.end());
    }
    return status::ok();
}

status fault_env::remove_file(const std::string & path) {
    mutex_lock guard(mu);
    if (status s = before(path, true); !s.is_ok()) {
        return s;
    }
    const auto it = now.find(path);
    if (it == now.end()) {
        return status::miss(path + ": No such file");
    }
    if (it->second->type == file_type::folder) {
        return status::io_error(path + ": Is a directory");
    }
    now.erase(it);
    return status::ok();
}

status fault_env::remove_dir(const std::string & path) {
    mutex_lock guard(mu);
    if (status s = before(path, true); !s.is_ok()) {
        return s;
    }
    const auto it = now.find(path);
    if (it == now.end() || it->second->type != file_type::folder) {
        return status::miss(path + ": No such folder");
    }
    const auto child = now.lower_bound(path + "/");
    if (child != now.end() && child->first.compare(0, path.size() + 1, path + "/") == 0) {
        return status::io_error(path + ": Directory not empty");
    }
    now.erase(it);
    return status::ok();
}

status fault_env::touch(const std::string & path) {
    mutex_lock guard(mu);
    if (status s = before(path, true); !s.is_ok()) {
        return s;
    }
    const auto it = now.find(path);
    if (it == now.end()) {
        return status::miss(path + ": No such file");
    }
    it->second->modified_ms = clock_ms;
    return status::ok();
}

status fault_env::lock_file(const std::string & path, std::unique_ptr<file_lock> & out) {
    mutex_lock guard(mu);
    const auto it = now.find(path);
    if (status s = before(path, true); !s.is_ok()) {
        return s;
    }
    if (it != now.end() && it->second->type != file_type::file) {
        return status::corrupt(damage::wrong_type, path + ": not a plain file");
    }
    if (now.count(folder_of(path)) == 0) {
        return status::miss(path + ": No such folder");
    }
    std::shared_ptr<node> & file = now[path];
    if (file == nullptr) {
        file        = std::make_shared<node>();
        file->bytes = "1\n";
        file->modified_ms = clock_ms;
    }
    if (!locks.insert(file).second) { // it is the file's, wherever its folder goes
        return status::busy(path + ": held by process 1", 1);
    }
    out = std::make_unique<fault_lock>(*this, file);
    return status::ok();
}

status fault_env::free_space(const std::string & path, uint64_t & out) {
    mutex_lock guard(mu);
    if (status s = before(path, false); !s.is_ok()) {
        return s;
    }
    const uint64_t taken = used();
    out = capacity == 0 ? uint64_t(1) << 40 : capacity > taken ? capacity - taken : 0;
    return status::ok();
}

int64_t fault_env::now_ms() {
    mutex_lock guard(mu);
    return clock_ms;
}

} // namespace kvtier

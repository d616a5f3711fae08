#include "kvtier/shared/watched_env.h"

#include <utility>

namespace kvtier {

call_watch::call::call(call_watch & watch) : watch(watch) {
    mutex_lock guard(watch.mu);
    at = watch.under_way.insert(clock::now());
}

call_watch::call::~call() {
    mutex_lock guard(watch.mu);
    watch.under_way.erase(at);
}

void call_watch::call::goes_on() {
    mutex_lock guard(watch.mu);
    watch.under_way.erase(at);
    at = watch.under_way.insert(clock::now());
}

call_watch::clock::duration call_watch::longest() const {
    mutex_lock guard(mu);
    return under_way.empty() ? clock::duration::zero() : clock::now() - *under_way.begin();
}

namespace {

// Closing a file may hang as well: a network file system sends what is left.
class watched_readable : public readable_file {
public:
    watched_readable(std::unique_ptr<readable_file> file, std::shared_ptr<call_watch> watch)
        : file(std::move(file)), watch(std::move(watch)) {}
    ~watched_readable() override {
        const call_watch::call call(*watch);
        file.reset();
    }

    uint64_t size() const override { return file->size(); }
    status   read(uint64_t offset, const span * parts, size_t n_parts) const override {
        const call_watch::call call(*watch);
        return file->read(offset, parts, n_parts);
    }
    void will_need(uint64_t offset, uint64_t size) const override {
        const call_watch::call call(*watch);
        file->will_need(offset, size);
    }
    bool is_cached(uint64_t offset, uint64_t size) const override {
        const call_watch::call call(*watch);
        return file->is_cached(offset, size);
    }
    void begin_blocks(uint64_t offset, uint64_t size, bool cached) override {
        const call_watch::call call(*watch);
        file->begin_blocks(offset, size, cached);
    }
    status read_blocks(uint64_t offset, const span & part) override {
        const call_watch::call call(*watch);
        return file->read_blocks(offset, part);
    }

private:
    std::unique_ptr<readable_file>    file;
    const std::shared_ptr<call_watch> watch;
};

class watched_writable : public writable_file {
public:
    watched_writable(std::unique_ptr<writable_file> file, std::shared_ptr<call_watch> watch)
        : file(std::move(file)), watch(std::move(watch)) {}
    ~watched_writable() override {
        const call_watch::call call(*watch);
        file.reset();
    }

    status append(const const_span * parts, size_t n_parts) override {
        const call_watch::call call(*watch);
        return file->append(parts, n_parts);
    }
    status sync() override {
        const call_watch::call call(*watch);
        return file->sync();
    }
    status close() override {
        const call_watch::call call(*watch);
        return file->close();
    }
    status modified_ms(int64_t & out) const override {
        const call_watch::call call(*watch);
        return file->modified_ms(out);
    }

private:
    std::unique_ptr<writable_file>    file;
    const std::shared_ptr<call_watch> watch;
};

} // namespace

status watched_env::open_file(const std::string & path, std::unique_ptr<readable_file> & out) {
    const call_watch::call         call(*watch);
    std::unique_ptr<readable_file> file;
    status                         s = inner.open_file(path, file);
    if (s.is_ok()) {
        out = std::make_unique<watched_readable>(std::move(file), watch);
    }
    return s;
}

status watched_env::create_file(const std::string & path, std::unique_ptr<writable_file> & out) {
    const call_watch::call         call(*watch);
    std::unique_ptr<writable_file> file;
    status                         s = inner.create_file(path, file);
    if (s.is_ok()) {
        out = std::make_unique<watched_writable>(std::move(file), watch);
    }
    return s;
}

status watched_env::make_dir(const std::string & path) {
    const call_watch::call call(*watch);
    return inner.make_dir(path);
}

status watched_env::list_dir(const std::string & path, std::vector<dir_entry> & out) {
    call_watch::call call(*watch);
    out.clear();
    return inner.scan_dir(path, [&](dir_entry && entry) {
        call.goes_on();
        out.push_back(std::move(entry));
    });
}

status watched_env::folder_size(const std::string & path, uint64_t & out) {
    const call_watch::call call(*watch);
    return inner.folder_size(path, out);
}

status watched_env::sync_dir(const std::string & path) {
    const call_watch::call call(*watch);
    return inner.sync_dir(path);
}

status watched_env::rename(const std::string & from, const std::string & to) {
    const call_watch::call call(*watch);
    return inner.rename(from, to);
}

status watched_env::remove_file(const std::string & path) {
    const call_watch::call call(*watch);
    return inner.remove_file(path);
}

status watched_env::remove_dir(const std::string & path) {
    const call_watch::call call(*watch);
    return inner.remove_dir(path);
}

status watched_env::touch(const std::string & path) {
    const call_watch::call call(*watch);
    return inner.touch(path);
}

status watched_env::lock_file(const std::string & path, std::unique_ptr<file_lock> & out) {
    const call_watch::call call(*watch);
    return inner.lock_file(path, out);
}

status watched_env::free_space(const std::string & path, uint64_t & out) {
    const call_watch::call call(*watch);
    return inner.free_space(path, out);
}

} // namespace kvtier

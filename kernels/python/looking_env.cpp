#include "looking_env.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

using kvtier::status;

class watched_file : public kvtier::readable_file {
public:
    watched_file(looking_env & e, std::string path, std::unique_ptr<kvtier::readable_file> file)
        : e(e), path(std::move(path)), file(std::move(file)) {}

    uint64_t size() const override { return file->size(); }

    status read(uint64_t offset, const kvtier::span * parts, size_t n_parts) const override {
        uint64_t bytes = 0;
        for (size_t i = 0; i < n_parts; i++) {
            bytes += parts[i].size;
        }
        if (status s = e.see(path, bytes); !s.is_ok()) {
            return s;
        }
        return file->read(offset, parts, n_parts);
    }

    void will_need(uint64_t offset, uint64_t size) const override { file->will_need(offset, size); }
    bool is_cached(uint64_t offset, uint64_t size) const override { return file->is_cached(offset, size); }
    void begin_blocks(uint64_t offset, uint64_t size, bool cached) override { file->begin_blocks(offset, size, cached); }

    status read_blocks(uint64_t offset, const kvtier::span & part) override {
        if (status s = e.see(path, part.size); !s.is_ok()) {
            return s;
        }
        return file->read_blocks(offset, part);
    }

private:
    looking_env &                          e;
    std::string                            path;
    std::unique_ptr<kvtier::readable_file> file;
};

namespace {

class held_lock : public kvtier::file_lock {
public:
    explicit held_lock(int fd) : fd(fd) {}
    ~held_lock() override {
        if (fd >= 0) {
            ::close(fd);
        }
    }
    held_lock(const held_lock &) = delete;
    held_lock & operator=(const held_lock &) = delete;

private:
    const int fd;
};

bool cannot_write(int code) {
    return code == EACCES || code == EPERM || code == EROFS;
}

status failed(const std::string & path, const char * what, int code) {
    return status::io_error(path + ": " + what + ": " + std::strerror(code));
}

// For whoever is refused meanwhile. The time of the file stays as it was.
void write_pid(int fd) {
    struct stat before;
    if (::fstat(fd, &before) != 0) {
        return;
    }
    const std::string pid = std::to_string(static_cast<long>(::getpid())) + "\n";
    if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, pid.data(), pid.size(), 0) < 0) {
        return;
    }
#if defined(__APPLE__)
    const timespec times[2] = { before.st_atimespec, before.st_mtimespec };
#else
    const timespec times[2] = { before.st_atim, before.st_mtim };
#endif
    (void) ::futimens(fd, times);
}

} // namespace

void looking_env::watch(watcher function) {
    std::lock_guard<std::mutex> guard(mu);
    seen    = std::move(function);
    stopped = false;
}

status looking_env::see(const std::string & path, uint64_t bytes) {
    std::lock_guard<std::mutex> guard(mu);
    if (!stopped && seen) {
        stopped = !seen(bytes);
    }
    return stopped ? status::io_error(path + ": not read, because reading was broken off") : status::ok();
}

status looking_env::open_file(const std::string & path, std::unique_ptr<kvtier::readable_file> & out) {
    std::unique_ptr<kvtier::readable_file> file;
    if (status s = real.open_file(path, file); !s.is_ok()) {
        return s;
    }
    out = std::make_unique<watched_file>(*this, path, std::move(file));
    return status::ok();
}

status looking_env::lock_file(const std::string & path, std::unique_ptr<kvtier::file_lock> & out) {
    if (!inspect) {
        return real.lock_file(path, out);
    }
    constexpr int flags    = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    bool          writable = true;
    int           fd       = ::open(path.c_str(), O_RDWR | flags);
    if (fd < 0 && cannot_write(errno)) {
        writable = false;
        fd       = ::open(path.c_str(), O_RDONLY | flags);
    }
    if (fd < 0 && errno != ENOENT) {
        return failed(path, "open lock", errno);
    }
    auto lock = std::make_unique<held_lock>(fd); // without a file: nobody ever opened this store, so nobody holds it
    if (fd >= 0 && ::flock(fd, (writable ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) {
            return failed(path, "lock", errno);
        }
        char          text[32] = {};
        const ssize_t n        = ::pread(fd, text, sizeof(text) - 1, 0);
        const long    pid      = n > 0 ? std::strtol(text, nullptr, 10) : 0;
        return status::busy(path + ": held by process " + (pid > 0 ? std::to_string(pid) : "(unknown)"), std::max(pid, 0L));
    }
    if (fd >= 0 && !kvtier::is_file_at(path, fd)) {
        return status::busy(path + ": its folder is being removed", 0);
    }
    if (fd >= 0 && writable) {
        write_pid(fd);
    }
    out = std::move(lock);
    return status::ok();
}

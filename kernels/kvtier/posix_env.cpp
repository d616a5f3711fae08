#include "kvtier/env.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

namespace kvtier {

namespace {

constexpr size_t max_parts = 512;          // of one readv or writev; below every system's IOV_MAX
constexpr size_t max_call  = size_t(1) << 30; // Linux and macOS cut calls at 2 GiB; stay clear of it

status from_errno(const std::string & path, const char * what, int code) {
    const std::string text = path + ": " + what + ": " + std::strerror(code);
    switch (code) {
        case ENOENT:
        case ENOTDIR: return status::miss(text);
        case ENOSPC:
        case EDQUOT:  return status::no_space(text);
        case EMFILE: // of handles or memory there may be too few at the moment: neither disk nor file is at fault
        case ENFILE:
        case ENOMEM:  return status::exhausted(text);
        case ELOOP:   return status::corrupt(damage::wrong_type, path + ": a link where a file belongs");
        default:      return status::io_error(text);
    }
}

// The same of what is to be read. A network file system says ESTALE of a file that somebody else has removed, and that is a
// miss. Of what is to be removed or listed, it says nothing about what lies there.
status from_read_errno(const std::string & path, const char * what, int code) {
    const status s = from_errno(path, what, code);
    return code == ESTALE ? status::miss(s.message()) : s;
}

class descriptor {
public:
    explicit descriptor(int fd) : fd(fd) {}
    ~descriptor() { reset(); }
    descriptor(const descriptor &) = delete;
    descriptor & operator=(const descriptor &) = delete;

    int get() const { return fd; }

    int reset() {
        const int result = fd >= 0 ? ::close(fd) : 0;
        fd = -1;
        return result;
    }

private:
    int fd;
};

int open_retrying(const char * path, int flags, mode_t mode = 0) {
    int fd;
    do {
        fd = ::open(path, flags | O_CLOEXEC, mode);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

// Moves all parts through `call`, which takes an iovec array and the bytes done so far and returns as readv does.
template <typename part, typename function>
ssize_t transfer(const part * parts, size_t n_parts, function call) {
    size_t  i_part = 0;
    size_t  skip   = 0; // bytes of parts[i_part] that are done
    ssize_t done   = 0;
    while (i_part < n_parts) {
        iovec  vec[max_parts];
        int    n_vec = 0;
        size_t total = 0;
        for (size_t i = i_part; i < n_parts && n_vec < static_cast<int>(max_parts) && total < max_call; i++) {
            const size_t from = i == i_part ? skip : 0;
            const size_t size = std::min(parts[i].size - from, max_call - total);
            vec[n_vec].iov_base = const_cast<char *>(static_cast<const char *>(parts[i].data)) + from;
            vec[n_vec].iov_len  = size;
            total += size;
            n_vec++;
        }
        ssize_t n = total == 0 ? 0 : call(vec, n_vec, done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return -1;
        }
        if (n == 0 && total > 0) {
            return done;
        }
        done += n;
        size_t left = static_cast<size_t>(n);
        while (i_part < n_parts && left >= parts[i_part].size - skip) {
            left -= parts[i_part].size - skip;
            skip  = 0;
            i_part++;
        }
        skip += left;
    }
    return done;
}

class posix_readable : public readable_file {
public:
    posix_readable(std::string path, int fd) : path(std::move(path)), fd(fd) {}

    uint64_t size() const override { return n; }

    status read(uint64_t offset, const span * parts, size_t n_parts) const override {
        size_t wanted = 0;
        for (size_t i = 0; i < n_parts; i++) {
            wanted += parts[i].size;
        }
        const ssize_t got = transfer(parts, n_parts, [&](const iovec * vec, int n_vec, ssize_t done) {
            return ::preadv(fd.get(), vec, n_vec, static_cast<off_t>(offset) + done);
        });
        if (got < 0) {
            return from_read_errno(path, "read", errno);
        }
        if (static_cast<size_t>(got) != wanted) {
            return status::corrupt(damage::truncated, path + ": ends before " + std::to_string(offset + wanted));
        }
        return status::ok();
    }

    void will_need(uint64_t offset, uint64_t size) const override {
#if defined(__APPLE__)
        radvisory advice = { static_cast<off_t>(offset), static_cast<int>(std::min<uint64_t>(size, INT_MAX)) };
        ::fcntl(fd.get(), F_RDADVISE, &advice);
#elif defined(POSIX_FADV_WILLNEED)
        ::posix_fadvise(fd.get(), static_cast<off_t>(offset), static_cast<off_t>(size), POSIX_FADV_WILLNEED);
#else
        (void) offset;
        (void) size;
#endif
    }

#if defined(O_DIRECT)
    // Half of them will do: that is what a restart of the server alone leaves.
    bool is_cached(uint64_t offset, uint64_t size) const override {
        const uint64_t page   = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
        const uint64_t begin  = std::min(offset, n) / page * page;
        const size_t   length = static_cast<size_t>(std::min(offset + size, n) - begin);
        void *         mapped = length == 0 ? MAP_FAILED
                              : ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd.get(), static_cast<off_t>(begin));
        if (mapped == MAP_FAILED) {
            return true;
        }
        std::vector<uint8_t> pages((length + page - 1) / page);
        const bool           told = ::mincore(mapped, length, pages.data()) == 0;
        ::munmap(mapped, length);
        const auto n_cached = std::count_if(pages.begin(), pages.end(), [](uint8_t p) { return (p & 1) != 0; });
        return !told || 2 * static_cast<size_t>(n_cached) >= pages.size();
    }
#else
    bool is_cached(uint64_t, uint64_t) const override { return true; }
#endif

    void begin_blocks(uint64_t offset, uint64_t size, bool cached) override {
        if (cached || !set_direct(true)) {
            will_need(offset, size);
        }
    }

    status read_blocks(uint64_t offset, const span & part) override {
        const uint64_t wanted = std::min<uint64_t>(part.size, n - std::min(offset, n));
        if (is_direct) {
            touch(part);
        }
        const ssize_t  got    = transfer(&part, 1, [&](const iovec * vec, int n_vec, ssize_t done) {
            const off_t at = static_cast<off_t>(offset) + done;
            if (is_direct && at % static_cast<off_t>(block_size) != 0) {
                set_direct(false); // after a short read: at the end of the file
            }
            const ssize_t now = ::preadv(fd.get(), vec, n_vec, at);
            // Some file systems take the flag and then refuse the read.
            return now < 0 && errno == EINVAL && is_direct && set_direct(false) ? ::preadv(fd.get(), vec, n_vec, at) : now;
        });
        if (got < 0) {
            return from_read_errno(path, "read", errno);
        }
        if (static_cast<uint64_t>(got) < wanted) {
            return status::corrupt(damage::truncated, path + ": ends before " + std::to_string(offset + wanted));
        }
        return status::ok();
    }

    uint64_t n = 0; // set once, by open_file

private:
#if defined(O_DIRECT)
    // Memory that is used for the first time is made now. A direct read would do it too, but with many threads it is slower by
    // a half, presumably because it holds a lock of the whole process meanwhile.
    static void touch(const span & part) {
        for (size_t at = 0; at < part.size; at += block_size) {
            static_cast<volatile uint8_t *>(part.data)[at] = 0;
        }
    }

    bool set_direct(bool on) {
        const int flags = ::fcntl(fd.get(), F_GETFL);
        if (flags < 0 || ::fcntl(fd.get(), F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) != 0) {
            return false;
        }
        is_direct = on;
        return true;
    }
#else
    static void touch(const span &) {}
    static bool set_direct(bool) { return false; }
#endif

    const std::string path;
    const descriptor  fd;
    bool              is_direct = false;
};

int64_t modified_ms_of(const struct stat & info) {
    return static_cast<int64_t>(info.st_mtime) * 1000;
}

class posix_writable : public writable_file {
public:
    posix_writable(std::string path, int fd) : path(std::move(path)), fd(fd) {}

    status append(const const_span * parts, size_t n_parts) override {
        size_t wanted = 0;
        for (size_t i = 0; i < n_parts; i++) {
            wanted += parts[i].size;
        }
        errno = 0;
        const ssize_t put = transfer(parts, n_parts, [&](const iovec * vec, int n_vec, ssize_t) {
            return ::writev(fd.get(), vec, n_vec);
        });
        if (put < 0 || static_cast<size_t>(put) != wanted) {
            return from_errno(path, "write", errno != 0 ? errno : ENOSPC);
        }
        return status::ok();
    }

    status sync() override {
#if defined(__APPLE__)
        // fsync on macOS leaves data in the drive's cache.
        if (::fcntl(fd.get(), F_FULLFSYNC) == 0) {
            return status::ok();
        }
#endif
        return ::fsync(fd.get()) == 0 ? status::ok() : from_errno(path, "fsync", errno);
    }

    status close() override {
        return fd.reset() == 0 ? status::ok() : from_errno(path, "close", errno);
    }

    status modified_ms(int64_t & out) const override {
        struct stat info;
        if (::fstat(fd.get(), &info) != 0) {
            return from_errno(path, "stat", errno);
        }
        out = modified_ms_of(info);
        return status::ok();
    }

private:
    const std::string path;
    descriptor        fd;
};

class posix_lock : public file_lock {
public:
    explicit posix_lock(int fd) : fd(fd) {}

private:
    descriptor fd; // closing it gives the lock back
};

// Holes take no space. More blocks than bytes are room that a file system keeps for a moment.
uint64_t space_of(const struct stat & info) {
    return std::min(static_cast<uint64_t>(info.st_size), static_cast<uint64_t>(info.st_blocks) * 512);
}

class posix_env_impl : public env {
public:
    status open_file(const std::string & path, std::unique_ptr<readable_file> & out) override {
        // With O_NONBLOCK, opening a pipe that somebody put there does not wait for its writer.
        const int fd = open_retrying(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0) {
            return from_read_errno(path, "open", errno);
        }
        auto        file = std::make_unique<posix_readable>(path, fd);
        struct stat info;
        if (::fstat(fd, &info) != 0) {
            return from_read_errno(path, "stat", errno);
        }
        if (!S_ISREG(info.st_mode)) {
            return status::corrupt(damage::wrong_type, path + ": not a plain file");
        }
        file->n = static_cast<uint64_t>(info.st_size);
        out = std::move(file);
        return status::ok();
    }

    status create_file(const std::string & path, std::unique_ptr<writable_file> & out) override {
        const int fd = open_retrying(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
        if (fd < 0) {
            return from_errno(path, "create", errno);
        }
        out = std::make_unique<posix_writable>(path, fd);
        return status::ok();
    }

    status make_dir(const std::string & path) override {
        constexpr int max_attempts = 10; // each but the last met a folder that was gone at the next look
        int           code         = 0;
        for (int i = 0; i < max_attempts; i++) {
            if (::mkdir(path.c_str(), 0700) == 0) {
                return status::ok();
            }
            code = errno;
            struct stat info;
            if (code == EEXIST && ::lstat(path.c_str(), &info) == 0) {
                return S_ISDIR(info.st_mode) ? status::ok()
                                             : status::corrupt(damage::wrong_type, path + ": not a folder");
            }
            if (code != EEXIST || errno != ENOENT) {
                break;
            }
        }
        return from_errno(path, "mkdir", code);
    }

    status list_dir(const std::string & path, std::vector<dir_entry> & out) override {
        out.clear();
        return scan_dir(path, [&](dir_entry && entry) { out.push_back(std::move(entry)); });
    }

    status scan_dir(const std::string & path, const entry_visitor & visit) override {
        DIR * dir = ::opendir(path.c_str());
        if (dir == nullptr) {
            return from_errno(path, "open folder", errno);
        }
        status result = status::ok();
        for (;;) {
            errno = 0;
            const dirent * found = ::readdir(dir);
            if (found == nullptr) {
                if (errno != 0) {
                    result = from_errno(path, "read folder", errno);
                }
                break;
            }
            if (std::strcmp(found->d_name, ".") == 0 || std::strcmp(found->d_name, "..") == 0) {
                continue;
            }
            struct stat info;
            if (::fstatat(::dirfd(dir), found->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
                continue; // gone since
            }
            dir_entry entry;
            entry.name        = found->d_name;
            entry.type        = S_ISREG(info.st_mode) ? file_type::file
                              : S_ISDIR(info.st_mode) ? file_type::folder : file_type::other;
            entry.size        = S_ISREG(info.st_mode) ? space_of(info) : 0;
            entry.modified_ms = modified_ms_of(info);
            visit(std::move(entry));
        }
        ::closedir(dir);
        return result;
    }

    status folder_size(const std::string & path, uint64_t & out) override {
        struct stat info;
        if (::lstat(path.c_str(), &info) != 0) {
            return from_errno(path, "look at folder", errno);
        }
        // st_blocks counts 512 bytes, whatever the file system's block. Some keep names elsewhere and say 0.
        out = std::max(disk_block, disk_size(static_cast<uint64_t>(info.st_blocks) * 512));
        return status::ok();
    }

    status sync_dir(const std::string & path) override {
        const descriptor fd(open_retrying(path.c_str(), O_RDONLY | O_DIRECTORY));
        if (fd.get() < 0) {
            return from_errno(path, "open folder", errno);
        }
        // Some file systems cannot sync a folder and say EINVAL; they have nothing to sync.
        return ::fsync(fd.get()) == 0 || errno == EINVAL ? status::ok() : from_errno(path, "fsync", errno);
    }

    status rename(const std::string & from, const std::string & to) override {
        return ::rename(from.c_str(), to.c_str()) == 0 ? status::ok() : from_errno(from, "rename", errno);
    }

    status remove_file(const std::string & path) override {
        return ::unlink(path.c_str()) == 0 ? status::ok() : from_errno(path, "remove", errno);
    }

    status remove_dir(const std::string & path) override {
        return ::rmdir(path.c_str()) == 0 ? status::ok() : from_errno(path, "remove folder", errno);
    }

    // A file server sets its own time, which is one for all of its clients.
    status touch(const std::string & path) override {
        return ::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0 ? status::ok() : from_errno(path, "touch", errno);
    }

    status lock_file(const std::string & path, std::unique_ptr<file_lock> & out) override {
        constexpr int max_attempts = 10; // each but the last met a folder that was being removed
        status        s = status::ok();
        for (int i = 0; i < max_attempts; i++) {
            s = try_lock(path, out);
            if (!s.is_ok() || out != nullptr) {
                return s;
            }
        }
        return status::io_error(path + ": is replaced again and again");
    }

    // It is ok without a lock when what was locked does not lie there any more.
    static status try_lock(const std::string & path, std::unique_ptr<file_lock> & out) {
        out.reset();
        const int fd = open_retrying(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0) {
            return from_errno(path, "open lock", errno);
        }
        auto lock = std::make_unique<posix_lock>(fd);
        if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK) {
                return from_errno(path, "lock", errno);
            }
            char          text[32] = {};
            const ssize_t n        = ::pread(fd, text, sizeof(text) - 1, 0);
            const long    pid      = n > 0 ? std::strtol(text, nullptr, 10) : 0;
            return status::busy(path + ": held by process " + (pid > 0 ? std::to_string(pid) : "(unknown)"), std::max(pid, 0L));
        }
        if (!is_file_at(path, fd)) {
            return status::ok();
        }
        // The process is written for the message above alone: a failure to write it is no reason to refuse.
        const std::string pid = std::to_string(static_cast<long>(::getpid())) + "\n";
        if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, pid.data(), pid.size(), 0) < 0) {
            errno = 0;
        }
        out = std::move(lock);
        return status::ok();
    }

    status free_space(const std::string & path, uint64_t & out) override {
        struct statvfs info;
        if (::statvfs(path.c_str(), &info) != 0) {
            return from_errno(path, "statvfs", errno);
        }
        out = static_cast<uint64_t>(info.f_bavail) * static_cast<uint64_t>(info.f_frsize);
        return status::ok();
    }

    int64_t now_ms() override {
        return std::chrono::duration_cast<std::chrono::milliseconds>(
                   std::chrono::system_clock::now().time_since_epoch()).count();
    }
};

} // namespace

bool is_file_at(const std::string & path, int fd) {
    struct stat opened, found;
    return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &found) == 0 && opened.st_dev == found.st_dev &&
           opened.st_ino == found.st_ino;
}

env & posix_env() {
    static posix_env_impl * const instance = new posix_env_impl;
    return *instance;
}

} // namespace kvtier

// Handles of a network file system that lead nowhere any more. No other disk says ESTALE, so some system calls are the
// test's own.
#include "kvtier/store_testing.h"

#include <cerrno>

#include <dirent.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

using namespace kvtier;
using namespace kvtier::test;

static bool is_stale = false;

extern "C" int unlink(const char * path) noexcept {
    errno = ESTALE;
    return is_stale ? -1 : ::unlinkat(AT_FDCWD, path, 0);
}

extern "C" DIR * opendir(const char * path) {
    errno = ESTALE;
    const int fd = is_stale ? -1 : ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? nullptr : ::fdopendir(fd);
}

extern "C" ssize_t preadv(int, const iovec *, int, off_t) {
    errno = ESTALE;
    return -1;
}

TEST(a_stale_handle_is_a_miss_to_who_reads_and_trouble_to_who_removes_or_lists) {
    const temp_folder              folder;
    const std::string              path = folder.path + "/file";
    env &                          e    = posix_env();
    std::unique_ptr<writable_file> made;
    std::unique_ptr<readable_file> file;
    CHECK(e.create_file(path, made).is_ok());
    CHECK(e.open_file(path, file).is_ok());
    is_stale = true;
    char       byte = 0;
    const span part = { &byte, 1 };
    CHECK(file->read(0, &part, 1).is_miss());
    CHECK(e.remove_file(path).is_io_error()); // Who takes it for gone leaves a removed user's words there.
    std::vector<dir_entry> entries;
    CHECK(e.list_dir(folder.path, entries).is_io_error()); // Who takes it for empty writes beyond the limit.
    is_stale = false;
}

int main() {
    return run_tests();
}

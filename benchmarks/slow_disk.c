// A disk of a given speed: preloaded into a server, it makes reads of the cache's files take as long as
// SLOW_DISK_BYTES_PER_S says. Everything else about them stays real.
//
//   cc -shared -fPIC -o slow_disk.so slow_disk.c -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// One disk: concurrent reads wait for each other.
static pthread_mutex_t disk = PTHREAD_MUTEX_INITIALIZER;

static int is_cache_file(int fd) {
    char link[64];
    char path[4096];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n < 4) {
        return 0;
    }
    return memcmp(path + n - 4, ".seg", 4) == 0 || memcmp(path + n - 4, ".anc", 4) == 0;
}

static void take_time(int fd, ssize_t n_bytes) {
    const char * speed = getenv("SLOW_DISK_BYTES_PER_S");
    if (n_bytes <= 0 || speed == NULL || !is_cache_file(fd)) {
        return;
    }
    const double          seconds = (double) n_bytes / atof(speed);
    const struct timespec wait    = { (time_t) seconds, (long) ((seconds - (double) (time_t) seconds) * 1e9) };
    pthread_mutex_lock(&disk);
    nanosleep(&wait, NULL);
    pthread_mutex_unlock(&disk);
}

ssize_t preadv(int fd, const struct iovec * parts, int n_parts, off_t offset) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t);
    if (real == NULL) {
        real = (ssize_t (*)(int, const struct iovec *, int, off_t)) dlsym(RTLD_NEXT, "preadv");
    }
    const ssize_t n = real(fd, parts, n_parts, offset);
    take_time(fd, n);
    return n;
}

ssize_t preadv64(int fd, const struct iovec * parts, int n_parts, off_t offset) {
    return preadv(fd, parts, n_parts, offset);
}

ssize_t pread(int fd, void * data, size_t size, off_t offset) {
    const struct iovec part = { data, size };
    return preadv(fd, &part, 1, offset);
}

ssize_t pread64(int fd, void * data, size_t size, off_t offset) {
    return pread(fd, data, size, offset);
}

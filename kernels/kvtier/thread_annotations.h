// Locks that a tool can check: which lock guards what is written down where it is declared, and clang's -Wthread-safety
// refuses code that touches it without the lock (scripts/check-locks). For other compilers the words mean nothing.
//
// The standard library's locks are wrapped because they carry no such words of their own. A condition is waited for in a
// loop, not with a predicate: the tool reads a lambda as a function that holds no lock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define KVTIER_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define KVTIER_THREAD_ANNOTATION(x)
#endif

#define CAPABILITY(x)        KVTIER_THREAD_ANNOTATION(capability(x))
#define SCOPED_CAPABILITY    KVTIER_THREAD_ANNOTATION(scoped_lockable)
#define GUARDED_BY(x)        KVTIER_THREAD_ANNOTATION(guarded_by(x))
#define PT_GUARDED_BY(x)     KVTIER_THREAD_ANNOTATION(pt_guarded_by(x))
#define ACQUIRED_BEFORE(...) KVTIER_THREAD_ANNOTATION(acquired_before(__VA_ARGS__))
#define REQUIRES(...)        KVTIER_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define REQUIRES_SHARED(...) KVTIER_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define EXCLUDES(...)        KVTIER_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...)         KVTIER_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...)  KVTIER_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define RELEASE(...)         KVTIER_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define RELEASE_SHARED(...)  KVTIER_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define RELEASE_GENERIC(...) KVTIER_THREAD_ANNOTATION(release_generic_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...)     KVTIER_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))

namespace kvtier {

class CAPABILITY("mutex") mutex {
public:
    mutex() = default;
    mutex(const mutex &) = delete;
    mutex & operator=(const mutex &) = delete;

    void lock() ACQUIRE() { inner.lock(); }
    void unlock() RELEASE() { inner.unlock(); }
    bool try_lock() TRY_ACQUIRE(true) { return inner.try_lock(); }

private:
    friend class mutex_lock;

    std::mutex inner;
};

// Holds a mutex while it lives; it can be given away for a while in between.
class SCOPED_CAPABILITY mutex_lock {
public:
    explicit mutex_lock(mutex & mu) ACQUIRE(mu) : guard(mu.inner) {}

    // Takes over a mutex that try_lock has got.
    mutex_lock(mutex & mu, std::adopt_lock_t adopt) REQUIRES(mu) : guard(mu.inner, adopt) {}

    ~mutex_lock() RELEASE() {}

    mutex_lock(const mutex_lock &) = delete;
    mutex_lock & operator=(const mutex_lock &) = delete;

    void lock() ACQUIRE() { guard.lock(); }
    void unlock() RELEASE() { guard.unlock(); }

private:
    friend class condition;

    std::unique_lock<std::mutex> guard;
};

class condition {
public:
    void wait(mutex_lock & held) { changed.wait(held.guard); }

    // False: it was not woken before that time.
    template <typename Clock, typename Duration>
    bool wait_until(mutex_lock & held, const std::chrono::time_point<Clock, Duration> & time) {
        return changed.wait_until(held.guard, time) == std::cv_status::no_timeout;
    }

    void notify_all() { changed.notify_all(); }

private:
    std::condition_variable changed;
};

// Many may read at once; one changes alone.
class CAPABILITY("shared_mutex") shared_mutex {
public:
    shared_mutex() = default;
    shared_mutex(const shared_mutex &) = delete;
    shared_mutex & operator=(const shared_mutex &) = delete;

    void lock() ACQUIRE() { inner.lock(); }
    void unlock() RELEASE() { inner.unlock(); }
    void lock_shared() ACQUIRE_SHARED() { inner.lock_shared(); }
    void unlock_shared() RELEASE_SHARED() { inner.unlock_shared(); }

private:
    std::shared_mutex inner;
};

class SCOPED_CAPABILITY exclusive_lock {
public:
    explicit exclusive_lock(shared_mutex & mu) ACQUIRE(mu) : mu(mu) { mu.lock(); }
    ~exclusive_lock() RELEASE() { mu.unlock(); }

    exclusive_lock(const exclusive_lock &) = delete;
    exclusive_lock & operator=(const exclusive_lock &) = delete;

private:
    shared_mutex & mu;
};

class SCOPED_CAPABILITY shared_lock {
public:
    explicit shared_lock(shared_mutex & mu) ACQUIRE_SHARED(mu) : mu(mu) { mu.lock_shared(); }
    ~shared_lock() RELEASE_GENERIC() { mu.unlock_shared(); }

    shared_lock(const shared_lock &) = delete;
    shared_lock & operator=(const shared_lock &) = delete;

private:
    shared_mutex & mu;
};

} // namespace kvtier

// The few lines of a test framework that the C++ tests need: named cases, checks that go on after a failure, and a
// closing line that counts. A test program is a list of TEST blocks and `int main() { return kvtier::run_tests(); }`.
#pragma once

#include <cstdio>
#include <exception>
#include <vector>

namespace kvtier {

struct test_case {
    const char * name;
    void      (* body)();
};

inline std::vector<test_case> & test_cases() {
    static std::vector<test_case> cases;
    return cases;
}

inline int & failed_checks() {
    static int n = 0;
    return n;
}

struct test_registrar {
    test_registrar(const char * name, void (* body)()) { test_cases().push_back({ name, body }); }
};

inline int run_tests() {
    int n_failed = 0;
    for (const test_case & test : test_cases()) {
        failed_checks() = 0;
        try {
            test.body();
        } catch (const std::exception & error) {
            std::printf("  unexpected exception: %s\n", error.what());
            failed_checks()++;
        }
        std::printf("%s %s\n", failed_checks() == 0 ? "ok    " : "FAILED", test.name);
        n_failed += failed_checks() != 0;
    }
    std::printf("%zu passed, %d failed\n", test_cases().size() - static_cast<size_t>(n_failed), n_failed);
    return n_failed == 0 && !test_cases().empty() ? 0 : 1;
}

} // namespace kvtier

#define TEST(name)                                                            \
    static void name();                                                       \
    static const kvtier::test_registrar name##_registrar(#name, name);        \
    static void name()

#define CHECK(condition)                                                      \
    do {                                                                      \
        if (!(condition)) {                                                   \
            std::printf("  %s:%d: %s\n", __FILE__, __LINE__, #condition);     \
            kvtier::failed_checks()++;                                        \
        }                                                                     \
    } while (false)

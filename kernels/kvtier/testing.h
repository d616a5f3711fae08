// The few lines of a test framework that the C++ tests need: named cases, checks that go on after a failure and show
// the values they compared, and a closing line that counts. A test program is a list of TEST blocks, each named after
// what holds, and `int main() { return kvtier::run_tests(); }`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvtier {

// Sanitizers make everything five to ten times slower. ThreadSanitizer has little to find where one thread works alone, and
// AddressSanitizer finds at one byte of a field what it would at the next: long series of trials take every n-th one under them. Every
// one is taken without them.
#if defined(__SANITIZE_THREAD__)
constexpr size_t one_in = 16;
#elif defined(__SANITIZE_ADDRESS__)
constexpr size_t one_in = 5;
#else
constexpr size_t one_in = 1;
#endif

struct test_case {
    const char * name;
    void      (* body)();
};

inline std::vector<test_case> & test_cases() {
    static std::vector<test_case> cases;
    return cases;
}

// Tests check in threads of their own as well.
inline std::atomic<int> & failed_checks() {
    static std::atomic<int> n{ 0 };
    return n;
}

struct test_registrar {
    test_registrar(const char * name, void (* body)()) { test_cases().push_back({ name, body }); }
};

inline int run_tests() {
    std::setvbuf(stdout, nullptr, _IOLBF, 0); // what was said before a crash is seen
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

// What CHECK knows of a condition: whether it holds, and the values that were compared, if it is one comparison.
namespace checking {

template <typename T, typename = void>
struct is_printable : std::false_type {};
template <typename T>
struct is_printable<T, std::void_t<decltype(std::declval<std::ostream &>() << std::declval<const T &>())>> : std::true_type {};

template <typename T, typename = void>
struct is_list : std::false_type {};
template <typename T>
struct is_list<T, std::void_t<decltype(std::declval<const T &>().begin())>> : std::true_type {};

template <typename T>
void show(std::ostream & out, const T & value) {
    if constexpr (std::is_enum_v<T>) {
        out << +static_cast<std::underlying_type_t<T>>(value);
    } else if constexpr (std::is_same_v<T, uint8_t>) {
        out << +value; // a number, not a letter
    } else if constexpr (is_printable<T>::value) {
        out << value;
    } else if constexpr (is_list<T>::value) {
        out << "{";
        for (const auto & item : value) {
            out << " ";
            show(out, item);
        }
        out << " }";
    } else {
        out << "(a value that cannot be shown)";
    }
}

template <typename L>
struct left_side;

struct outcome {
    bool        holds;
    std::string values;

    outcome(bool holds) : holds(holds) {} // several comparisons, joined: their values are gone
    template <typename L>
    outcome(const left_side<L> & alone) : holds(static_cast<bool>(alone)) {}
    template <typename L, typename R>
    outcome(bool holds, const L & left, const char * sign, const R & right) : holds(holds) {
        if (!holds) {
            std::ostringstream out;
            out << std::boolalpha;
            show(out, left);
            out << " " << sign << " ";
            show(out, right);
            values = out.str();
        }
    }
    explicit operator bool() const { return holds; }
};

template <typename L>
struct left_side {
    const L & value;

    explicit operator bool() const { return static_cast<bool>(value); }

// A literal is no longer seen to be one here, so that comparing a size with 100 would be warned of.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
    template <typename R> outcome operator==(const R & right) const { return { value == right, value, "==", right }; }
    template <typename R> outcome operator!=(const R & right) const { return { value != right, value, "!=", right }; }
    template <typename R> outcome operator< (const R & right) const { return { value <  right, value, "<",  right }; }
    template <typename R> outcome operator<=(const R & right) const { return { value <= right, value, "<=", right }; }
    template <typename R> outcome operator> (const R & right) const { return { value >  right, value, ">",  right }; }
    template <typename R> outcome operator>=(const R & right) const { return { value >= right, value, ">=", right }; }
#pragma GCC diagnostic pop
};

// `taking_apart() << a == b` is `(taking_apart() << a) == b`: the comparison is ours.
struct taking_apart {
    template <typename L>
    left_side<L> operator<<(const L & value) const { return { value }; }
};

inline void check(const outcome & result, const char * file, int line, const char * condition) {
    if (!result.holds) {
        const char * values = result.values.c_str();
        std::printf("  %s:%d: %s%s%s\n", file, line, condition, *values == 0 ? "" : ", which is ", values);
        failed_checks()++;
    }
}

} // namespace checking
} // namespace kvtier

#define TEST(name)                                                            \
    static void name();                                                       \
    static const kvtier::test_registrar name##_registrar(#name, name);        \
    static void name()

#define CHECK(condition)                                                      \
    kvtier::checking::check(kvtier::checking::taking_apart() << condition, __FILE__, __LINE__, #condition)

// Bounded reading and writing of host memory for state_rows.cpp. Copies from and into tensors are noted down and made
// together at the end: by then all that could be refused has been.

#pragma once

#include "ggml-backend.h"
#include "llama-io.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace state_rows {

[[noreturn]] inline void refuse(const char * why) {
    throw std::runtime_error(why);
}

// One copy between a tensor and host memory, noted down to be made later.
struct copy {
    ggml_tensor * tensor;
    size_t        offset;
    uint8_t     * host;
    size_t        size;
};

// Calls f(first copy, number of copies, stride in the tensor). Transposed V is one short copy per element of a row: most
// backends do many equally spaced ones far faster together.
template <typename F>
void for_each_run(const copy * copies, size_t n_copies, const F & f) {
    for (size_t i = 0, n; i < n_copies; i += n) {
        const copy & a = copies[i];
        size_t stride = 0;
        for (n = 1; i + n < n_copies; ++n) {
            const copy & b = copies[i + n];
            if (b.tensor != a.tensor || b.size != a.size || b.host != a.host + n*a.size || b.offset <= a.offset) {
                break;
            }
            if (n == 1) {
                stride = b.offset - a.offset;
            } else if (b.offset != a.offset + n*stride) {
                break;
            }
        }
        f(a, n, stride);
    }
}

inline bool is_in_host_memory(const ggml_tensor * t) {
    return ggml_backend_buffer_is_host(t->view_src ? t->view_src->buffer : t->buffer);
}

// Makes all copies. Where both sides are host memory, two threads share them: one core alone does not fill the bus.
template <typename F>
void make_copies(const std::vector<copy> & copies, const F & f) {
    size_t n_bytes = 0;
    bool   shared  = true;
    for (const copy & c : copies) {
        n_bytes += c.size;
        shared  &= is_in_host_memory(c.tensor);
    }
    size_t half = copies.size();
    if (shared && n_bytes >= (1u << 20)) {
        half = 0;
        for (size_t done = 0; done < n_bytes/2; ++half) {
            done += copies[half].size;
        }
    }
    std::thread other;
    if (half < copies.size()) {
        try {
            other = std::thread([&, from = half] { for_each_run(copies.data() + from, copies.size() - from, f); });
        } catch (const std::system_error &) { // no more threads: cells are taken already, so the copies must be made
            half = copies.size();
        }
    }
    for_each_run(copies.data(), half, f);
    if (other.joinable()) {
        other.join();
    }
}

class writer : public llama_io_write_i {
public:
    writer(uint8_t * dst, size_t size) : dst(dst), size(size) {} // dst == nullptr: only count

    void write(const void * src, size_t n) override {
        if (uint8_t * p = take(n)) {
            memcpy(p, src, n);
        }
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t n) override {
        if (uint8_t * p = take(n)) {
            copies.push_back({ tensor, offset, p, n });
        }
    }

    size_t n_bytes() override { return done; }

    void finish() {
        make_copies(copies, [](const copy & c, size_t n, size_t stride) {
            ggml_backend_tensor_get_2d(c.tensor, c.host, c.offset, c.size, n, stride, c.size);
        });
    }

private:
    uint8_t * take(size_t n) {
        if (dst && n > size - done) {
            refuse("the buffer is too small");
        }
        uint8_t * p = dst ? dst + done : nullptr;
        done += n;
        return p;
    }

    uint8_t * dst;
    size_t    size;
    size_t    done = 0;

    std::vector<copy> copies;
};

class reader : public llama_io_read_i {
public:
    reader(const uint8_t * src, size_t size) : src(src), size(size) {}

    void read(void * dst, size_t n) override {
        memcpy(dst, take(n), n);
    }

    void read_tensor(ggml_tensor * tensor, size_t offset, size_t n) override {
        const uint8_t * p = take(n);
        if (noting) {
            copies.push_back({ tensor, offset, const_cast<uint8_t *>(p), n });
        }
    }

    size_t n_bytes() override { return done; }

    template <typename T>
    std::vector<T> read_n(size_t n) {
        std::vector<T> res(n);
        read(res.data(), n*sizeof(T));
        return res;
    }

    size_t here() const { return done; }

    void go_to(size_t place) { done = place; }

    // from here on, the copies are to be made
    void note_copies() { noting = true; }

    bool at_end() const { return done == size; }

    void finish() {
        make_copies(copies, [](const copy & c, size_t n, size_t stride) {
            ggml_backend_tensor_set_2d(c.tensor, c.host, c.offset, c.size, n, stride, c.size);
        });
    }

private:
    const uint8_t * take(size_t n) {
        if (n > size - done) {
            refuse("the data end too early");
        }
        const uint8_t * p = src + done;
        done += n;
        return p;
    }

    const uint8_t * src;
    size_t          size;
    size_t          done   = 0;
    bool            noting = false;

    std::vector<copy> copies;
};

} // namespace state_rows

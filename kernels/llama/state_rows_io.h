// Bounded reading and writing of host memory for state_rows.cpp. Copies from and into tensors are noted down and made
// together at the end: by then all that could be refused has been.

#pragma once

#include "ggml-backend.h"
#include "llama-io.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

namespace state_rows {

[[noreturn]] inline void refuse(const char * why) {
    throw std::runtime_error(why);
}

// Copies between one tensor and host memory: n pieces that follow each other there, and lie stride apart in the tensor.
// Transposed V is one short piece per element of a row.
struct copy {
    ggml_tensor * tensor;
    size_t        offset;
    uint8_t     * host;
    size_t        size; // of a piece
    size_t        n;
    size_t        stride;
};

inline bool is_in_host_memory(const ggml_tensor * t) {
    return ggml_backend_buffer_is_host(t->view_src ? t->view_src->buffer : t->buffer);
}

// Copies, noted down to be made together, in any order: no two may write to the same place.
class copies {
public:
    enum direction { TO_HOST, TO_TENSOR };

    void note(ggml_tensor * tensor, size_t offset, uint8_t * host, size_t size) {
        if (!noted.empty()) {
            copy & c = noted.back();
            const bool follows = c.tensor == tensor && c.size == size && c.host + c.n*c.size == host;
            if (follows && (c.n == 1 ? offset > c.offset : offset == c.offset + c.n*c.stride)) {
                c.stride = c.n == 1 ? offset - c.offset : c.stride;
                c.n++;
                return;
            }
        }
        noted.push_back({ tensor, offset, host, size, 1, 0 });
    }

    // Where all of it is host memory, two threads share the work: one core alone does not fill the bus.
    void make(direction dir) {
        size_t n_bytes = 0;
        bool   shared  = true;
        for (const copy & c : noted) {
            n_bytes += c.n*c.size;
            shared  &= is_in_host_memory(c.tensor);
            GGML_ASSERT(c.offset + (c.n - 1)*c.stride + c.size <= ggml_nbytes(c.tensor));
        }
        std::sort(noted.begin(), noted.end(), [](const copy & a, const copy & b) {
            return std::tie(a.tensor, a.offset) < std::tie(b.tensor, b.offset);
        });
        const copy * end  = noted.data() + noted.size();
        const copy * half = end;
        if (shared && n_bytes >= (1u << 20)) {
            half = noted.data();
            for (size_t done = 0; done < n_bytes/2; ++half) {
                done += half->n*half->size;
            }
        }
        std::thread other;
        if (half != end) {
            try {
                other = std::thread(make_some, half, end, dir);
            } catch (const std::system_error &) { // no more threads: cells are taken already, so the copies must be made
                half = end;
            }
        }
        make_some(noted.data(), half, dir);
        if (other.joinable()) {
            other.join();
        }
        noted.clear();
    }

private:
    static void make_some(const copy * c, const copy * end, direction dir) {
        while (c != end) {
            const copy * first = c++;
            if (!is_in_host_memory(first->tensor)) {
                // most backends do many equally spaced ones far faster together
                if (dir == TO_TENSOR) {
                    ggml_backend_tensor_set_2d(first->tensor, first->host, first->offset, first->size, first->n, first->stride, first->size);
                } else {
                    ggml_backend_tensor_get_2d(first->tensor, first->host, first->offset, first->size, first->n, first->stride, first->size);
                }
                continue;
            }
            // Rows of several blocks that lie beside each other in the tensor: in the order of the tensor's memory.
            while (c != end && c->tensor == first->tensor && c->n == first->n && c->stride == first->stride) {
                ++c;
            }
            for (size_t i = 0; i < first->n; ++i) {
                for (const copy * b = first; b != c; ++b) {
                    uint8_t * there = (uint8_t *) b->tensor->data + b->offset + i*b->stride;
                    uint8_t * here  = b->host + i*b->size;
                    if (dir == TO_TENSOR) {
                        memcpy(there, here, b->size);
                    } else {
                        memcpy(here, there, b->size);
                    }
                }
            }
        }
    }

    std::vector<copy> noted;
};

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
            noted.note(tensor, offset, p, n);
        }
    }

    size_t n_bytes() override { return done; }

    void finish() { noted.make(copies::TO_HOST); }

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
    copies    noted;
};

class reader : public llama_io_read_i {
public:
    reader(const uint8_t * src, size_t size) : src(src), size(size) {}

    void read(void * dst, size_t n) override {
        memcpy(dst, take(n), n);
    }

    void read_tensor(ggml_tensor * tensor, size_t offset, size_t n) override {
        const uint8_t * p = take(n);
        if (to) {
            to->note(tensor, offset, const_cast<uint8_t *>(p), n);
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
    void note_copies(copies & in) { to = &in; }

    bool at_end() const { return done == size; }

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
    size_t          done = 0;
    copies        * to   = nullptr;
};

} // namespace state_rows

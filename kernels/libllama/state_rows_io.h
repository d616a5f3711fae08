// Bounded reading and writing of host memory for state_access.h. Copies from and into tensors are noted down and made
// together at the end: by then all that could be refused has been.

#pragma once

#include "state_copies.h"

#include "llama-io.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace state_rows {

[[noreturn]] inline void refuse(const char * why) {
    throw std::runtime_error(why);
}

class writer : public llama_io_write_i {
public:
    // dst == nullptr: only count
    writer(uint8_t * dst, size_t size, copies & noted) : dst(dst), size(size), noted(noted) {}

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
    copies  & noted;
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

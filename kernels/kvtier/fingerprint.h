// The name of a model and of everything that shapes its state: two processes with the same fingerprint can exchange
// state byte by byte, two with different ones never try.
//
// The adapter feeds it named fields: GGUF metadata, tensor table, samples of tensor bytes, K/V types, RoPE settings and
// so on. The order in which they are added does not matter; a field added twice under one name counts twice. What must
// stay out: slots, threads, context size, batch sizes, port, backend. Any of them would throw a store away for nothing.
//
// Ownership: it copies what it is given. Thread safety: one thread at a time may use it.
#pragma once

#include "kvtier/keys.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvtier {

class fingerprint_builder {
public:
    void add(const std::string & name, const void * data, size_t size);
    void add(const std::string & name, const std::string & text);
    void add(const std::string & name, uint64_t value);
    void add(const std::string & name, double value);

    key finish() const { return finish(""); }

    // The same of the fields whose names begin so, to say what of two models differs.
    key finish(const std::string & prefix) const;

private:
    std::vector<std::pair<std::string, key>> fields; // name and hash of the bytes
};

} // namespace kvtier

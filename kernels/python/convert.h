// Between Python's values and kvtier's, for all bindings.
#pragma once

#include "kvtier/keys.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

using tokens       = std::vector<kvtier::token>;
using adapter_list = std::vector<std::pair<py::bytes, float>>;

inline kvtier::key key_from_bytes(const py::bytes & bytes, const char * what) {
    const std::string text = bytes;
    kvtier::key       key;
    if (text.size() != key.size()) {
        throw py::value_error(std::string(what) + " must have " + std::to_string(key.size()) + " bytes, not " +
                              std::to_string(text.size()));
    }
    std::copy(text.begin(), text.end(), key.begin());
    return key;
}

inline py::bytes bytes_from_key(const kvtier::key & key) {
    return py::bytes(reinterpret_cast<const char *>(key.data()), key.size());
}

// Names of files are bytes and may be anything; they come and go as os.fsdecode and os.fsencode do it.
inline py::str path_to_python(const std::string & path) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

inline std::string path_from_python(const py::object & path) {
    PyObject * encoded = nullptr;
    if (PyUnicode_FSConverter(path.ptr(), &encoded) == 0) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::bytes>(encoded);
}

// Text from a file or about one: shown, never used, so what is no UTF-8 in it is replaced.
inline py::str text_to_python(const std::string & text) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

inline kvtier::chain_root make_root(const kvtier::key & fingerprint, uint32_t page_size, std::string user,
                                    const adapter_list & adapters) {
    if (page_size == 0) {
        throw py::value_error("page_size must be at least 1");
    }
    kvtier::chain_root root{ fingerprint, page_size, std::move(user), {} };
    for (const auto & [content, scale] : adapters) {
        root.adapters.push_back({ key_from_bytes(content, "adapter"), scale });
    }
    return root;
}

// The bindings, one function per file.
void bind_file_names(py::module_ & m);
void bind_history(py::module_ & m);
void bind_store(py::module_ & m);

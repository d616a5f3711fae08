// pyrun._kernels: the pure parts of kvtier for the launcher and the tests.
#include "kvtier/keys.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

using tokens = std::vector<kvtier::token>;

static kvtier::key key_from_bytes(const py::bytes & bytes, const char * what) {
    const std::string text = bytes;
    kvtier::key       key;
    if (text.size() != key.size()) {
        throw py::value_error(std::string(what) + " must have " + std::to_string(key.size()) + " bytes, not " +
                              std::to_string(text.size()));
    }
    std::copy(text.begin(), text.end(), key.begin());
    return key;
}

static py::bytes bytes_from_key(const kvtier::key & key) {
    return py::bytes(reinterpret_cast<const char *>(key.data()), key.size());
}

static kvtier::chain_root make_root(const py::bytes & fingerprint, uint32_t page_size, std::string name_space,
                                    const std::vector<std::pair<py::bytes, float>> & adapters) {
    if (page_size == 0) {
        throw py::value_error("page_size must be at least 1");
    }
    kvtier::chain_root root{ key_from_bytes(fingerprint, "fingerprint"), page_size, std::move(name_space), {} };
    for (const auto & [content, scale] : adapters) {
        root.adapters.push_back({ key_from_bytes(content, "adapter"), scale });
    }
    return root;
}

PYBIND11_MODULE(_kernels, m) {
    m.doc() = "Pure parts of the native core: conversation hashes and page keys.";

    m.def("conversation_hash",
          [](const tokens & t) { return kvtier::conversation_hash(t.data(), t.size()); },
          py::arg("tokens"), "64-bit FNV-1a over the first 1024 tokens.");

    m.def("root_key",
          [](const py::bytes & fingerprint, uint32_t page_size, std::string name_space,
             const std::vector<std::pair<py::bytes, float>> & adapters) {
              return bytes_from_key(
                  kvtier::root_key(make_root(fingerprint, page_size, std::move(name_space), adapters)));
          },
          py::arg("fingerprint"), py::arg("page_size"), py::arg("name_space") = "",
          py::arg("adapters") = std::vector<std::pair<py::bytes, float>>(), "The key that a chain of pages starts from.");

    m.def("page_keys",
          [](const tokens & t, const py::bytes & fingerprint, uint32_t page_size, std::string name_space,
             const std::vector<std::pair<py::bytes, float>> & adapters) {
              const auto root = make_root(fingerprint, page_size, std::move(name_space), adapters);
              std::vector<py::bytes> out;
              for (const kvtier::key & key : kvtier::page_keys(root, t.data(), t.size())) {
                  out.push_back(bytes_from_key(key));
              }
              return out;
          },
          py::arg("tokens"), py::arg("fingerprint"), py::arg("page_size"), py::arg("name_space") = "",
          py::arg("adapters") = std::vector<std::pair<py::bytes, float>>(), "One key per full page of a prompt.");
}

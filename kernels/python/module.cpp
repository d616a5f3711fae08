// pyrun._kernels: the native core for the launcher and the tests. Keys are bound here, all else in files of its own.
#include "convert.h"

PYBIND11_MODULE(_kernels, m) {
    m.doc() = "The native core: conversation hashes, page keys, the cut of a history, and the store of model state.";

    m.def("conversation_hash",
          [](const tokens & t) { return kvtier::conversation_hash(t.data(), t.size()); },
          py::arg("tokens"), "64-bit FNV-1a over the first 1024 tokens.");

    m.def("conversation_of_key", &kvtier::conversation_of_key, py::arg("key"),
          "The hash of the conversation that a client calls so.");

    m.def("root_key",
          [](const py::bytes & fingerprint, uint32_t page_size, std::string user, const adapter_list & adapters) {
              const kvtier::key model = key_from_bytes(fingerprint, "fingerprint");
              return bytes_from_key(kvtier::root_key(make_root(model, page_size, std::move(user), adapters)));
          },
          py::arg("fingerprint"), py::arg("page_size"), py::arg("user") = "",
          py::arg("adapters") = adapter_list(), "The key that a chain of pages starts from.");

    m.def("page_keys",
          [](const tokens & t, const py::bytes & fingerprint, uint32_t page_size, std::string user,
             const adapter_list & adapters) {
              const kvtier::key model = key_from_bytes(fingerprint, "fingerprint");
              const auto        root  = make_root(model, page_size, std::move(user), adapters);
              std::vector<py::bytes> out;
              for (const kvtier::key & key : kvtier::page_keys(root, t.data(), t.size())) {
                  out.push_back(bytes_from_key(key));
              }
              return out;
          },
          py::arg("tokens"), py::arg("fingerprint"), py::arg("page_size"), py::arg("user") = "",
          py::arg("adapters") = adapter_list(), "One key per full page of a prompt.");

    bind_file_names(m);
    bind_history(m);
    bind_store(m);
}

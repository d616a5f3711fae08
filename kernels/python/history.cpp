// What of a history is sent: history/cut.h for Python.
#include "convert.h"
#include "history/cut.h"

namespace {

history::role role_from_name(const std::string & name) {
    if (name == "system" || name == "developer") {
        return history::role::system;
    }
    if (name == "assistant") {
        return history::role::assistant;
    }
    if (name == "tool" || name == "function") {
        return history::role::tool;
    }
    if (name == "user") {
        return history::role::user;
    }
    throw py::value_error("a message has no role \"" + name + "\"; there are system, user, assistant and tool");
}

std::vector<std::pair<size_t, size_t>> pairs(const std::vector<history::range> & ranges) {
    std::vector<std::pair<size_t, size_t>> out;
    for (const history::range & r : ranges) {
        out.emplace_back(r.begin, r.end);
    }
    return out;
}

using strings     = std::vector<std::string>;
using any_message = std::tuple<std::string, uint32_t, strings, strings>;

} // namespace

void bind_history(py::module_ & m) {
    using history::cut;
    py::class_<cut>(m, "Cut", "What of a history is sent.")
        .def_property_readonly("kept", [](const cut & c) { return pairs(c.kept); })
        .def_property_readonly("ahead", [](const cut & c) { return pairs(c.ahead); })
        .def_readonly("n_tokens", &cut::n_tokens)
        .def_readonly("n_over", &cut::n_over)
        .def_readonly("n_tokens_dropped", &cut::n_tokens_dropped)
        .def_readonly("n_dropped", &cut::n_dropped)
        .def_readonly("n_cuts", &cut::n_cuts);

    m.def("cut_history",
          [](const std::vector<any_message> & messages, uint64_t n_tokens, uint32_t n_note_tokens, uint32_t high_percent,
             uint32_t low_percent) {
              if (low_percent > high_percent || high_percent > 100) {
                  throw py::value_error("the marks must be in order: low_percent <= high_percent <= 100");
              }
              std::vector<history::message> in;
              for (const auto & [role, n, calls, results] : messages) {
                  in.push_back({ role_from_name(role), n, calls, results });
              }
              return history::cut_history(in, { n_tokens, n_note_tokens, high_percent, low_percent });
          },
          py::arg("messages"), py::arg("n_tokens"), py::arg("n_note_tokens") = 0,
          py::arg("high_percent") = history::limits().high_percent, py::arg("low_percent") = history::limits().low_percent,
          "What of a history is sent. A message: role, tokens, ids of the calls it makes, ids of the results it brings.");
}

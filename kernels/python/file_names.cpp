// The names of a cache folder's files for Python, so that the rules of kvtier/file_names.h are not written a second time.
#include "convert.h"
#include "kvtier/file_names.h"

void bind_file_names(py::module_ & m) {
    m.attr("TAG_FILE")   = kvtier::names::tag_file;
    m.attr("LOCK_FILE")  = kvtier::names::lock_file;
    m.attr("QUARANTINE") = kvtier::names::quarantine;

    m.def("is_fingerprint",
          [](const py::str & name) {
              Py_ssize_t   size = 0;
              const char * text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
              if (text == nullptr) {
                  PyErr_Clear(); // a file's name may be no text at all
                  return false;
              }
              kvtier::key parsed;
              return kvtier::parse_hex(std::string(text, static_cast<size_t>(size)), parsed);
          },
          py::arg("name"), "Whether a model's folder could have this name.");

    m.def("user_key", [](const std::string & user) { return bytes_from_key(kvtier::user_key(user)); }, py::arg("user"),
          "The hash that stands for a user id: the name of the user's folder.");

    m.def("user_folder",
          [](const py::object & cache, const py::bytes & fingerprint, const py::bytes & name_space) {
              const kvtier::file_layout layout(path_from_python(cache), key_from_bytes(fingerprint, "fingerprint"));
              return path_to_python(layout.name_space(key_from_bytes(name_space, "name_space")));
          },
          py::arg("cache"), py::arg("fingerprint"), py::arg("name_space"), "Where a model keeps what belongs to one user.");

    m.def("is_user_id", &kvtier::is_user_id, py::arg("text"), "Whether this may be a user's id; the empty one is nobody's.");
}

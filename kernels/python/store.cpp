// The store for Python: looking after one at rest, and writing small ones in tests.
//
// Every call that may touch a file gives the interpreter lock away. A call keeps its store alive, so that close() in
// another thread cannot pull it away. Results are plain copies: nothing in Python points into the store.
#include "convert.h"
#include "kvtier/file_names.h"
#include "kvtier/store.h"
#include "looking_env.h"

#include <pybind11/functional.h>
#include <pybind11/gil_safe_call_once.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using kvtier::status;

namespace {

// Becomes pyrun._kernels.StoreError.
struct store_error : std::exception {
    explicit store_error(status s) : problem(std::move(s)) {}
    const char * what() const noexcept override { return problem.message().c_str(); }
    status problem;
};

void check(const status & s) {
    if (!s.is_ok()) {
        throw store_error(s);
    }
}

// The process that holds a busy lock, where it is known.
std::optional<long> holder(const status & s) {
    return s.holder() > 0 ? std::optional<long>(s.holder()) : std::nullopt;
}

kvtier::blob blob_from(const py::bytes & bytes) {
    const std::string text = bytes;
    auto              out  = std::make_shared<kvtier::buffer>(text.size());
    std::memcpy(out->data(), text.data(), text.size());
    return out;
}

py::bytes bytes_from(const kvtier::blob & data) {
    return py::bytes(reinterpret_cast<const char *>(data->data()), data->size());
}

using damage_list = std::vector<kvtier::damage_note>;

struct damage_view {
    std::string path;
    std::string kind;
    std::string reason;
    std::string message;
};

std::vector<damage_view> views(const damage_list & notes) {
    std::vector<damage_view> out;
    for (const auto & note : notes) {
        // A disk that cannot be read has no reason of its own among those of a file.
        const bool        of_file = note.problem.reason() != kvtier::damage::none;
        const std::string kind    = kvtier::kind_name(note.problem.kind());
        out.push_back({ note.path, kind, of_file ? kvtier::damage_name(note.problem.reason()) : kind,
                        note.problem.message() });
    }
    return out;
}

struct report_view {
    uint64_t                 n_files = 0;
    uint64_t                 n_bytes = 0;
    std::vector<damage_view> damaged;
};

struct match_view {
    size_t      n_tokens = 0;
    size_t      n_common = 0;
    std::string source;
    std::string kind;
    std::string reason;
};

struct state_view {
    match_view                                            match;
    std::vector<std::tuple<uint32_t, uint32_t, py::bytes>> runs;
    std::optional<py::bytes>                              anchor;
};

match_view view(const kvtier::match & m) {
    return { m.n_tokens, m.n_common, match_source_name(m.source), match_kind_name(m.kind), miss_reason_name(m.reason) };
}

// The store goes before the env that it uses.
struct open_store {
    explicit open_store(bool inspect) : e(inspect) {}

    looking_env                    e;
    std::unique_ptr<kvtier::store> store;
    std::mutex                     verifying; // one watcher at a time
};

class py_store {
public:
    py_store(const kvtier::store_options & options) : options(options), state(std::make_shared<open_store>(options.inspect)) {
        py::gil_scoped_release no_gil;
        check(kvtier::store::open(state->e, options, state->store));
    }

    ~py_store() { close(); }

    // Those calls that are under way end first; the last of them gives the lock back.
    void close() {
        std::shared_ptr<open_store> last = std::move(state);
        py::gil_scoped_release      no_gil;
        last.reset();
    }

    std::shared_ptr<open_store> use() const {
        if (state == nullptr) {
            throw py::value_error("the store is closed");
        }
        return state;
    }

    std::shared_ptr<open_store> change() const {
        auto out = use();
        if (options.inspect) {
            throw store_error(status::io_error(model_dir() + ": opened for inspection only"));
        }
        return out;
    }

    std::vector<std::pair<uint32_t, uint32_t>> plan(const tokens & t, std::string user, const adapter_list & adapters,
                                                    uint32_t n_static, const std::vector<uint32_t> & anchors) const {
        std::vector<std::pair<uint32_t, uint32_t>> out;
        for (const auto & r : planned(*use()->store, t, std::move(user), adapters, n_static, anchors).runs) {
            out.emplace_back(r.p0, r.p1);
        }
        return out;
    }

    uint64_t save(const tokens & t, const std::function<py::bytes(uint32_t, uint32_t)> & rows,
                  const std::map<uint32_t, py::bytes> & anchors, std::string user, const adapter_list & adapters,
                  uint32_t n_static, bool checkpoint, const std::string & backend, uint64_t conversation,
                  const std::string & title) const {
        const auto            s = change();
        std::vector<uint32_t> lengths;
        for (const auto & [n, data] : anchors) {
            lengths.push_back(n);
        }
        kvtier::save_request request = planned(*s->store, t, std::move(user), adapters, n_static, lengths);
        for (auto & r : request.runs) {
            r.data = blob_from(rows(r.p0, r.p1));
        }
        for (auto & a : request.anchors) {
            a.data = blob_from(anchors.at(a.n_tokens));
        }
        request.checkpoint = checkpoint;
        request.folded     = !anchors.empty();
        request.backend    = backend;
        request.conversation.hash  = conversation;
        request.conversation.title = title;
        py::gil_scoped_release no_gil;
        check(s->store->save(request));
        return request.bytes();
    }

    match_view lookup(const tokens & t, std::string user, const adapter_list & adapters, bool folded) const {
        const auto s = use();
        return view(found(*s->store, t, std::move(user), adapters, folded));
    }

    // lookup, load and touch in one, as a server does them for a prompt.
    state_view load(const tokens & t, std::string user, const adapter_list & adapters, bool folded) const {
        const auto           s = use();
        const kvtier::match  m = found(*s->store, t, std::move(user), adapters, folded);
        kvtier::loaded_state loaded;
        {
            py::gil_scoped_release no_gil;
            check(s->store->load(m, t.data(), t.size(), loaded));
            s->store->touch(m);
        }
        state_view out;
        out.match = view(m);
        for (const auto & r : loaded.runs) {
            out.runs.emplace_back(r.p0, r.p1, bytes_from(r.data));
        }
        if (loaded.anchor != nullptr) {
            out.anchor = bytes_from(loaded.anchor);
        }
        return out;
    }

    std::vector<kvtier::conversation_info> conversations() const {
        const auto             s = use();
        py::gil_scoped_release no_gil;
        return s->store->list();
    }

    std::vector<damage_view> damaged() const { return views(use()->store->damaged()); }

    kvtier::store_stats stats() const { return use()->store->stats(); }

    report_view verify(const std::optional<std::function<void(uint64_t)>> & progress) const {
        const auto                            s = use();
        kvtier::verify_report                 report;
        std::optional<py::error_already_set>  stop;
        uint64_t                              done = 0;
        std::chrono::steady_clock::time_point told{};
        {
            py::gil_scoped_release      no_gil;
            std::lock_guard<std::mutex> one_at_a_time(s->verifying);
            s->e.watch([&](uint64_t bytes) {
                done += bytes;
                const auto now = std::chrono::steady_clock::now();
                if (now - told < std::chrono::milliseconds(100)) {
                    return true;
                }
                told = now;
                py::gil_scoped_acquire gil;
                try {
                    if (PyErr_CheckSignals() != 0) {
                        throw py::error_already_set();
                    }
                    if (progress) {
                        (*progress)(done);
                    }
                } catch (py::error_already_set & raised) {
                    stop.emplace(std::move(raised));
                }
                return !stop;
            });
            const status result = s->store->verify(report);
            s->e.watch({});
            check(result);
        }
        if (stop) {
            throw py::error_already_set(std::move(*stop));
        }
        return { report.n_files, report.n_bytes, views(report.damaged) };
    }

    uint64_t gc() const {
        return freed([](kvtier::store & s, uint64_t & bytes) { return s.gc(bytes); });
    }

    uint64_t remove_conversation(const py::bytes & name_space, uint64_t hash) const {
        const kvtier::key key = key_from_bytes(name_space, "name_space");
        return freed([&](kvtier::store & s, uint64_t & bytes) { return s.remove_conversation(key, hash, bytes); });
    }

    void set_lifetime(const py::bytes & name_space, uint64_t hash, const std::optional<std::string> & ttl,
                      const std::optional<std::string> & expire) const {
        const kvtier::key       key = key_from_bytes(name_space, "name_space");
        const auto              s   = change();
        kvtier::lifetime_change life;
        if (ttl && !(life.ttl_ms = kvtier::parse_ttl(*ttl))) {
            throw py::value_error("a ttl is 5m, 1h, 24h, forever or none");
        }
        if (expire && !(life.expire_ms = kvtier::parse_expire(*expire))) {
            throw py::value_error("a duration is like 90s, 30m, 12h or 7d, or none");
        }
        py::gil_scoped_release no_gil;
        check(s->store->set_lifetime(key, hash, life));
    }

    uint64_t remove_name_space(const py::bytes & name_space) const {
        const kvtier::key key = key_from_bytes(name_space, "name_space");
        return freed([&](kvtier::store & s, uint64_t & bytes) { return s.remove_name_space(key, bytes); });
    }

    // Moves files to the store's quarantine and closes it: what it knew is no longer so. The next opening finds the
    // checkpoints that needed them.
    size_t set_aside(const std::vector<py::object> & files) {
        const auto                s = change();
        const kvtier::file_layout layout(options.root_dir, options.fingerprint);
        const std::string         aside = layout.quarantine();
        std::vector<std::string>  paths;
        for (const py::object & file : files) {
            const std::string & path = paths.emplace_back(path_from_python(file));
            if (path == layout.model() || !kvtier::names::is_in(path, layout.model()) || path.find("/../") != std::string::npos) {
                throw py::value_error(path + " is not in " + layout.model());
            }
        }
        size_t moved = 0;
        {
            py::gil_scoped_release no_gil;
            check(s->e.make_dir(aside));
            for (const std::string & path : paths) {
                const std::string name   = path.substr(path.find_last_of('/') + 1);
                const std::string target = kvtier::names::join(aside, kvtier::names::aside(name, s->e.now_ms(), moved));
                const status      result = s->e.rename(path, target);
                if (!result.is_miss()) {
                    check(result);
                    moved++;
                }
            }
            check(s->e.sync_dir(aside));
        }
        close();
        return moved;
    }

private:
    std::string model_dir() const { return kvtier::names::join(options.root_dir, kvtier::hex(options.fingerprint)); }

    kvtier::save_request planned(const kvtier::store & s, const tokens & t, std::string user,
                                 const adapter_list & adapters, uint32_t n_static,
                                 const std::vector<uint32_t> & anchors) const {
        kvtier::plan_request request;
        request.root     = make_root(options.fingerprint, options.page_size, std::move(user), adapters);
        request.tokens   = t.data();
        request.n_tokens = t.size();
        request.n_static = n_static;
        request.anchors  = anchors;
        return s.plan(request);
    }

    kvtier::match found(const kvtier::store & s, const tokens & t, std::string user, const adapter_list & adapters,
                        bool folded) const {
        kvtier::lookup_request request;
        request.root     = make_root(options.fingerprint, options.page_size, std::move(user), adapters);
        request.tokens   = t.data();
        request.n_tokens = t.size();
        request.limit    = t.size();
        request.folded   = folded;
        return s.lookup(request);
    }

    template <typename function> uint64_t freed(function call) const {
        const auto             s = change();
        py::gil_scoped_release no_gil;
        uint64_t               bytes = 0;
        check(call(*s->store, bytes));
        return bytes;
    }

    kvtier::store_options       options;
    std::shared_ptr<open_store> state;
};

std::unique_ptr<py_store> make_store(const py::object & folder, const py::bytes & fingerprint, uint32_t page_size, bool inspect,
                                     std::string written_by, std::optional<uint64_t> max_bytes, uint64_t ram_bytes,
                                     std::optional<uint32_t> max_conversations,
                                     std::optional<uint32_t> max_checkpoints) {
    constexpr uint32_t    no_limit = std::numeric_limits<uint32_t>::max();
    kvtier::store_options options;
    options.root_dir          = path_from_python(folder);
    options.fingerprint       = key_from_bytes(fingerprint, "fingerprint");
    options.page_size         = page_size;
    options.inspect           = inspect;
    options.written_by        = std::move(written_by);
    options.max_bytes         = max_bytes.value_or(std::numeric_limits<uint64_t>::max());
    options.ram_bytes         = ram_bytes;
    options.max_conversations = max_conversations.value_or(no_limit);
    options.max_checkpoints   = max_checkpoints.value_or(no_limit);
    options.max_cold          = no_limit;
    options.max_anchors       = no_limit;
    options.protected_bytes   = max_bytes ? *max_bytes / 2 : options.max_bytes;
    return std::make_unique<py_store>(options);
}

std::map<std::string, uint64_t> counters_of(const kvtier::store_stats & stats) {
    std::map<std::string, uint64_t> out;
#define KVTIER_FIELD(name, meaning) out[#name] = stats.values.name;
    KVTIER_COUNTERS(KVTIER_FIELD)
#undef KVTIER_FIELD
    return out;
}

std::map<std::string, uint64_t> damage_of(const kvtier::store_stats & stats) {
    std::map<std::string, uint64_t> out;
    for (size_t i = 1; i < stats.values.damaged.size(); i++) {
        out[kvtier::damage_name(static_cast<kvtier::damage>(i))] = stats.values.damaged[i];
    }
    return out;
}

void bind_errors(py::module_ & m) {
    PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> error_type;
    PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> busy_type;
    error_type.call_once_and_store_result([&] { return py::object(py::exception<store_error>(m, "StoreError")); });
    busy_type.call_once_and_store_result([&] {
        return py::object(py::exception<store_error>(m, "StoreBusyError", error_type.get_stored()));
    });
    py::register_exception_translator([](std::exception_ptr raised) {
        try {
            if (raised) {
                std::rethrow_exception(raised);
            }
        } catch (const store_error & error) {
            const status &     s    = error.problem;
            const py::object & type = s.is_busy() ? busy_type.get_stored() : error_type.get_stored();
            const py::str      text = text_to_python(s.message());
            py::object         made = type(text);
            made.attr("kind")    = kvtier::kind_name(s.kind());
            made.attr("message") = text;
            made.attr("pid")     = holder(s);
            PyErr_SetObject(type.ptr(), made.ptr());
        }
    });
}

void bind_results(py::module_ & m) {
    using kvtier::conversation_info;
    py::class_<conversation_info>(m, "Conversation")
        .def_property_readonly("name_space", [](const conversation_info & c) { return bytes_from_key(c.name_space); })
        .def_readonly("hash", &conversation_info::hash)
        .def_readonly("turns", &conversation_info::turns)
        .def_readonly("n_tokens", &conversation_info::n_tokens)
        .def_readonly("bytes_own", &conversation_info::bytes_own)
        .def_readonly("bytes_shared", &conversation_info::bytes_shared)
        .def_readonly("hits", &conversation_info::hits)
        .def_property_readonly("tier", [](const conversation_info & c) { return kvtier::tier_name(c.where); })
        .def_readonly("created_ms", &conversation_info::created_ms)
        .def_readonly("last_used_ms", &conversation_info::last_used_ms)
        .def_property_readonly("title", [](const conversation_info & c) { return text_to_python(c.title); })
        .def_property_readonly("ttl", [](const conversation_info & c) { return kvtier::duration_text(c.life.ttl_ms); })
        .def_property_readonly("expire", [](const conversation_info & c) { return kvtier::duration_text(c.life.expire_ms); })
        .def_readonly("is_protected", &conversation_info::is_protected)
        .def_property_readonly("backend", [](const conversation_info & c) { return text_to_python(c.backend); });

    py::class_<damage_view>(m, "Damage")
        .def_property_readonly("path", [](const damage_view & d) { return path_to_python(d.path); })
        .def_readonly("kind", &damage_view::kind)
        .def_readonly("reason", &damage_view::reason)
        .def_property_readonly("message", [](const damage_view & d) { return text_to_python(d.message); });

    py::class_<report_view>(m, "VerifyReport")
        .def_readonly("n_files", &report_view::n_files)
        .def_readonly("n_bytes", &report_view::n_bytes)
        .def_readonly("damaged", &report_view::damaged);

    using kvtier::store_stats;
    py::class_<store_stats>(m, "StoreStats")
        .def_property_readonly("counters", &counters_of)
        .def_property_readonly("damaged", &damage_of)
        .def_readonly("disk_bytes", &store_stats::disk_bytes)
        .def_readonly("disk_limit", &store_stats::disk_limit)
        .def_readonly("ram_bytes", &store_stats::ram_bytes)
        .def_readonly("ram_limit", &store_stats::ram_limit)
        .def_readonly("n_runs", &store_stats::n_runs)
        .def_readonly("n_segments", &store_stats::n_segments)
        .def_readonly("n_anchors", &store_stats::n_anchors)
        .def_readonly("n_conversations", &store_stats::n_conversations)
        .def_readonly("n_checkpoints", &store_stats::n_checkpoints);

    py::class_<match_view>(m, "Match")
        .def_readonly("n_tokens", &match_view::n_tokens)
        .def_readonly("n_common", &match_view::n_common)
        .def_readonly("source", &match_view::source)
        .def_readonly("kind", &match_view::kind)
        .def_readonly("reason", &match_view::reason);

    py::class_<state_view>(m, "LoadedState")
        .def_readonly("match", &state_view::match)
        .def_readonly("runs", &state_view::runs)
        .def_readonly("anchor", &state_view::anchor);
}

} // namespace

void bind_store(py::module_ & m) {
    bind_errors(m);
    bind_results(m);

    m.def("list_models",
          [](const py::object & folder) {
              std::vector<kvtier::key> found;
              check(kvtier::list_models(kvtier::posix_env(), path_from_python(folder), found));
              std::vector<py::bytes> out;
              for (const kvtier::key & k : found) {
                  out.push_back(bytes_from_key(k));
              }
              return out;
          },
          py::arg("folder"), "Fingerprints that have a folder in a cache folder.");

    m.def("measure_tree",
          [](const py::object & folder) {
              const std::string      path = path_from_python(folder);
              py::gil_scoped_release no_gil;
              uint64_t               bytes = 0;
              check(kvtier::measure_tree(kvtier::posix_env(), path, bytes));
              return bytes;
          },
          py::arg("path"), "Disk space of a tree of files, counted as the store counts it.");

    m.def("remove_model",
          [](const py::object & folder, const py::bytes & fingerprint) {
              const std::string      root = path_from_python(folder);
              const kvtier::key      key  = key_from_bytes(fingerprint, "fingerprint");
              py::gil_scoped_release no_gil;
              uint64_t               freed = 0;
              check(kvtier::remove_model(kvtier::posix_env(), root, key, freed));
              return freed;
          },
          py::arg("folder"), py::arg("fingerprint"), "Removes all that is stored of a model; the bytes freed.");

    py::class_<py_store>(m, "Store")
        .def(py::init(&make_store), py::arg("folder"), py::arg("fingerprint"), py::kw_only(), py::arg("page_size") = 256,
             py::arg("inspect") = false, py::arg("written_by") = "", py::arg("max_bytes") = py::none(),
             py::arg("ram_bytes") = 0, py::arg("max_conversations") = py::none(), py::arg("max_checkpoints") = py::none(),
             "Opens the store of one model. Limits that are not given do not exist: they are the server's to keep.")
        .def("close", &py_store::close)
        .def("__enter__", [](py::object self) { return self; })
        .def("__exit__", [](py_store & self, const py::args &) { self.close(); })
        .def("plan", &py_store::plan, py::arg("tokens"), py::kw_only(), py::arg("user") = "",
             py::arg("adapters") = adapter_list(), py::arg("n_static") = 0, py::arg("anchors") = std::vector<uint32_t>(),
             "The spans of a sequence that are not stored yet.")
        .def("save", &py_store::save, py::arg("tokens"), py::arg("rows"), py::kw_only(),
             py::arg("anchors") = std::map<uint32_t, py::bytes>(), py::arg("user") = "",
             py::arg("adapters") = adapter_list(), py::arg("n_static") = 0, py::arg("checkpoint") = true,
             py::arg("backend") = "", py::arg("conversation") = 0, py::arg("title") = "",
             "Saves what plan() names; rows(p0, p1) gives the state of a span.")
        .def("lookup", &py_store::lookup, py::arg("tokens"), py::kw_only(), py::arg("user") = "",
             py::arg("adapters") = adapter_list(), py::arg("folded") = false)
        .def("load", &py_store::load, py::arg("tokens"), py::kw_only(), py::arg("user") = "",
             py::arg("adapters") = adapter_list(), py::arg("folded") = false)
        .def("conversations", &py_store::conversations)
        .def("damaged", &py_store::damaged, "What opening found.")
        .def("stats", &py_store::stats)
        .def("verify", &py_store::verify, py::arg("progress") = py::none(),
             "Reads every byte and changes nothing; progress(bytes read) is called now and then.")
        .def("gc", &py_store::gc, "Removes what nothing can use; the bytes freed.")
        .def("remove_conversation", &py_store::remove_conversation, py::arg("name_space"), py::arg("hash"))
        .def("remove_name_space", &py_store::remove_name_space, py::arg("name_space"))
        .def("set_lifetime", &py_store::set_lifetime, py::arg("name_space"), py::arg("hash"), py::kw_only(),
             py::arg("ttl") = py::none(), py::arg("expire") = py::none(),
             "How long a conversation is kept; None leaves it as it is. ValueError for what is no duration.")
        .def("set_aside", &py_store::set_aside, py::arg("paths"),
             "Moves files of this store to its quarantine, and closes the store; how many were moved.");
}

#include "llama/model_fingerprint.h"

#include "kvtier/file_names.h"
#include "kvtier/fingerprint.h"
#include "kvtier/format.h"
#include "state_settings.h"

#include "ggml.h"
#include "gguf.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>

namespace llama_run {

using kvtier::fingerprint_builder;
using kvtier::status;

// Bump when the meaning of stored bytes changes in a way that no other field shows.
static constexpr uint64_t state_format = 1;

// Enough to tell a changed tensor from its neighbour version, few enough to be read at once from a cold disk.
static constexpr size_t n_samples   = 8;
static constexpr size_t sample_size = 64;

struct gguf_deleter { void operator()(gguf_context * c) const { gguf_free(c); } };
struct file_closer  { void operator()(FILE * f) const { fclose(f); } };

using gguf_ptr = std::unique_ptr<gguf_context, gguf_deleter>;
using file_ptr = std::unique_ptr<FILE, file_closer>;

static bool read_at(FILE * file, size_t offset, uint8_t * data, size_t size) {
    return fseeko(file, static_cast<off_t>(offset), SEEK_SET) == 0 && fread(data, 1, size, file) == size;
}

// Everything before the tensors' data: metadata and tensor table as they stand in the file.
static bool add_head(fingerprint_builder & fp, const std::string & name, const gguf_context * gguf, FILE * file) {
    std::vector<uint8_t> bytes(gguf_get_data_offset(gguf));
    if (!read_at(file, 0, bytes.data(), bytes.size())) {
        return false;
    }
    fp.add(name, bytes.data(), bytes.size());
    return true;
}

static bool add_tensors(fingerprint_builder & fp, const gguf_context * gguf, FILE * file) {
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf); i++) {
        const std::string name   = std::string("tensor/") + gguf_get_tensor_name(gguf, i);
        const size_t      size   = gguf_get_tensor_size(gguf, i);
        const size_t      offset = gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, i);
        const size_t      length = std::min(size, sample_size);

        std::vector<uint8_t> bytes(n_samples * length);
        for (size_t n = 0; n < n_samples; n++) {
            const size_t at = (size - length) * n / (n_samples - 1); // the first and the last bytes are among them
            if (!read_at(file, offset + at, bytes.data() + n * length, length)) {
                return false;
            }
        }
        fp.add(name, bytes.data(), bytes.size());
    }
    return true;
}

static std::vector<std::string> parts_of(const std::string & path, const gguf_context * first) {
    const int64_t id = gguf_find_key(first, "split.count");
    const int     n  = id < 0 || gguf_get_kv_type(first, id) != GGUF_TYPE_UINT16 ? 1 : gguf_get_val_u16(first, id);
    std::vector<std::string> out;
    char prefix[4096];
    char part[4096];
    if (n <= 1 || llama_split_prefix(prefix, sizeof(prefix), path.c_str(), 0, n) <= 0) {
        return { path };
    }
    for (int i = 0; i < n; i++) {
        llama_split_path(part, sizeof(part), prefix, i, n);
        out.emplace_back(part);
    }
    return out;
}

// Adds one GGUF file. parts, if given, becomes the list of files of its split set.
static status add_file(fingerprint_builder & fp, const std::string & name, const std::string & path,
                       std::vector<std::string> * parts = nullptr) {
    const gguf_ptr gguf(gguf_init_from_file(path.c_str(), { true, nullptr }));
    const file_ptr file(fopen(path.c_str(), "rb"));
    if (!gguf || !file) {
        return status::io_error(path + ": cannot be read as GGUF");
    }
    if (parts != nullptr) {
        *parts = parts_of(path, gguf.get());
    }
    if (!add_head(fp, name, gguf.get(), file.get()) || !add_tensors(fp, gguf.get(), file.get())) {
        return status::io_error(path + ": ends before its tensors do");
    }
    return status::ok();
}

status file_key(const std::string & path, kvtier::key & out) {
    fingerprint_builder fp;
    const status s = add_file(fp, "head", path);
    out = fp.finish();
    return s;
}

static std::string facts_of(const fingerprint_request & request, const fingerprint_builder & fp, const std::string & settings) {
    char model[128] = "";
    llama_model_desc(llama_get_model(request.ctx), model, sizeof(model));
    std::string out = std::string("model=") + model + "\nweights=" + kvtier::hex(fp.finish("tensor/")) +
                      "\nmetadata=" + kvtier::hex(fp.finish("head/")) + "\ntype_k=" + ggml_type_name(request.type_k) +
                      "\ntype_v=" + ggml_type_name(request.type_v) + "\nfile_format=" + std::to_string(kvtier::format::version) +
                      "\nstate_format=" + std::to_string(state_format) + "\n" + settings;
    for (const auto & [name, content] : request.extras) {
        out += name + "=" + content + "\n";
    }
    return out;
}

status model_fingerprint(const fingerprint_request & request, kvtier::key & out, std::string * facts) {
    char settings[1024];
    if (llama_state_settings(request.ctx, settings, sizeof(settings)) >= static_cast<int32_t>(sizeof(settings))) {
        return status::io_error("the context's settings do not fit their buffer");
    }

    fingerprint_builder fp;
    // Versions of the program that write different files do not share a folder.
    fp.add("file_format", static_cast<uint64_t>(kvtier::format::version));
    fp.add("state_format", state_format);
    fp.add("settings", std::string(settings));
    fp.add("type_k", std::string(ggml_type_name(request.type_k)));
    fp.add("type_v", std::string(ggml_type_name(request.type_v)));
    for (const auto & [name, content] : request.extras) {
        fp.add("extra/" + name, content);
    }

    std::vector<std::string> paths = { request.model_path };
    for (size_t i = 0; i < paths.size(); i++) {
        const std::string path = paths[i]; // the first file says which others there are
        if (status s = add_file(fp, "head/" + std::to_string(i), path, i == 0 ? &paths : nullptr); !s.is_ok()) {
            return s;
        }
    }
    out = fp.finish();
    if (facts != nullptr) {
        *facts = facts_of(request, fp, settings);
    }
    return status::ok();
}

} // namespace llama_run

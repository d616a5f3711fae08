#include "server/owner/owner_key.h"

#include "kvtier/file_names.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>

namespace llama_run {

using kvtier::status;

static constexpr const char * key_file = ".owner-key";
static constexpr size_t       n_digits = 64; // hex

static std::string path_in(const std::string & root_dir) {
    return kvtier::names::join(root_dir, key_file);
}

static std::string random_digits() {
    std::random_device source;
    std::string        out;
    while (out.size() < n_digits) {
        out += kvtier::hex(uint64_t(source()) << 32 | source());
    }
    return out;
}

static std::string read_key(kvtier::env & e, const std::string & root_dir) {
    std::unique_ptr<kvtier::readable_file> file;
    if (!e.open_file(path_in(root_dir), file).is_ok() || file->size() != n_digits) {
        return {};
    }
    std::string        text(n_digits, '\0');
    const kvtier::span part = { text.data(), text.size() };
    return file->read(0, &part, 1).is_ok() ? text : std::string();
}

status ensure_owner_key(kvtier::env & e, const std::string & root_dir) {
    if (!read_key(e, root_dir).empty()) {
        return status::ok();
    }
    const std::string        text = random_digits();
    const std::string        made = path_in(root_dir) + "-" + text.substr(0, 16); // Another server may be at it, too.
    const kvtier::const_span part = { text.data(), text.size() };
    std::unique_ptr<kvtier::writable_file> file;
    if (status s = e.create_file(made, file); !s.is_ok()) {
        return s;
    }
    status s = file->append(&part, 1);
    if (s.is_ok()) {
        s = file->close();
    }
    if (s.is_ok()) {
        s = e.rename(made, path_in(root_dir));
    }
    if (!s.is_ok()) {
        (void) e.remove_file(made).is_ok(); // It is of no use, and no harm.
    }
    return s;
}

bool is_owner_key(kvtier::env & e, const std::string & root_dir, const std::string & given) {
    const std::string key = read_key(e, root_dir);
    if (key.empty() || given.size() != key.size()) {
        return false;
    }
    unsigned differs = 0; // How long it takes does not tell where they part.
    for (size_t i = 0; i < key.size(); i++) {
        differs |= static_cast<unsigned>(static_cast<unsigned char>(key[i]) ^ static_cast<unsigned char>(given[i]));
    }
    return differs == 0;
}

} // namespace llama_run

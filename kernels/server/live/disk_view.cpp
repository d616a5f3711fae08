#include "server/live/disk_view.h"

#include "kvtier/file_names.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace llama_run {

static uint64_t tree_size(kvtier::env & e, const std::string & path) {
    uint64_t bytes = 0;
    (void) kvtier::measure_tree(e, path, bytes); // A part that cannot be read is left out.
    return bytes;
}

// Which model each folder belongs to, as the launcher has noted it (pyrun/cache/owners.py). What it does not know has no name.
static std::map<std::string, std::string> model_names(kvtier::env & e, const std::string & root_dir) {
    static constexpr uint64_t max_file = 1 << 20;
    std::map<std::string, std::string>     out;
    std::unique_ptr<kvtier::readable_file> file;
    if (!e.open_file(kvtier::names::join(root_dir, ".models.json"), file).is_ok() || file->size() > max_file) {
        return out;
    }
    std::string        text(static_cast<size_t>(file->size()), '\0');
    const kvtier::span part = { text.data(), text.size() };
    if (!file->read(0, &part, 1).is_ok()) {
        return out;
    }
    try {
        for (const common_json & entry : common_json::parse(text)) {
            const std::string path = entry.at("path").get<std::string>();
            std::string       name = path.substr(path.rfind('/') + 1);
            name = name.substr(0, name.rfind(".gguf"));
            for (const common_json & fingerprint : entry.at("fingerprints")) {
                out[fingerprint.get<std::string>()] = name;
            }
        }
    } catch (const std::exception &) {
        return out; // It is a convenience, and anybody may have written it.
    }
    return out;
}

static uint64_t anchors_size(kvtier::env & e, const kvtier::file_layout & layout) {
    uint64_t bytes = tree_size(e, layout.anchors(kvtier::key()));
    std::vector<kvtier::dir_entry> users;
    (void) e.list_dir(layout.users(), users);
    for (const kvtier::dir_entry & user : users) {
        bytes += tree_size(e, kvtier::names::join(kvtier::names::join(layout.users(), user.name), kvtier::names::anchors));
    }
    return bytes;
}

common_json describe_disk(kvtier::env & e, const std::string & root_dir, const kvtier::store & store) {
    std::vector<kvtier::key> found;
    (void) kvtier::list_models(e, root_dir, found);
    const auto  names  = model_names(e, root_dir);
    common_json models = common_json::array();
    for (const kvtier::key & fingerprint : found) {
        const std::string folder = kvtier::hex(fingerprint);
        const auto        name   = names.find(folder);
        models.push_back({
            { "fingerprint", folder },
            { "name",        name == names.end() ? "" : name->second },
            { "bytes",       tree_size(e, kvtier::names::join(root_dir, folder)) },
            { "served",      fingerprint == store.options().fingerprint },
        });
    }
    const kvtier::file_layout layout(root_dir, store.options().fingerprint);
    const uint64_t all     = tree_size(e, layout.model());
    const uint64_t damaged = tree_size(e, layout.quarantine());
    uint64_t       own     = 0;
    for (const kvtier::conversation_info & c : store.list()) {
        own += c.bytes_own;
    }
    common_json notes = common_json::array();
    for (const kvtier::damage_note & note : store.damaged()) {
        notes.push_back({ { "file", note.path }, { "problem", note.problem.message() } });
    }
    return {
        { "models",        models },
        { "conversations", std::min(own, all) },
        { "shared",        all - std::min(all, own + damaged) },
        { "anchors",       anchors_size(e, layout) },
        { "damaged",       damaged },
        { "damaged_files", notes },
    };
}

} // namespace llama_run

// What is done with whole trees of files, on any env.
#include "kvtier/env.h"

#include "kvtier/file_names.h"

#include <utility>

namespace kvtier {

status env::scan_dir(const std::string & path, const entry_visitor & found) {
    std::vector<dir_entry> entries;
    const status           s = list_dir(path, entries);
    for (dir_entry & entry : entries) {
        found(std::move(entry));
    }
    return s;
}

namespace {

// Keeps the first problem of many; what is gone meanwhile is none.
class first_problem {
public:
    bool met(const status & s) {
        if (first.is_ok() && !s.is_miss()) {
            first = s;
        }
        return !s.is_ok();
    }
    const status & get() const { return first; }

private:
    status first = status::ok();
};

} // namespace

// Folders are taken from a list instead of by recursion: a hostile tree may be deeper than the stack.
status measure_tree(env & e, const std::string & path, uint64_t & bytes) {
    bytes = 0;
    first_problem            problem;
    std::vector<std::string> folders = { path };
    std::vector<dir_entry>   entries;
    while (!folders.empty()) {
        const std::string folder = std::move(folders.back());
        folders.pop_back();
        uint64_t size = 0;
        if (problem.met(e.folder_size(folder, size))) {
            continue;
        }
        bytes += size;
        problem.met(e.list_dir(folder, entries));
        for (const dir_entry & entry : entries) {
            if (entry.type == file_type::folder) {
                folders.push_back(names::join(folder, entry.name));
            } else {
                bytes += disk_size(entry.size);
            }
        }
    }
    return problem.get();
}

status remove_tree(env & e, const std::string & path, uint64_t * bytes) {
    first_problem            problem;
    std::vector<std::string> folders = { path };
    std::vector<uint64_t>    sizes; // of the folders
    std::vector<dir_entry>   entries;
    uint64_t                 freed = 0;
    for (size_t i = 0; i < folders.size(); i++) {
        const std::string folder = folders[i];
        const status      looked = e.folder_size(folder, sizes.emplace_back(0));
        if (i == 0 && looked.is_miss()) {
            return looked;
        }
        problem.met(looked);
        problem.met(e.list_dir(folder, entries));
        for (const dir_entry & entry : entries) {
            const std::string child = names::join(folder, entry.name);
            if (entry.type == file_type::folder) {
                folders.push_back(child);
            } else if (!problem.met(e.remove_file(child))) {
                freed += disk_size(entry.size);
            }
        }
    }
    for (size_t i = folders.size(); i-- > 0;) {
        if (!problem.met(e.remove_dir(folders[i]))) {
            freed += sizes[i];
        }
    }
    if (bytes != nullptr) {
        *bytes += freed;
    }
    return problem.get();
}

} // namespace kvtier

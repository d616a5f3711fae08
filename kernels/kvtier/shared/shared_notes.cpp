#include "kvtier/shared/shared_notes.h"

#include "kvtier/file_names.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

namespace kvtier {

static constexpr char     first_line[] = "llama-run shared folder notes 1";
static constexpr uint64_t max_size     = uint64_t(64) << 20;

shared_notes::shared_notes(env & e, std::string file) : e(e), path(std::move(file)) {
    std::unique_ptr<readable_file> there;
    if (!e.open_file(path, there).is_ok() || there->size() > max_size) {
        return;
    }
    std::string text(static_cast<size_t>(there->size()), '\0');
    const span  whole = { text.data(), text.size() };
    if (!text.empty() && there->read(0, &whole, 1).is_ok()) {
        read(text);
    }
}

void shared_notes::read(const std::string & text) {
    mutex_lock         guard(mu);
    std::istringstream lines(text);
    std::string        line;
    if (!std::getline(lines, line) || line != first_line) {
        return;
    }
    while (std::getline(lines, line)) {
        std::istringstream words(line);
        std::string        word;
        words >> word;
        if (word == "folder" && line.size() > word.size() + 1) {
            folder = line.substr(word.size() + 1);
        } else if (entry found{ {}, true }; word == "remove" && words >> word && parse_hex(word, found.what.name_space)) {
            while (words >> word) {
                key k;
                found.what.everything = found.what.everything || word == "all";
                if (parse_hex(word, k)) {
                    found.what.runs.insert(k);
                }
            }
            found.what.id = next_id++;
            removals.emplace(found.what.id, std::move(found));
        }
    }
}

void shared_notes::write() {
    std::string text = std::string(first_line) + "\n" + (folder.empty() ? "" : "folder " + folder + "\n");
    for (const auto & [id, one] : removals) {
        text += "remove " + hex(one.what.name_space) + (one.what.everything ? " all" : "");
        for (const key & k : one.what.runs) {
            text += " " + hex(k);
        }
        text += "\n";
    }
    const std::string              next = path + ".tmp";
    const const_span               part = { text.data(), text.size() };
    std::unique_ptr<writable_file> file;
    (void) e.remove_file(next).is_ok(); // A process that was killed may have left it.
    if (e.create_file(next, file).is_ok() && file->append(&part, 1).is_ok() && file->sync().is_ok() && file->close().is_ok()) {
        // Without its name a power cut would take what the folder still owes. If this fails, it holds until then.
        if (e.rename(next, path).is_ok()) {
            (void) e.sync_dir(names::parent(path)).is_ok();
        }
    }
}

void shared_notes::begin(shared_removal & removal) {
    mutex_lock guard(mu);
    removal.id           = next_id++;
    removals[removal.id] = { removal, false };
    write();
}

void shared_notes::is_due(uint64_t id) {
    mutex_lock guard(mu);
    if (const auto found = removals.find(id); found != removals.end()) {
        found->second.is_due = true;
    }
}

void shared_notes::is_done(uint64_t id) {
    mutex_lock guard(mu);
    if (removals.erase(id) != 0) {
        write();
    }
}

std::vector<shared_removal> shared_notes::due() const {
    std::vector<shared_removal> out;
    mutex_lock                  guard(mu);
    for (const auto & [id, one] : removals) {
        if (one.is_due) {
            out.push_back(one.what);
        }
    }
    return out;
}

bool shared_notes::concerns(const key & name_space, const key & run) const {
    mutex_lock guard(mu);
    return std::any_of(removals.begin(), removals.end(), [&](const auto & one) {
        const shared_removal & what = one.second.what;
        return what.name_space == name_space && (what.everything || what.runs.count(run) != 0);
    });
}

bool shared_notes::has_used(const std::string & dir) const {
    mutex_lock guard(mu);
    return folder == dir;
}

void shared_notes::uses(const std::string & dir) {
    mutex_lock guard(mu);
    if (folder != dir) {
        folder = dir;
        write();
    }
}

} // namespace kvtier

#include "kvtier/shared/unfinished_watch.h"

#include <utility>

namespace kvtier {

std::vector<std::string> unfinished_watch::look(const std::vector<unfinished_file> & found, clock::time_point now) {
    std::vector<std::string>     nobodys;
    std::map<std::string, sight> next;
    for (const unfinished_file & file : found) {
        const auto before = seen.find(file.name);
        const bool is_alike = before != seen.end() && before->second.file.bytes == file.bytes &&
                              before->second.file.modified_ms == file.modified_ms;
        const clock::time_point since = is_alike ? before->second.since : now;
        if (now - since >= longest) {
            nobodys.push_back(file.name);
        }
        next[file.name] = { file, since };
    }
    seen = std::move(next);
    return nobodys;
}

} // namespace kvtier

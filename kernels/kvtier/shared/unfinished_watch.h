// Which files in incoming/ nobody writes any more: a writer that crashed left them.
//
// A file that is being written grows, or is modified, and gets its name in the end. Whoever has seen one unchanged for long
// enough, by a clock of his own that only counts, removes it. What the folder says of its time is compared with what it said before
// and with nothing else, so neither a wrong clock here nor one there makes a file look old. One whose writer was stopped for longer
// is missed by him when he goes on: he writes it again.
//
// Pure. Thread safety: none.
#pragma once

#include "kvtier/shared/shared_folder.h"

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace kvtier {

class unfinished_watch {
public:
    using clock = std::chrono::steady_clock;

    explicit unfinished_watch(clock::duration longest) : longest(longest) {}

    // `found`: all that are there now. Gives the names of those that are nobody's.
    std::vector<std::string> look(const std::vector<unfinished_file> & found, clock::time_point now);

private:
    struct sight {
        unfinished_file   file;
        clock::time_point since; // it has looked like this
    };

    const clock::duration        longest;
    std::map<std::string, sight> seen; // by name
};

} // namespace kvtier

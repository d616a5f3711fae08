// Runs every entry of the corpus through its parser, with any compiler: what fuzzing once found stays found.
//
//   fuzz_replay CORPUS_FOLDER
#include "fuzz/targets.h"

#include "kvtier/env.h"

#include <cstdio>
#include <string>
#include <vector>

using namespace kvtier;

int main(int argc, char ** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: fuzz_replay CORPUS_FOLDER\n");
        return 2;
    }
    size_t n = 0;
    for (const fuzz_target & target : fuzz_targets()) {
        const std::string      folder = std::string(argv[1]) + "/" + target.name;
        std::vector<dir_entry> entries;
        if (status s = posix_env().list_dir(folder, entries); !s.is_ok()) {
            std::fprintf(stderr, "%s\n", s.message().c_str());
            return 1;
        }
        for (const dir_entry & entry : entries) {
            std::unique_ptr<readable_file> file;
            if (status s = posix_env().open_file(folder + "/" + entry.name, file); !s.is_ok()) {
                std::fprintf(stderr, "%s\n", s.message().c_str());
                return 1;
            }
            std::vector<uint8_t> bytes(static_cast<size_t>(file->size()));
            const span           whole = { bytes.data(), bytes.size() };
            if (!file->read(0, &whole, 1).is_ok()) {
                return 1;
            }
            target.run(bytes.data(), bytes.size());
            // And beginnings of it, which a corpus that was minimised no longer has.
            for (size_t cut = 0; cut < bytes.size(); cut += 1 + bytes.size() / 64) {
                target.run(bytes.data(), cut);
            }
            n++;
        }
    }
    std::printf("%zu entries replayed\n", n);
    return n > 0 ? 0 : 1;
}

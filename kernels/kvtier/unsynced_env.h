// The real files without fsync, for tests and benchmarks that are about something else and would mostly wait for it.
#pragma once

#include "kvtier/env.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvtier {

class unsynced_env : public env {
public:
    status open_file(const std::string & path, std::unique_ptr<readable_file> & out) override { return e.open_file(path, out); }
    status create_file(const std::string & path, std::unique_ptr<writable_file> & out) override {
        std::unique_ptr<writable_file> file;
        const status s = e.create_file(path, file);
        out = std::make_unique<unsynced_file>(std::move(file));
        return s;
    }
    status make_dir(const std::string & path) override { return e.make_dir(path); }
    status list_dir(const std::string & path, std::vector<dir_entry> & out) override { return e.list_dir(path, out); }
    status folder_size(const std::string & path, uint64_t & out) override { return e.folder_size(path, out); }
    status sync_dir(const std::string &) override { return status::ok(); }
    status rename(const std::string & from, const std::string & to) override { return e.rename(from, to); }
    status remove_file(const std::string & path) override { return e.remove_file(path); }
    status remove_dir(const std::string & path) override { return e.remove_dir(path); }
    status touch(const std::string & path) override { return e.touch(path); }
    status lock_file(const std::string & path, std::unique_ptr<file_lock> & out) override { return e.lock_file(path, out); }
    status free_space(const std::string & path, uint64_t & out) override { return e.free_space(path, out); }
    int64_t now_ms() override { return e.now_ms(); }

private:
    struct unsynced_file : writable_file {
        explicit unsynced_file(std::unique_ptr<writable_file> f) : file(std::move(f)) {}
        status append(const const_span * parts, size_t n_parts) override { return file->append(parts, n_parts); }
        status sync() override { return status::ok(); }
        status close() override { return file->close(); }
        status modified_ms(int64_t & out) const override { return file->modified_ms(out); }
        std::unique_ptr<writable_file> file;
    };

    env & e = posix_env();
};

} // namespace kvtier

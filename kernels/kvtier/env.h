// Everything the store asks of the operating system: files, folders, one lock, free space and the time.
//
// The store calls nothing else, so that a test can stand in for the disk: see fault_env.h. Paths are plain strings made
// by file_names.h. Links are never followed below the root and special files are never opened.
//
// Thread safety: an env and a readable_file may be used by several threads at once; a writable_file by one at a time.
#pragma once

#include "kvtier/blocks.h"
#include "kvtier/status.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvtier {

struct span {
    void * data;
    size_t size;
};

struct const_span {
    const void * data;
    size_t       size;
};

enum class file_type : uint8_t { file, folder, other };

struct dir_entry {
    std::string name;
    file_type   type;
    uint64_t    size; // that a file takes on disk: of one with holes less than its length; 0 for the rest
    int64_t     modified_ms;
};

class readable_file {
public:
    virtual ~readable_file() = default;

    virtual uint64_t size() const = 0;

    // Fills all parts, one after the other, from offset on. It is corrupt (truncated) when the file ends before that.
    virtual status read(uint64_t offset, const span * parts, size_t n_parts) const = 0;

    // Tells the kernel that these bytes are wanted soon, which is only a hint.
    virtual void will_need(uint64_t offset, uint64_t size) const = 0;

    // Says whether most of these bytes are in the page cache, or nothing is known about that.
    virtual bool is_cached(uint64_t offset, uint64_t size) const = 0;

    // These bytes are about to be read with read_blocks: out of the page cache if they are there, else around it, which is
    // faster for large reads and leaves the cache to others. From here on the file belongs to one thread.
    virtual void begin_blocks(uint64_t offset, uint64_t size, bool cached) = 0;

    // Reads in whole blocks: offset, address and size are multiples of block_size. Only the file's end may come earlier.
    virtual status read_blocks(uint64_t offset, const span & part) = 0;
};

class writable_file {
public:
    virtual ~writable_file() = default; // closes; what was not synced may be lost

    virtual status append(const const_span * parts, size_t n_parts) = 0;
    virtual status sync() = 0;
    virtual status close() = 0;

    // When it was last written, by the clock of whoever keeps the file. Not after close().
    virtual status modified_ms(int64_t & out) const = 0;
};

// The lock is held while the object lives.
class file_lock {
public:
    virtual ~file_lock() = default;
};

class env {
public:
    virtual ~env() = default;

    // It is a miss when there is nothing, and corrupt (wrong_type) when it is not a plain file.
    virtual status open_file(const std::string & path, std::unique_ptr<readable_file> & out) = 0;

    // Makes a new file, 0600. It is an io_error when the name is taken.
    virtual status create_file(const std::string & path, std::unique_ptr<writable_file> & out) = 0;

    // Folders are made 0700. It is ok when one is there already.
    virtual status make_dir(const std::string & path) = 0;
    virtual status list_dir(const std::string & path, std::vector<dir_entry> & out) = 0;

    // The same, one by one: who waits for a large folder sees that it goes on.
    using entry_visitor = std::function<void(dir_entry && entry)>;
    virtual status scan_dir(const std::string & path, const entry_visitor & found);

    // Gives the disk space of the folder itself, without what is in it: at least a block. Few file systems give any of it
    // back when names go. It is a miss when there is none.
    virtual status folder_size(const std::string & path, uint64_t & out) = 0;
    virtual status sync_dir(const std::string & path) = 0;

    virtual status rename(const std::string & from, const std::string & to) = 0;
    virtual status remove_file(const std::string & path) = 0; // a link is removed, not what it points to
    virtual status remove_dir(const std::string & path) = 0;  // empty ones only

    // It is busy, with the holder's process, when another store has it.
    virtual status lock_file(const std::string & path, std::unique_ptr<file_lock> & out) = 0;

    virtual status free_space(const std::string & path, uint64_t & out) = 0;

    virtual int64_t now_ms() = 0; // wall clock, since 1970

    // The file counts as modified now.
    virtual status touch(const std::string & path) = 0;
};

// This is the real one, which is never destroyed.
env & posix_env();

// Says whether an open file still lies there under its name.
bool is_file_at(const std::string & path, int fd);

// Gives the disk space that a tree of files takes, with folders, counted as the store counts it (see blocks.h).
// Links are counted, never followed. A folder that cannot be read is passed over; the first such problem is returned.
status measure_tree(env & e, const std::string & path, uint64_t & bytes);

// Removes a tree; links in it are removed, never followed. What cannot be removed stays, the rest goes, and the first
// problem is returned. bytes, if given, grows by what was freed.
status remove_tree(env & e, const std::string & path, uint64_t * bytes);

} // namespace kvtier

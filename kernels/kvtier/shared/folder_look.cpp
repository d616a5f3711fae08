#include "kvtier/shared/folder_look.h"

#include "kvtier/object_graph.h"
#include "kvtier/read_task.h"
#include "kvtier/shared/eviction_lease.h"

#include <utility>

namespace kvtier {

static status read_head_of(shared_folder & folder, shared_index::news & out) {
    if (out.file.name.is_anchor) {
        anchor_head  head;
        const status s = folder.read_anchor(out.file, head);
        out.of_anchor  = s.is_ok() ? make_anchor(head) : nullptr;
        return s;
    }
    segment_head head;
    const status s = folder.read_segment(out.file, head);
    out.of_segment = s.is_ok() ? make_segment(std::move(head)) : nullptr;
    return s;
}

// A file of another format stays where it is: it belongs to another program.
static status read_heads(shared_folder & folder, const std::vector<shared_file> & files, const std::atomic<bool> & abandoned,
                         std::vector<shared_index::news> & out, folder_look & look) {
    for (const shared_file & file : files) {
        if (abandoned) {
            return given_up();
        }
        shared_index::news one;
        one.file       = file;
        const status s = read_head_of(folder, one);
        if (s.is_exhausted()) {
            return s; // That is this process's trouble, and no file's.
        }
        if (s.is_io_error()) {
            look.problem = look.n_unreadable() == 0 ? s.message() : look.problem;
            look.n_unreadable_files++;
            continue;
        }
        look.n_damaged += s.is_corrupt();
        const bool is_gone = s.is_miss() || (s.is_corrupt() && folder.remove(file.name).is_ok());
        if (!is_gone) { // What is damaged and cannot be removed is not used all the same.
            out.push_back(std::move(one));
        }
    }
    return status::ok();
}

status look_into(shared_folder & folder, shared_index & index, bool was_used, const std::atomic<bool> & abandoned,
                 folder_look & out) {
    shared_listing                  listing;
    std::vector<shared_index::news> news;
    if (status s = folder.prepare(was_used, out.is_marked); !s.is_ok()) {
        return s;
    }
    if (status s = folder.list(listing); !s.is_ok()) {
        return s;
    }
    out.unreadable_folders = listing.unreadable;
    out.problem            = listing.problem;
    const status read = read_heads(folder, index.unknown(listing), abandoned, news, out);
    out.unfinished = listing.unfinished;
    index.update(listing, std::move(news), shared_index::clock::now());
    if (!read.is_ok()) {
        return read;
    }
    if (status s = folder.read_text(eviction_lease::file_name, out.lease); !s.is_ok() && !s.is_miss()) {
        return s;
    }
    return folder.free_space(out.free_bytes);
}

} // namespace kvtier

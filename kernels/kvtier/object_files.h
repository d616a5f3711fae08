// The files of one model: the room of the disk.
//
// A file is written under a temporary name, synced and renamed, so that it is there whole or not at all. What is removed goes
// in the order in which it is given. Whatever happens to a file, the ledger is told of it here. While the store is only
// inspected, every change is refused, in `change`.
//
// Thread safety: `writing` is held for the whole of a save, a removal or a gc, so that one thread at a time changes files.
// Readers never wait for it: what they find damaged they note and defer, which may be done at any time. Stores that share a
// budget evict for each other; one that is asked tries its `writing` and never waits for it, since the other holds its own.
#pragma once

#include "kvtier/counters.h"
#include "kvtier/env.h"
#include "kvtier/ledger.h"
#include "kvtier/object_graph.h"
#include "kvtier/store.h"
#include "kvtier/thread_annotations.h"

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace kvtier {

class object_files {
public:
    // All of them must outlive it.
    object_files(env & e, const file_layout & layout, ledger & bytes, counters & count, bool inspect);

    mutable mutex writing;

    // Whether files may be changed: an error while the store is only inspected.
    status may_change() const;

    // Makes the folder of the model where there is none, and takes its lock.
    status take_folder(std::unique_ptr<file_lock> & lock);

    // room: a block for the folder and folder_growth for the one that it is in.
    status make_folder(const std::string & parent, const std::string & name, reservation room) REQUIRES(writing);

    // Atomic. room: what the file takes, and folder_growth. durable: the file itself is synced; its name has to be, apart.
    status write(const std::string & folder, const std::string & name, const std::vector<const_span> & parts, bool durable,
                 reservation room) REQUIRES(writing);

    // Syncs the names in a folder. Where that fails, it is owed.
    status sync(const std::string & folder) REQUIRES(writing);
    status sync_all(const std::set<std::string> & folders) REQUIRES(writing); // those that are gone need none
    // What a removal has changed: others' folders are synced as well, but whoever removed is not told what became of them.
    status sync_own(const std::set<std::string> & folders, const key * name_space) REQUIRES(writing);
    void   owe_sync(const std::string & folder) REQUIRES(writing);
    status sync_owed(const std::vector<std::string> & folders) REQUIRES(writing);

    // What cannot be removed stays counted.
    void remove_file(const std::string & path) REQUIRES(writing);
    void remove_folder(const std::string & path) REQUIRES(writing); // if it is empty

    // Gives the bytes freed. What the disk refuses to remove is tried again by the next writer. changed, if given, gets the
    // folders that lost a name.
    uint64_t remove(const doomed_files & files, std::set<std::string> * changed = nullptr) REQUIRES(writing);
    status   remove_tree(const std::string & path, uint64_t & bytes_freed) REQUIRES(writing);

    // Why a file is still there that was to be removed, or set aside: the first that the disk has refused, of a name space or
    // (null) of all. A restart would find it again.
    status refused(const key * name_space) const;

    // Moves a damaged file, which is counted, to quarantine. Where that cannot be, it is removed.
    status set_aside(const std::string & folder, const std::string & name) REQUIRES(writing);
    status empty_quarantine(uint64_t & bytes_freed) REQUIRES(writing); // bytes_freed grows
    void   count_quarantine() REQUIRES(writing);                       // what lies there; links are not followed

    // Counts a file that was found, which takes so many bytes.
    void found(const std::string & path, uint64_t n_bytes) { bytes.count(path, n_bytes); }

    // Counts a folder for what it takes now. One that cannot be looked at stays counted as it was.
    void count_folder(const std::string & path);

    // A folder that could not be read at opening holds what nobody knows, and a name that is given again would replace it.
    // So it is counted for itself, and nothing is added to it until the next opening.
    void   leave_alone(const std::string & folder) REQUIRES(writing);
    status may_add_to(const std::string & folder) const REQUIRES(writing);

    // For readers, by any thread.
    void                     note(const std::string & path, const status & why);
    std::vector<damage_note> notes() const;
    void                     defer(const doomed_files & files);

    uint64_t finish_deferred(std::set<std::string> * changed = nullptr) REQUIRES(writing); // as remove

private:
    // Every change of the disk goes through here.
    template <typename Function>
    status change(const Function & function) const {
        const status allowed = may_change();
        return allowed.is_ok() ? function() : allowed;
    }

    void forget_deferred(const std::string & path);
    bool is_gone(const std::string & path) const;

    env &               e;
    const file_layout & layout;
    ledger &            bytes;
    counters &          count;
    const bool          inspect;

    uint64_t              next_temp GUARDED_BY(writing)       = 1;
    uint64_t              next_quarantine GUARDED_BY(writing) = 1;
    std::set<std::string> unsynced GUARDED_BY(writing); // folders with names that a power cut may take
    std::set<std::string> unread GUARDED_BY(writing);   // folders that are left alone

    mutable mutex            mu;
    doomed_files             deferred GUARDED_BY(mu); // left to the next writer
    std::vector<damage_note> damaged GUARDED_BY(mu);
};

} // namespace kvtier

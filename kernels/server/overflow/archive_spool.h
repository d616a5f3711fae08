// Messages that histories drop, on their way to the memory. docs/formats.md has the files, pyrun/memory takes them in.
//
// A client sends its history anew with every request, so what was dropped comes again each time. How far each conversation was
// left is remembered here, as long as there is room for that; after a restart it is left once more, and the reader knows it.
//
// Thread safety: leave and describe may be called from any thread. Nobody waits for a disk but the spool's own thread.
#pragma once

#include "kvtier/env.h"
#include "kvtier/keys.h"
#include "kvtier/thread_annotations.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace llama_run {

class archive_spool {
public:
    struct message {
        uint64_t    seq;  // its place in the history
        std::string json; // without line feeds
    };

    struct counts {
        uint64_t n_left    = 0; // messages, on disk
        uint64_t n_refused = 0; // messages that there was no room for, or that could not be written: but for those that
                                // are larger than a file may be, they are tried again
    };

    static constexpr uint64_t format_max_file_bytes = uint64_t(64) << 20;

    // complain: is told what went wrong, by whichever thread, and must not come back here. max_file_bytes: no more than that
    // waits to be written, either.
    archive_spool(kvtier::env & files, std::string folder, std::function<void(const std::string &)> complain,
                  uint64_t max_file_bytes = format_max_file_bytes);
    ~archive_spool(); // What was taken is written first.

    // dropped: all that this conversation has dropped so far, in order. What of it was left before is left out.
    void leave(const std::string & user, uint64_t conversation, std::vector<message> && dropped);

    counts count() const;

private:
    struct batch {
        kvtier::key          user;
        uint64_t             conversation;
        std::vector<message> messages;
        size_t               n_bytes = 0;
    };

    // How far a conversation was left, and what it said up to there: a client may have rewritten it.
    struct progress {
        size_t      n_messages = 0;
        kvtier::key digest{};

        bool operator==(const progress & other) const { return n_messages == other.n_messages && digest == other.digest; }
    };

    using conversation_key = std::pair<kvtier::key, uint64_t>;
    using histories        = std::vector<progress>; // the latest first

    void           run();
    kvtier::status write(const batch & b, size_t & n_written);
    kvtier::status write_file(const batch & b, size_t begin, size_t end);

    kvtier::env &                                  files;
    const std::string                              folder;
    const std::function<void(const std::string &)> complain;
    const uint64_t                                 max_file_bytes;

    mutable kvtier::mutex                 mu;
    kvtier::condition                     changed;
    std::map<conversation_key, histories> known GUARDED_BY(mu);
    std::deque<batch>                     queue GUARDED_BY(mu);
    size_t                                n_queued_bytes GUARDED_BY(mu) = 0;
    counts                                so_far GUARDED_BY(mu);
    bool                                  stopping GUARDED_BY(mu) = false;
    std::thread                           thread; // last: it uses the rest
};

} // namespace llama_run

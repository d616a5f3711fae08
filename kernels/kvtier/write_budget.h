// How much is written to the disk: today, this week, since the beginning, and how much may be in a day.
//
// A limit on size does not bound writes: state that is evicted and written again wears an SSD for as long as it is served.
// Beyond the day's budget a page is written only if it was asked for twice, that is, if it was refused before, and at most one
// of them in a minute. Days are those of UTC.
//
// The counts are kept in a small file in the cache's folder, which is written once a minute at most and at the end: what a crash
// can lose is a minute's. Servers of several models share the folder, its disk and this file: each adds what it has written to
// what the file says by then, and so learns what the others have. Two that do so in the same instant may lose a minute's, too.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include "kvtier/env.h"
#include "kvtier/keys.h"
#include "kvtier/thread_annotations.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace kvtier {

struct write_totals {
    uint64_t today         = 0; // bytes
    uint64_t week          = 0; // of the last seven days, today included
    uint64_t ever          = 0;
    int64_t  since_ms      = 0; // when counting began
    uint64_t budget        = 0; // for a day; 0: none
    uint64_t skipped       = 0; // pages that were not written because of it, since the start
    uint64_t skipped_bytes = 0;
    uint64_t beyond        = 0; // pages that were written beyond it
};

class write_budget {
public:
    // folder: the cache's, which must be there. per_day: bytes; 0: no limit.
    write_budget(env & e, const std::string & folder, uint64_t per_day);
    ~write_budget();

    bool is_limited() const { return per_day > 0; }

    // Whether a page may be written, with so many bytes of the same save before it. A refusal is counted.
    bool admits(const key & page, uint64_t n_bytes, uint64_t n_before);

    // So many bytes were written.
    void written(uint64_t n_bytes);

    write_totals totals() const;

    static constexpr const char * file_name = ".written";

private:
    static constexpr size_t max_refused = 65536;

    using by_day = std::map<int64_t, uint64_t>; // bytes, by day since 1970

    struct record {
        by_day   days; // the last seven
        uint64_t ever     = 0;
        int64_t  since_ms = 0;
    };

    int64_t today() const;
    bool    read(record & out) const; // false: there is none that can be read
    void    store() REQUIRES(mu);

    env &             e;
    const std::string path;
    const uint64_t    per_day;

    mutable mutex               mu;
    record                      known GUARDED_BY(mu); // with what was written here since the file was
    by_day                      unstored GUARDED_BY(mu); // what the file does not know
    int64_t                     stored_ms GUARDED_BY(mu)   = 0; // when the file was written
    int64_t                     beyond_ms GUARDED_BY(mu)   = 0; // when a page was written beyond the budget
    uint64_t                    skipped GUARDED_BY(mu)     = 0;
    uint64_t                    skipped_bytes GUARDED_BY(mu) = 0;
    uint64_t                    n_beyond GUARDED_BY(mu)    = 0;
    std::set<key>               refused GUARDED_BY(mu);
};

} // namespace kvtier

// A restore's bytes on their way into RAM: what has come can be used while the rest is being read.
//
// Runs come about in order, each verified. Thread safety: one owner makes and destroys it; in between, all functions may be
// called from any thread.
#pragma once

#include "kvtier/search.h"
#include "kvtier/status.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvtier {

struct loading_work;
struct store_rooms;

class loading {
public:
    explicit loading(std::unique_ptr<loading_work> work);
    explicit loading(loaded_state state); // nothing is left to read; runs without data could not be

    // What nobody has waited for is not read.
    ~loading();

    size_t n_tokens() const;
    size_t n_runs() const;

    // Waits for `bytes` of the runs from `first` on, or for all of them. It gives the end of those that are there, which, unless no
    // bytes were asked for, is `first` itself only when reading failed.
    size_t wait_for_runs(size_t first, uint64_t bytes);

    // It must have been waited for.
    const loaded_run & run(size_t i) const;

    // It gives null when there is none, or when reading failed.
    blob wait_for_anchor();

    // Waits until what is left will have come in `seconds`, as far as can be told. It is not ok when reading failed.
    status wait_until_left(double seconds);

    // False: it has not ended within this time.
    bool wait_at_most(std::chrono::milliseconds time);

    // Waits for the end. Anything but ok means that some of it could not be read or is damaged, and has left the catalog.
    status wait();

    double         seconds_read() const;   // from beginning to end, after wait
    double         seconds_waited() const; // in wait_for_runs and wait_for_anchor
    loaded_state & state();                // after wait

private:
    std::unique_ptr<loading_work> work;
};

// Who will use what is read.
enum class reading_for : uint8_t { request, nobody_yet };

// Both must outlive it.
status begin_loading(store_rooms & rooms, const match & m, reading_for whom, std::unique_ptr<loading> & out);

} // namespace kvtier

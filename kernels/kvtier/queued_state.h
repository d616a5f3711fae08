// State that waits to be written, for prompts that come sooner than the disk is done with it.
//
// A save that is queued has its bytes in memory, or on their way there; its runs go on from those of other saves and from stored ones. A
// prompt gets the runs of the save that it has most in common with, and before them all that these go on from.
//
// Thread safety: a save does not change once it is queued. What is written meanwhile may be found in both places, under the same keys.
#pragma once

#include "kvtier/search.h"
#include "kvtier/store.h"

#include <memory>
#include <vector>

namespace kvtier {

using queued_saves = std::vector<std::shared_ptr<const save_request>>;

// What the store would find if these were on disk. They were queued before the call.
match find_with_queued(const lookup_request & request, const queued_saves & queue, store & stored);

} // namespace kvtier

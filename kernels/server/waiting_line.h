// The order among requests that were put off: that of their arrival, which their ids tell.
#pragma once

#include <algorithm>
#include <iterator>

namespace llama_run {

// Where a task belongs that is put off, maybe not for the first time.
template <typename Tasks>
typename Tasks::iterator place_in_line(Tasks & line, int id_task) {
    return std::find_if(line.begin(), line.end(), [id_task](const auto & other) { return other.id > id_task; });
}

// Moves those who came after that task, in their order, to the front of the tasks that are processed next.
template <typename Tasks>
void offer_line(Tasks & line, Tasks & next, int after_id) {
    const auto first = place_in_line(line, after_id);
    next.insert(next.begin(), std::make_move_iterator(first), std::make_move_iterator(line.end()));
    line.erase(first, line.end());
}

} // namespace llama_run

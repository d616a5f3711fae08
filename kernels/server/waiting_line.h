// The order among requests that were put off: that of their arrival, which their ids tell.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>

namespace llama_run {

// Moves those who came after that task, in their order, to the front of the tasks that are processed next; all by default.
template <typename Tasks>
void offer_line(Tasks & line, Tasks & next, int after_id = -1) {
    const auto first = std::find_if(line.begin(), line.end(), [&](const auto & other) { return other.id > after_id; });
    next.insert(next.begin(), std::make_move_iterator(first), std::make_move_iterator(line.end()));
    line.erase(first, line.end());
}

// For a task that cannot run now, maybe not for the first time. It keeps its place; whoever came later may have what it waits for
// already, so they are tried. That ends: each of them offers only those behind it.
template <typename Tasks>
void put_off(Tasks & line, Tasks & next, typename Tasks::value_type && task) {
    const int id = task.id;
    offer_line(line, next, id);
    line.push_back(std::move(task));
}

} // namespace llama_run

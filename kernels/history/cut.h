// What of a conversation's history is sent to the model, when all of it no longer fits.
//
// The history is walked from its start, message by message, as it once grew. When what is kept passes the high mark, the
// oldest whole exchanges are dropped, so that about the low mark is left. An exchange is a user's message with all that
// follows it up to the next one.
//
// Where the next cut will fall is settled a little earlier, when a tenth is missing to the high mark: a server has the
// time from then on to evaluate what will stay, before anybody waits for it.
//
// The walk looks only backwards. So the same history gives the same cut, a longer one never brings back what was dropped,
// and between two cuts what is kept only grows at its end: the prefix that a cache knows stays the same. All this holds as
// long as limits and token counts stay the same from call to call: room for the answer, say, must not follow the request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace history {

enum class role : uint8_t { system, user, assistant, tool };

struct message {
    history::role            role     = history::role::user;
    uint32_t                 n_tokens = 0; // as the template renders it
    std::vector<std::string> calls;        // ids of the tool calls that it makes
    std::vector<std::string> results;      // ids of the calls whose results it brings
};

struct limits {
    uint64_t n_tokens      = 0;  // that the messages may have: the context less the answer, the tools and the like
    uint32_t n_note_tokens = 0;  // of the note that stands where messages were left out
    uint32_t high_percent  = 85;
    uint32_t low_percent   = 45;
};

// Messages [begin, end).
struct range {
    size_t begin = 0;
    size_t end   = 0;
};

struct cut {
    std::vector<range> kept;  // ascending, with a gap between any two
    std::vector<range> ahead; // those of them that stay at the next cut; empty as long as it is far
    uint64_t n_tokens         = 0; // of what is kept, the note included
    uint64_t n_over           = 0; // tokens by which that does not fit
    uint64_t n_tokens_dropped = 0;
    size_t   n_dropped        = 0; // messages
    size_t   n_cuts           = 0; // since the conversation began
};

// Never dropped: system messages, the last user message and what follows it. Never parted: a call and its result, as long
// as the result comes before the second user message behind the call; a call without a result is given up then. Requires
// low_percent <= high_percent <= 100.
cut cut_history(const std::vector<message> & messages, const limits & l);

} // namespace history

// How many tokens a message takes in a prompt, counted by itself: a message has the same count whatever stands around it, so that
// the same history is always cut at the same place. It is an estimate: the text is tokenised, what the template puts around it is
// measured once and taken as constant, and so is what a picture takes.
//
// Thread-safe, of bounded memory.
#pragma once

#include "kvtier/thread_annotations.h"

#include "json.h"
#include "llama.h"

#include <cstdint>
#include <string>
#include <unordered_map>

struct common_chat_templates;

namespace llama_run {

class message_counter {
public:
    // The vocabulary and the templates must outlive this.
    message_counter(const llama_vocab * vocab, const common_chat_templates * templates, bool use_jinja);

    // dumped: the message as text, by which it is known again.
    uint32_t count(const common_json & message, const std::string & dumped);

    // Of any text, such as the tools of a request; it is remembered, too.
    uint32_t count(const std::string & text);

    uint32_t around() const { return n_around; } // tokens of a template around each message

private:
    uint32_t tokens_of(const std::string & text) const;
    uint32_t count_anew(const common_json & message) const;
    template <typename Count>
    uint32_t remembered(const std::string & name, const Count & count_it);

    const llama_vocab * const vocab;
    uint32_t                  n_around       = 8; // where the template cannot be asked
    bool                      keeps_thoughts = true;

    kvtier::mutex                             mu;
    std::unordered_map<std::string, uint32_t> known GUARDED_BY(mu); // by hash
};

} // namespace llama_run

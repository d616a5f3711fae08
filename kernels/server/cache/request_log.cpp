#include "server/cache/request_log.h"

#include "kvtier/file_names.h"

#include <algorithm>
#include <regex>
#include <utility>

namespace llama_run {

std::string advice_for(const std::string & words, bool early) {
    struct rule {
        std::regex   shape;
        const char * advice;
    };
    static const auto flags = std::regex::ECMAScript | std::regex::icase | std::regex::optimize;
    static const std::vector<rule> rules = {
        { std::regex("x-anthropic-billing|cc_version|cc_entrypoint", flags),
          "Claude Code's billing header: set CLAUDE_CODE_ATTRIBUTION_HEADER=0, or leave --no-stable-prompts out" },
        { std::regex("\"name\"|\"type\" ?: ?\"function\"|\"parameters\"|\"input_schema\"", flags),
          "the list of tools: --stable-tools sorts it, if only its order changes; else a tool server came or went" },
        { std::regex("20[0-9][0-9]-[01]?[0-9]|(mon|tues|wednes|thurs|fri|satur|sun)day|[0-2]?[0-9]:[0-5][0-9]|"
                     "\\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]* [0-9]", flags),
          "a date or time: an agent that can put it at the end of its prompt, or leave it out, should" },
        { std::regex("git ?status|branch|modified:|\\?\\? ", flags),
          "the state of a git repository: agents that can leave it out of the system prompt have a setting for it" },
        { std::regex("[0-9a-f]{8}-[0-9a-f]{4}|[0-9a-f]{12,}", flags),
          "a number that is made anew for each conversation: look for a session or request id in the agent's settings" },
        { std::regex("/(home|Users|tmp|root)/|working directory|cwd", flags),
          "the folder: conversations in other folders begin differently" },
    };
    if (!early) {
        return "";
    }
    const auto known = std::find_if(rules.begin(), rules.end(), [&](const rule & r) { return std::regex_search(words, r.shape); });
    return known == rules.end() ? "the prompt changed before the user's first message: compare the words" : known->advice;
}

void request_log::add(finished_request request) {
    if (request.parted.words.size() > max_words) {
        request.parted.words.resize(max_words);
    }
    told(request);
    kvtier::mutex_lock guard(mu);
    kept.push_front(std::move(request));
    if (kept.size() > n_kept) {
        kept.pop_back();
    }
}

static void add_time(common_json & entry, const char * name, double ms) {
    if (ms >= 0) {
        entry[name] = ms;
    }
}

common_json describe_request(const finished_request & r) {
    common_json entry = {
        { "at_ms",            r.at_ms },
        { "tokens_reused",    r.n_reused },
        { "tokens_evaluated", r.n_evaluated },
        { "tokens_answered",  r.n_answered },
        { "prompt_ms",        r.prompt_ms },
        { "answer_ms",        r.answer_ms },
    };
    r.report.add_to(entry, r.n_reused, r.n_evaluated);
    if (r.conversation != 0) {
        entry["conversation"] = kvtier::hex(r.conversation);
    }
    add_time(entry, "first_token_ms", r.took.first_ms);
    add_time(entry, "queue_ms", r.took.queue_ms);
    add_time(entry, "planned_ms", r.took.planned_ms);
    if (!r.parted.words.empty()) {
        entry["parted"] = {
            { "words",  r.parted.words },
            { "early",  r.parted.early },
            { "advice", r.parted.advice },
        };
    }
    return entry;
}

common_json request_log::describe(const std::string & user) const {
    kvtier::mutex_lock guard(mu);
    common_json out = common_json::array();
    for (const finished_request & r : kept) {
        if (r.user == user) {
            out.push_back(describe_request(r));
        }
    }
    return out;
}

void request_log::forget(const std::string & user) {
    kvtier::mutex_lock guard(mu);
    kept.erase(std::remove_if(kept.begin(), kept.end(), [&](const finished_request & r) { return r.user == user; }), kept.end());
}

void request_log::forget_all() {
    kvtier::mutex_lock guard(mu);
    kept.clear();
}

void request_log::forget_words(const kvtier::conversation_id & of) {
    kvtier::mutex_lock guard(mu);
    for (finished_request & r : kept) {
        if ((r.conversation == 0 || r.conversation == of.second) && kvtier::user_key(r.user) == of.first) {
            r.parted = {};
        }
    }
}

} // namespace llama_run

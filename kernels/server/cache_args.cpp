#include "server/cache_args.h"

#include "server/router/models_memory.h"
#include "server/user_id.h"

#include "arg.h"

#include <cctype>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace llama_run {

uint64_t parse_size(const std::string & text) {
    size_t end   = 0;
    double bytes = 0;
    try {
        bytes = std::stod(text, &end);
    } catch (const std::exception &) {
        // end is 0: refused below
    }
    std::string  unit  = text.substr(end);
    const size_t power = unit.empty() ? std::string::npos
                                      : std::string("KMGT").find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))));
    if (power != std::string::npos) {
        bytes *= std::pow(1024.0, static_cast<double>(power + 1));
        unit.erase(0, 1);
    }
    if (end == 0 || !(unit.empty() || unit == "B" || unit == "iB") || !(bytes >= 1 && bytes < 9e18)) {
        throw std::invalid_argument("'" + text + "' is not a size: write it like 512M, 20G or 1.5T");
    }
    return static_cast<uint64_t>(bytes);
}

static uint32_t parse_count(int value, int least) {
    if (value < least) {
        throw std::invalid_argument("must be at least " + std::to_string(least));
    }
    return static_cast<uint32_t>(value);
}

static double parse_seconds(const std::string & text) {
    size_t end     = 0;
    double seconds = -1;
    try {
        seconds = std::stod(text, &end);
    } catch (const std::exception &) {
        // refused below
    }
    if (end != text.size() || !(seconds >= 0 && seconds <= 3600)) {
        throw std::invalid_argument("'" + text + "' is not a number of seconds from 0 to 3600");
    }
    return seconds;
}

static bool parse_switch(const std::string & text) {
    if (text != "on" && text != "off") {
        throw std::invalid_argument("'" + text + "' is neither on nor off");
    }
    return text == "on";
}

void add_cache_args(const std::function<void(common_arg)> & add_opt) {
    const auto add = [&](common_arg arg, const char * env) {
        add_opt(arg.set_examples({ LLAMA_EXAMPLE_SERVER }).set_env(env));
    };
    add({ { "--cache-ssd" }, "PATH",
          "keep the state of prompts in this folder, so that no prefix is evaluated twice, across restarts too; it holds "
          "what the prompts say (default: off)",
          [](common_params & params, const std::string & value) { params.cache_ssd.path = value; } },
        "LLAMA_ARG_CACHE_SSD");
    add({ { "--cache-ssd-page-size" }, "N", "tokens per stored page (default: 256)",
          [](common_params & params, int value) { params.cache_ssd.page_size = parse_count(value, 16); } },
        "LLAMA_ARG_CACHE_SSD_PAGE_SIZE");
    add({ { "--cache-ssd-checkpoints" }, "N", "checkpoints kept per conversation (default: 64)",
          [](common_params & params, int value) { params.cache_ssd.max_checkpoints = parse_count(value, 1); } },
        "LLAMA_ARG_CACHE_SSD_CHECKPOINTS");
    add({ { "--cache-ssd-hot-window" }, "N", "turns without use until state is no longer hot (default: 2)",
          [](common_params & params, int value) { params.cache_ssd.hot_window = parse_count(value, 0); } },
        "LLAMA_ARG_CACHE_SSD_HOT_WINDOW");
    add({ { "--cache-ssd-warm-window" }, "N", "turns without use until state leaves RAM, with room or without (default: 64)",
          [](common_params & params, int value) { params.cache_ssd.warm_window = parse_count(value, 0); } },
        "LLAMA_ARG_CACHE_SSD_WARM_WINDOW");
    add({ { "--cache-ssd-max-cold" }, "N", "cold checkpoints kept per conversation (default: 32)",
          [](common_params & params, int value) { params.cache_ssd.max_cold = parse_count(value, 0); } },
        "LLAMA_ARG_CACHE_SSD_MAX_COLD");
    add({ { "--cache-ssd-max-conversations" }, "N", "conversations kept (default: 256)",
          [](common_params & params, int value) { params.cache_ssd.max_conversations = parse_count(value, 1); } },
        "LLAMA_ARG_CACHE_SSD_MAX_CONVERSATIONS");
    add({ { "--cache-ssd-max-size" }, "SIZE",
          "bytes on disk at most, like 20G (default: a fifth of the free space, at most 64G)",
          [](common_params & params, const std::string & value) { params.cache_ssd.max_bytes = parse_size(value); } },
        "LLAMA_ARG_CACHE_SSD_MAX_SIZE");
    add({ { "--cache-ssd-shared" }, "PATH",
          "with --cache-ssd, a folder that several servers share, on any network file system or disk: what one has evaluated the others "
          "need not; whoever can write there can put words into prompts (default: none)",
          [](common_params & params, const std::string & value) { params.cache_ssd.shared.path = value; } },
        "LLAMA_ARG_CACHE_SSD_SHARED");
    add({ { "--cache-ssd-shared-max-size" }, "SIZE",
          "bytes in the shared folder at most, of all servers and models (default: a fifth of the free space, at most 64G)",
          [](common_params & params, const std::string & value) { params.cache_ssd.shared.max_bytes = parse_size(value); } },
        "LLAMA_ARG_CACHE_SSD_SHARED_MAX_SIZE");
    add({ { "--cache-ssd-shared-timeout" }, "SECONDS",
          "how long the shared folder may take for one call, before it is not used for a while (default: 5)",
          [](common_params & params, const std::string & value) {
              params.cache_ssd.shared.timeout_s = parse_seconds(value);
              if (params.cache_ssd.shared.timeout_s < 0.1) {
                  throw std::invalid_argument("must be at least 0.1");
              }
          } },
        "LLAMA_ARG_CACHE_SSD_SHARED_TIMEOUT");
    add({ { "--cache-ssd-share-users" }, "share the state of named users, too, each with itself alone (default: only that of requests without a user)",
          [](common_params & params) { params.cache_ssd.shared.users = true; } },
        "LLAMA_ARG_CACHE_SSD_SHARE_USERS");
    add({ { "--cache-ssd-share-backends" },
          "use state from the shared folder that another kind of backend has computed, which differs in the last digits (default: off)",
          [](common_params & params) { params.cache_ssd.shared.all_backends = true; } },
        "LLAMA_ARG_CACHE_SSD_SHARE_BACKENDS");
    add({ { "--cache-ssd-ram" }, "SIZE", "RAM for hot and warm state, like 2G (default: an eighth of the machine's)",
          [](common_params & params, const std::string & value) { params.cache_ssd.ram_bytes = parse_size(value); } },
        "LLAMA_ARG_CACHE_SSD_RAM");
    add({ { "--cache-ssd-settle" }, "SECONDS",
          "how long a conversation rests before the state of a hybrid, recurrent or sliding-window model is written; what the next turn "
          "makes needless is never written (default: 5; 0 writes at once)",
          [](common_params & params, const std::string & value) { params.cache_ssd.settle_seconds = parse_seconds(value); } },
        "LLAMA_ARG_CACHE_SSD_SETTLE");
    add({ { "--cache-ssd-read-ahead" }, "on|off",
          "whether what was used last is read into RAM after the start, until the first request comes (default: on)",
          [](common_params & params, const std::string & value) { params.cache_ssd.read_ahead = parse_switch(value); } },
        "LLAMA_ARG_CACHE_SSD_READ_AHEAD");
    add({ { "--cache-ssd-expire" }, "DAYS", "remove conversations that nobody used for so many days; 0: never (default: 0)",
          [](common_params & params, int value) { params.cache_ssd.expire_days = parse_count(value, 0); } },
        "LLAMA_ARG_CACHE_SSD_EXPIRE");
    add({ { "--cache-ssd-sweep" }, "SECONDS", "how often it is looked for conversations that have expired (default: 300)",
          [](common_params & params, int value) { params.cache_ssd.sweep_seconds = parse_count(value, 1); } },
        "LLAMA_ARG_CACHE_SSD_SWEEP");
    add({ { "--max-concurrent-per-user" }, "N",
          "requests of one user served or waiting at a time, more are answered with 429 (default: 0, no limit)",
          [](common_params & params, int value) { params.cache_ssd.max_concurrent_per_user = parse_count(value, 0); } },
        "LLAMA_ARG_MAX_CONCURRENT_PER_USER");
    add({ { "--max-queue" }, "N",
          "requests that may wait for a slot, more are answered with 503 and Retry-After (default: -1, no limit)",
          [](common_params & params, int value) {
              params.cache_ssd.max_queue = value < 0 ? -1 : static_cast<int32_t>(parse_count(value, 0));
          } },
        "LLAMA_ARG_MAX_QUEUE");
    add({ { "--queue-timeout" }, "SECONDS", "how long a request may wait for a slot before it is answered with 504 (default: 0, no limit)",
          [](common_params & params, const std::string & value) { params.cache_ssd.queue_timeout_s = parse_seconds(value); } },
        "LLAMA_ARG_QUEUE_TIMEOUT");
    add({ { "--cache-ssd-warm" }, "FILE",
          "prepare these prompts at the start, in idle time: bodies of chat requests, one JSON object per line (default: none)",
          [](common_params & params, const std::string & value) { params.cache_ssd.warm_file = value; } },
        "LLAMA_ARG_CACHE_SSD_WARM");
    add({ { "--user-header" }, "NAME",
          "the header in which a proxy says whose request it is; what bodies say then counts for nothing (default: none)",
          [](common_params & params, const std::string & value) {
              params.cache_ssd.user_header = value;
              resumable_streams            = value.empty();
          } },
        "LLAMA_ARG_USER_HEADER");
    add({ { "--metadata-users" }, "on|off",
          "whether metadata.user_id of the Anthropic API keeps users apart; llama_user_id always does (default: on)",
          [](common_params & params, const std::string & value) { params.cache_ssd.metadata_users = parse_switch(value); } },
        "LLAMA_ARG_METADATA_USERS");
    add({ { "--no-stable-prompts" },
          "with --cache-ssd, leave lines in prompts that agents change without meaning anything by it (default: they are made stable)",
          [](common_params & params) { params.cache_ssd.stable_prompts = false; } },
        "LLAMA_ARG_NO_STABLE_PROMPTS");
    add({ { "--stable-tools" },
          "sort the tools of a request by name and the keys of their schemas, which the model sees (default: off)",
          [](common_params & params) { params.cache_ssd.stable_tools = true; } },
        "LLAMA_ARG_STABLE_TOOLS");
    add({ { "--context-overflow" }, "error|evict",
          "what becomes of a chat that no longer fits into the context: an error, or its oldest messages are left out of the prompt; "
          "a request may say otherwise, as llama_context_overflow (default: error)",
          [](common_params & params, const std::string & value) {
              if (value != "error" && value != "evict") {
                  throw std::invalid_argument("'" + value + "' is neither error nor evict");
              }
              params.cache_ssd.evict = value == "evict";
          } },
        "LLAMA_ARG_CONTEXT_OVERFLOW");
    add({ { "--context-spool" }, "PATH", "the folder in which messages are left that leave a chat, in plain text (default: none)",
          [](common_params & params, const std::string & value) { params.cache_ssd.spool = value; } },
        "LLAMA_ARG_CONTEXT_SPOOL");
    add({ { "--allowed-host" }, "NAME",
          "with --cache-ssd, another name under which this server may be reached, of a proxy or in the local network; several "
          "are separated by commas",
          [](common_params & params, const std::string & value) {
              for (const std::string & name : string_split<std::string>(value, ',')) {
                  params.cache_ssd.allowed_hosts.push_back(name);
              }
          } },
        "LLAMA_ARG_ALLOWED_HOST");
    add({ { "--cache-ssd-write-budget" }, "SIZE",
          "bytes written in a day at most, like 20G; beyond it only what was asked for twice is (default: no limit)",
          [](common_params & params, const std::string & value) { params.cache_ssd.write_bytes_per_day = parse_size(value); } },
        "LLAMA_ARG_CACHE_SSD_WRITE_BUDGET");
    add({ { "--models-memory" }, "SIZE",
          "for a router, bytes that its models may take together, like 20G: as many are loaded as fit (default: they are counted, "
          "see --models-max, which is a limit beside this one)",
          [](common_params &, const std::string & value) { models_memory() = parse_size(value); } },
        "LLAMA_ARG_MODELS_MEMORY");
    add({ { "--model-need" }, "SIZE",
          "in a router's preset of a model, bytes that it takes, for --models-memory (default: unknown, it is loaded alone)",
          [](common_params &, const std::string & value) { parse_size(value); } },
        "LLAMA_ARG_MODEL_NEED");
}

} // namespace llama_run

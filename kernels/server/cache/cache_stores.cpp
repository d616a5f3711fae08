#include "server/cache/cache_stores.h"

#include "kvtier/file_names.h"
#include "kvtier/write_budget.h"
#include "llama/build_info.h"
#include "llama/model_fingerprint.h"
#include "state_rows.h"

#include "log.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

namespace llama_run {

using kvtier::status;

static constexpr uint64_t GiB = uint64_t(1) << 30;

// Names the backend that does the work, as far as it shows.
static std::string backend_name() {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev  = ggml_backend_dev_get(i);
        const auto         type = ggml_backend_dev_type(dev);
        if (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU) {
            return ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev));
        }
    }
    return "CPU";
}

static uint64_t machine_ram() {
    return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// A budget that is too small for some turns and not for others would fill the log.
static constexpr auto said_again_after = std::chrono::minutes(1);

// The launcher reads both lines, and the kind: a person who has no room is told what helps.
static kvtier::writer::trouble_listener log_trouble() {
    return [said = std::chrono::steady_clock::time_point(), quiet = false](const status & result) mutable {
        const auto now = std::chrono::steady_clock::now();
        if (!result.is_ok()) {
            quiet = said != std::chrono::steady_clock::time_point() && now - said < said_again_after;
        }
        if (quiet) {
            return;
        }
        said = now;
        if (result.is_ok()) {
            LOG_WRN("cache: storing again\n");
        } else {
            LOG_WRN("cache: not storing (%s): %s\n", kvtier::kind_name(result.kind()), result.message().c_str());
        }
    };
}

// State that others may change is state that others may put words into.
static void warn_of_writers(const std::string & folder) {
    struct stat info {};
    if (stat(folder.c_str(), &info) == 0 && (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        LOG_WRN("cache: %s can be written by other users of this machine: chmod 700 keeps them out\n", folder.c_str());
    }
}

// A fifth of the disk's free space, and 64 GiB at most. What the cache itself takes counts as free: its share must not shrink from start to start.
static status default_limit(const std::string & root_dir, uint64_t & out) {
    kvtier::env & env        = kvtier::posix_env();
    uint64_t      free_bytes = 0;
    uint64_t      taken      = 0;
    if (status s = env.free_space(root_dir, free_bytes); !s.is_ok()) {
        return s;
    }
    (void) kvtier::measure_tree(env, root_dir, taken).is_ok();
    out = std::min<uint64_t>((free_bytes + taken) / 5, 64 * GiB);
    return status::ok();
}

status cache_stores::open(const common_params & params, llama_context * target_ctx, llama_context * draft_ctx) {
    root_dir = params.cache_ssd.path;
    if (status s = open_one(params, target_ctx, params.model.path, params.cache_type_k, params.cache_type_v, target); !s.is_ok()) {
        return s;
    }

    if (!params.cache_ssd.shared.path.empty()) {
        open_shared(params.cache_ssd.shared);
    }

    // A draft model's state travels. Heads that live on the target's hidden states keep more than their context; they
    // start empty after a restore, which costs accepted drafts for a while and nothing else.
    const common_params_speculative & spec = params.speculative;
    const bool simple = std::find(spec.types.begin(), spec.types.end(), COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE) != spec.types.end();
    if (draft_ctx != nullptr && simple && spec.has_dft()) {
        const status s = open_one(params, draft_ctx, spec.draft.mparams.path, spec.draft.cache_type_k,
                                  spec.draft.cache_type_v, draft);
        if (!s.is_ok()) {
            LOG_WRN("cache: the draft model's state is not kept: %s\n", s.message().c_str());
        }
    }
    return status::ok();
}

void cache_stores::open_shared(const shared_folder_options & want) {
    kvtier::shared_options options;
    options.dir          = want.path;
    options.backend      = backend_name();
    options.all_backends = want.all_backends;
    options.users        = want.users;
    options.limit        = want.max_bytes;
    options.timeout      = std::chrono::milliseconds(static_cast<int64_t>(1000 * want.timeout_s));
    options.on_change    = [](const std::string & why) {
        if (why.empty()) {
            LOG_WRN("cache: the shared folder is used again\n");
        } else {
            LOG_WRN("cache: the shared folder is not used for now: %s\n", why.c_str());
        }
    };
    options.on_unreadable = [](const std::string & what) { LOG_WRN("cache: in the shared folder %s\n", what.c_str()); };
    patience = options.timeout;
    shared   = target->store().share(kvtier::posix_env(), std::move(options));
}

status cache_stores::open_one(const common_params & params, llama_context * ctx, const std::string & model_path,
                              ggml_type type_k, ggml_type type_v, std::unique_ptr<sequence_store> & out) {
    kvtier::env &         env  = kvtier::posix_env();
    const cache_options & want = params.cache_ssd;

    fingerprint_request fingerprint;
    fingerprint.model_path = model_path;
    fingerprint.ctx        = ctx;
    fingerprint.type_k     = type_k;
    fingerprint.type_v     = type_v;
    for (const common_control_vector_load_info & vector : params.control_vectors) {
        kvtier::key content;
        if (status s = file_key(vector.fname, content); !s.is_ok()) {
            return s;
        }
        fingerprint.extras.push_back({ "control_vector/" + std::to_string(vector.strength) + "/" +
                                       std::to_string(params.control_vector_layer_start) + "-" +
                                       std::to_string(params.control_vector_layer_end), kvtier::hex(content) });
    }

    sequence_store_options options;
    if (status s = model_fingerprint(fingerprint, options.store.fingerprint, &options.store.facts); !s.is_ok()) {
        return s;
    }
    if (status s = env.make_dir(root_dir); !s.is_ok()) {
        return s;
    }
    if (target == nullptr) {
        warn_of_writers(root_dir);
        uint64_t limit = want.max_bytes;
        if (limit == 0) {
            if (status s = default_limit(root_dir, limit); !s.is_ok()) {
                return s;
            }
        }
        options.store.budget    = std::make_shared<kvtier::disk_budget>(limit);
        options.store.writes    = std::make_shared<kvtier::write_budget>(env, root_dir, want.write_bytes_per_day);
        options.store.max_bytes = limit;
        options.store.ram_bytes = want.ram_bytes != 0 ? want.ram_bytes : machine_ram() / 8;
        options.store.protected_bytes = limit / 2;
    } else {
        const kvtier::store_options & first = target->store().options();
        options.store.budget    = first.budget;
        options.store.writes    = first.writes;
        options.store.max_bytes = first.max_bytes;
        options.store.ram_bytes = first.ram_bytes / 8; // a draft model is that much smaller
        options.store.protected_bytes = 0; // Without its state no answer is different.
    }
    options.store.root_dir          = root_dir;
    options.store.page_size         = want.page_size;
    options.store.written_by        = llama_run_version();
    options.store.max_checkpoints   = want.max_checkpoints;
    options.store.max_cold          = want.max_cold;
    options.store.max_conversations = want.max_conversations;
    options.store.windows           = { want.hot_window, want.warm_window };
    options.store.expire_ms         = int64_t(want.expire_days) * 24 * 3600 * 1000;
    options.queue_bytes             = std::clamp<uint64_t>(options.store.ram_bytes, GiB / 4, 4 * GiB);
    options.backend                 = backend_name();
    options.on_trouble              = log_trouble();
    options.settle                  = std::chrono::milliseconds(static_cast<int64_t>(1000 * want.settle_seconds));

    if (target == nullptr) {
        look_elsewhere(options.store.fingerprint);
    }
    return sequence_store::open(env, ctx, options, out);
}

// Notes the conversations of other fingerprints: of this model with other settings, or of other models.
void cache_stores::look_elsewhere(const kvtier::key & fingerprint) {
    kvtier::env &            env = kvtier::posix_env();
    std::vector<kvtier::key> models;
    if (!kvtier::list_models(env, root_dir, models).is_ok()) {
        return;
    }
    for (const kvtier::key & model : models) {
        std::vector<kvtier::dir_entry> entries;
        if (model == fingerprint || !env.list_dir(kvtier::names::join(root_dir, kvtier::hex(model)), entries).is_ok()) {
            continue;
        }
        for (const kvtier::dir_entry & entry : entries) {
            uint64_t hash;
            if (entry.type == kvtier::file_type::folder && kvtier::parse_hex(entry.name, hash)) {
                elsewhere.insert(hash);
            }
        }
    }
}

void cache_stores::remove_expired(const std::vector<kvtier::conversation_id> & of_target) {
    uint64_t   freed    = 0;
    uint64_t   of_draft = 0;
    std::map<kvtier::key, std::vector<uint64_t>> by_user;
    std::vector<kvtier::shared_removal>          there;
    for (const kvtier::conversation_id & id : of_target) {
        by_user[id.first].push_back(id.second);
    }
    for (const auto & [name_space, conversations] : by_user) {
        if (shared != nullptr) {
            there.push_back(shared->begin_removal(name_space, conversations));
        }
    }
    kvtier::status done = target->store().remove_expired(of_target, freed);
    if (draft != nullptr) {
        const kvtier::status done_there = draft->store().remove_expired(draft->store().expired(), of_draft);
        done = done.is_ok() ? done_there : done;
    }
    for (const kvtier::shared_removal & removal : there) {
        uint64_t n_files = 0;
        (void) shared->finish_removal(removal, patience, n_files); // What stays is tried again.
    }
    if (!of_target.empty()) {
        LOG_INF("cache: %zu conversations have expired, %llu bytes freed\n", of_target.size(),
                static_cast<unsigned long long>(freed + of_draft));
    }
    if (!done.is_ok()) {
        LOG_WRN("cache: not all that has expired could be removed, and it is tried again: %s\n", done.message().c_str());
    }
}

void cache_stores::flush() {
    for (sequence_store * s : all()) {
        s->flush();
    }
}

void cache_stores::publish() {
    if (shared != nullptr) {
        (void) shared->publish(patience); // What is left is published later, if there is a later.
    }
}

void cache_stores::close() {
    for (sequence_store * s : all()) {
        s->close();
    }
    publish();
    if (shared != nullptr) {
        shared->close();
    }
}

std::vector<sequence_store *> cache_stores::all() {
    std::vector<sequence_store *> out;
    for (sequence_store * s : { target.get(), draft.get() }) {
        if (s != nullptr) {
            out.push_back(s);
        }
    }
    return out;
}

} // namespace llama_run

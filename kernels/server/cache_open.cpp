// Opening and closing the cache: which folder, how large, for which model.
#include "server/cache_core.h"

#include "kvtier/file_names.h"
#include "llama/build_info.h"
#include "llama/model_fingerprint.h"
#include "state_rows.h"

#include "log.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

namespace llama_run {

using kvtier::status;

static constexpr uint64_t GiB = uint64_t(1) << 30;

// The name of the backend that does the work, as far as it shows.
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

static kvtier::writer::trouble_listener log_trouble() {
    return [said = std::chrono::steady_clock::time_point(), quiet = false](const std::string & reason) mutable {
        const auto now = std::chrono::steady_clock::now();
        if (!reason.empty()) {
            quiet = said != std::chrono::steady_clock::time_point() && now - said < said_again_after;
        }
        if (quiet) {
            return;
        }
        said = now;
        if (reason.empty()) {
            LOG_WRN("cache: storing again\n");
        } else {
            LOG_WRN("cache: not storing: %s\n", reason.c_str());
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

cache_core::cache_core(const common_params & params, llama_context * target, llama_context * draft, server_queue & queue,
                       std::atomic<bool> & stopping) :
    target_ctx(target), draft_ctx(draft), queue(queue), server_stops(stopping),
    n_swa(params.swa_full ? 0 : llama_model_n_swa(llama_get_model(target))),
    checkpoints_exact((llama_state_parts(target) & LLAMA_STATE_PART_FOLDED) && !llama_state_has_window(target)),
    metadata_users(params.cache_ssd.metadata_users), min_similarity(params.slot_prompt_similarity), root_dir(params.cache_ssd.path),
    records(static_cast<size_t>(params.n_parallel)), notices(static_cast<size_t>(params.n_parallel)),
    defaults(params.lora_adapters) {}

status cache_core::open(const common_params & params, llama_context * target, llama_context * draft,
                        server_queue & queue, std::atomic<bool> & stopping, std::shared_ptr<cache_core> & out) {
    if (llama_get_memory(target) == nullptr) {
        return status::incompatible("this model keeps no state");
    }
    std::shared_ptr<cache_core> made(new cache_core(params, target, draft, queue, stopping));
    status s = made->open_stores(params);
    if (s.is_ok()) {
        made->give_up_batches_when_stopping();
        made->reader = std::thread([core = made.get()] { core->run_reader(); });
        out = std::move(made);
    }
    return s;
}

// Evaluating a batch can take half a minute on a slow processor, and stopping should not. Backends that can be interrupted leave
// complete rows behind for all tokens but the batch's last ones; folded state, and a draft's, would be neither here nor there.
void cache_core::give_up_batches_when_stopping() {
    if (!target->folded() && draft_ctx == nullptr) {
        llama_set_abort_callback(target_ctx, [](void * stops) { return static_cast<std::atomic<bool> *>(stops)->load(); },
                                 &server_stops);
    }
}

status cache_core::open_stores(const common_params & params) {
    for (const common_adapter_lora_info & adapter : params.lora_adapters) {
        if (status s = file_key(adapter.path, adapter_keys[adapter.path]); !s.is_ok()) {
            return s;
        }
    }
    if (status s = open_store(params, target_ctx, params.model.path, params.cache_type_k, params.cache_type_v, target); !s.is_ok()) {
        return s;
    }

    // A draft model's state travels. Heads that live on the target's hidden states keep more than their context; they
    // start empty after a restore, which costs accepted drafts for a while and nothing else.
    const common_params_speculative & spec = params.speculative;
    const bool simple = std::find(spec.types.begin(), spec.types.end(), COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE) != spec.types.end();
    if (draft_ctx != nullptr && simple && spec.has_dft()) {
        const status s = open_store(params, draft_ctx, spec.draft.mparams.path, spec.draft.cache_type_k,
                                    spec.draft.cache_type_v, draft);
        if (!s.is_ok()) {
            LOG_WRN("cache: the draft model's state is not kept: %s\n", s.message().c_str());
        }
    }
    return status::ok();
}

status cache_core::open_store(const common_params & params, llama_context * ctx, const std::string & model_path,
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
    if (status s = model_fingerprint(fingerprint, options.store.fingerprint); !s.is_ok()) {
        return s;
    }
    if (status s = env.make_dir(root_dir); !s.is_ok()) {
        return s;
    }
    if (target == nullptr) {
        warn_of_writers(root_dir);
        uint64_t free_bytes = 0;
        if (want.max_bytes == 0) {
            if (status s = env.free_space(root_dir, free_bytes); !s.is_ok()) {
                return s;
            }
            // What the cache itself takes must not shrink its own share from start to start.
            uint64_t taken = 0;
            (void) kvtier::measure_tree(env, root_dir, taken).is_ok();
            free_bytes += taken;
        }
        const uint64_t limit = want.max_bytes != 0 ? want.max_bytes : std::min<uint64_t>(free_bytes / 5, 64 * GiB);
        options.store.budget    = std::make_shared<kvtier::disk_budget>(limit);
        options.store.max_bytes = limit;
        options.store.ram_bytes = want.ram_bytes != 0 ? want.ram_bytes : machine_ram() / 8;
    } else {
        const kvtier::store_options & first = target->store().options();
        options.store.budget    = first.budget;
        options.store.max_bytes = first.max_bytes;
        options.store.ram_bytes = first.ram_bytes / 8; // a draft model is that much smaller
    }
    options.store.root_dir          = root_dir;
    options.store.page_size         = want.page_size;
    options.store.written_by        = llama_run_version();
    options.store.max_checkpoints   = want.max_checkpoints;
    options.store.max_cold          = want.max_cold;
    options.store.max_conversations = want.max_conversations;
    options.store.windows           = { want.hot_window, want.warm_window };
    options.queue_bytes             = std::clamp<uint64_t>(options.store.ram_bytes, GiB / 4, 4 * GiB);
    options.backend                 = backend_name();
    options.on_trouble              = log_trouble();

    std::vector<kvtier::key> models;
    if (target == nullptr && kvtier::list_models(env, root_dir, models).is_ok()) {
        for (const kvtier::key & model : models) {
            std::vector<kvtier::dir_entry> entries;
            if (model != options.store.fingerprint &&
                env.list_dir(kvtier::names::join(root_dir, kvtier::hex(model)), entries).is_ok()) {
                for (const kvtier::dir_entry & entry : entries) {
                    uint64_t hash;
                    if (entry.type == kvtier::file_type::folder && kvtier::parse_hex(entry.name, hash)) {
                        elsewhere.insert(hash);
                    }
                }
            }
        }
    }
    return sequence_store::open(env, ctx, options, out);
}

cache_core::~cache_core() {
    close();
}

void cache_core::close() {
    {
        std::lock_guard<std::mutex> guard(reader_mu);
        stopping = true;
        reader_changed.notify_all();
    }
    if (reader.joinable()) {
        reader.join();
    }
    reads.clear(); // of requests that were cancelled: their tickets would keep this and its lock
    flush_stores();
}

void cache_core::flush() {
    {
        std::unique_lock<std::mutex> guard(notice_mu);
        notice_changed.wait(guard, [&] {
            return std::none_of(notices.begin(), notices.end(), [](const slot_notice & n) { return n.handing_over; });
        });
    }
    flush_stores();
}

void cache_core::flush_stores() {
    for (sequence_store * s : { target.get(), draft.get() }) {
        if (s != nullptr) {
            s->flush();
        }
    }
}

} // namespace llama_run

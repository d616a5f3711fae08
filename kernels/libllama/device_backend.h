// Which of a context's backends works on a device.
#pragma once

#include "ggml-backend.h"

// Null: none of them, or the context has evaluated nothing yet and has no scheduler.
inline ggml_backend_t llama_device_backend(ggml_backend_sched_t sched, ggml_backend_dev_t device) {
    for (int i = 0; sched && device && i < ggml_backend_sched_get_n_backends(sched); ++i) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(sched, i);
        if (ggml_backend_get_device(backend) == device) {
            return backend;
        }
    }
    return nullptr;
}

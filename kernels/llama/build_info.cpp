#include "llama/build_info.h"

const char * llama_run_version() {
    return LLAMA_RUN_VERSION;
}

const char * llama_run_pin() {
    return LLAMA_RUN_PIN;
}

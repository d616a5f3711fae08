// Which llama-run this server is, and from which llama.cpp it was built.
#pragma once

// "0.1.0"
const char * llama_run_version();

// The pinned upstream commit, all 40 digits.
const char * llama_run_pin();

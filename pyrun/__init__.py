"""The launcher of llama-run: builds the patched llama.cpp, starts and watches its server, looks after the cache."""

"""The launcher builds the patched llama.cpp, starts and watches its server, and looks after the cache."""

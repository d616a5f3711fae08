"""The pinned llama.cpp: fetching it, checking it, patching it."""

"""The pinned llama.cpp is fetched, checked and patched here."""

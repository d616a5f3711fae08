"""The patched source becomes llama-server here."""

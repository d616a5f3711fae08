"""From the patched source to llama-server."""

"""Finding GGUF files."""

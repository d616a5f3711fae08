"""GGUF files are found, read, downloaded and given settings here."""

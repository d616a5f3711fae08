"""llama-server is started and kept alive here."""

"""Starting llama-server and keeping it alive."""

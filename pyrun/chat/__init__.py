"""`llama-run chat`: a conversation in a terminal, with tools, memory and several providers."""

"""Which experts of a mixture work: what a server counted, and how it looks."""

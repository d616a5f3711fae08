"""Which experts of a mixture work is counted by a server, and shown here."""

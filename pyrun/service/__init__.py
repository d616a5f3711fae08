"""A server that is there without a terminal: as a systemd user unit, or in the background."""

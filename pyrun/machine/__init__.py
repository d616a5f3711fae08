"""A probe reads what this machine is, and pure functions decide what was read means."""

"""What this machine is: a probe that reads, and pure functions that decide what was read means."""

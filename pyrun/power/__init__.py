"""Suspend and battery: what the machine says, and what the server is told of it."""

"""Coding agents: what each has to be told to work with a running server, and writing it into its settings."""

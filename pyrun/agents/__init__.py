"""Coding agents have to be told how to work with a running server; this writes it into their settings."""

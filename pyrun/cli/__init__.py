"""Functions of the command line parse and print; the work is in plain functions elsewhere."""

"""The command line. Functions here parse and print; the work is in plain functions elsewhere."""

"""The command line. Functions here parse and print; the work is in plain functions elsewhere."""

from pyrun.cli.main import main

__all__ = ["main"]

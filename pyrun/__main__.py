"""`python -m pyrun`: the launcher from a checkout that is not installed."""

from pyrun.cli import main

main()

"""One archive that serves models on a machine with Python and nothing else: made, tried and, there, checked here."""

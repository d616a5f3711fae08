"""Each scenario has a plan (how much work it is), a play (which fills in a result), and an end (what follows)."""

"""Stored state is looked after here while no server has it: what is there, whether it is sound, and removing it."""

"""Machines for the tests: what the kernel and the tools say on each, written by hand after their documentation."""

from fakes.machines.catalogue import MACHINES
from fakes.machines.recorded import Recorded, snapshot_of

__all__ = ["MACHINES", "Recorded", "snapshot_of"]

"""Has the names of the backends, for whoever needs no more than that."""

from __future__ import annotations

BACKENDS = ("cpu", "vulkan", "rocm", "cuda")
AUTO = "auto"  # the best one for this machine that is built or can be

"""Makes commands that run llama-run, or a module of it, with this Python and from any folder.

Plain `python -m` and `python -c` look for every module in the current folder first, also for those of other packages.
That folder is somebody's work, and may hold a click.py that anybody put there. Python's own -P is younger than the
oldest Python that we run with.
"""

from __future__ import annotations

import sys
from pathlib import Path

CODE = Path(__file__).resolve().parents[1]  # holds the package: a clone, a bundle's `python`, or site-packages
# What a bundle starts Python with, so that nobody else's packages are mixed in, holds for what it starts as well.
PASSED_ON = {"isolated": "-I", "ignore_environment": "-E", "no_user_site": "-s", "no_site": "-S"}
# The current folder is on the path as an empty text. It goes before anything is imported but `sys`, which is built in.
# The order of the other folders stays: our own is put first only where it is not among them, as it is not in a clone.
PROGRAM = "; ".join(
    (
        "import sys",
        "sys.path[:] = filter(None, sys.path)",
        "sys.path[:0] = {{{code!a}}} - set(sys.path)",
        "import runpy",
        "runpy.run_module({module!a}, run_name='__main__', alter_sys=True)",
    )
)


def llama_run_command() -> list[str]:
    """Starts llama-run itself: the arguments of its command line follow."""
    return module_command("pyrun")


def module_command(module: str) -> list[str]:
    """Starts a module of ours, as `python -m` would: its arguments follow."""
    flags = [flag for name, flag in PASSED_ON.items() if getattr(sys.flags, name)]
    return [sys.executable, *flags, "-c", PROGRAM.format(code=str(CODE), module=module)]

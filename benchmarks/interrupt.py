"""Sees to it that no Ctrl-C is lost, and that a run which it ends, or SIGTERM, leaves nothing behind and no traceback.

Python drops a KeyboardInterrupt that comes up while it forks or collects garbage, with a note on stderr that it did.
The request to stop is therefore kept, and made again before the next step.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType

from pyrun import console
from pyrun.errors import UserError

_asked = False


def heed() -> None:
    """From now on Ctrl-C and SIGTERM end the run."""
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, _stop)
    sys.unraisablehook = _note
    sys.excepthook = _tell


def check() -> None:
    if _asked:
        raise KeyboardInterrupt


def _stop(number: int, frame: FrameType | None) -> None:
    global _asked
    _asked = True
    raise KeyboardInterrupt


def _note(unraisable: sys.UnraisableHookArgs) -> None:
    if unraisable.exc_type is not KeyboardInterrupt:  # that one is kept
        sys.__unraisablehook__(unraisable)


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What a person did, or can mend, is told in a line."""
    if isinstance(error, KeyboardInterrupt):
        console.say("interrupted")
    elif isinstance(error, UserError):
        console.show_error(error)
    else:
        sys.__excepthook__(kind, error, trace)

"""The launcher builds the patched llama.cpp, starts and watches its server, and looks after the cache."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrun.engine import Answer, Engine, Stream, Verified

__all__ = ["Answer", "Engine", "Stream", "Verified"]


class _MissingModule:
    """Stands for the native module where it is not built for this Python: what needs it says so, when it is used."""

    def __init__(self, error: ImportError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def __getattr__(name: str) -> Any:
    """Gives what is loaded when it is first asked for."""
    if name == "_kernels":
        try:
            return import_module("pyrun._kernels")
        except ImportError as error:
            return _MissingModule(error)
    if name in __all__:
        return getattr(import_module("pyrun.engine"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

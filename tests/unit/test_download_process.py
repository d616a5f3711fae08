"""`llama-run --download` as a process of its own: signals, terminals, settings that are read at its start, and whether
the fake hub is one that the real client of huggingface_hub accepts."""

from __future__ import annotations

import os
import pty
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.hub import FakeHub, Fault
from helpers import ROOT, wait_until

LLAMA_RUN = (sys.executable, "-c", "from pyrun.__main__ import main; main()")
WEIGHTS = random.Random("weights").randbytes(400_000)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        hub.add("maker/toy", {"toy-Q8_0.gguf": WEIGHTS, "toy-Q4_0.gguf": WEIGHTS[:1000]})
        yield hub


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "upstream.toml").write_text((ROOT / "llama.cpp" / "upstream.toml").read_text())
    (tmp_path / "models").mkdir()
    return tmp_path


def environment(hub: FakeHub, clone: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING_FACE"))}
    return kept | {"HF_ENDPOINT": hub.url, "LLAMA_RUN_HOME": str(clone)} | more


def start(hub: FakeHub, clone: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*LLAMA_RUN, "--download", *arguments],
        env=environment(hub, clone, **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def size_of_part(clone: Path) -> int:
    parts = list(clone.glob("models/maker/toy/*.part"))
    return parts[0].stat().st_size if parts else 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_stopped_download_goes_on(hub: FakeHub, clone: Path, number: int, code: int) -> None:
    hub.faults.append(Fault("store", times=1000, slow=0.05))  # 80 kB/s
    running = start(hub, clone, "maker/toy:Q8_0")
    wait_until(lambda: hub.n_sent > 200_000, 60, "some of the file has arrived")
    running.send_signal(number)
    out, err = running.communicate(timeout=30)
    assert running.returncode == code, err
    assert out == ""
    assert list(clone.glob("models/**/*.gguf")) == []
    arrived = size_of_part(clone)
    if number != signal.SIGKILL:
        assert "stopped; what has arrived is kept, and the same command goes on there" in err
        assert 0 < arrived < len(WEIGHTS)
    hub.faults.clear()
    hub.requests.clear()
    again = start(hub, clone, "maker/toy:Q8_0")
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert Path(out.strip()).read_bytes() == WEIGHTS
    wanted = [f"bytes={arrived}-{len(WEIGHTS) - 1}"] if arrived else [None]
    assert [request.range for request in hub.asked("store")] == wanted


def test_offline_mode_stays_offline(hub: FakeHub, clone: Path) -> None:
    running = start(hub, clone, "maker/toy:Q8_0", HF_HUB_OFFLINE="1")
    _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "error: HF_HUB_OFFLINE is set: maker/toy cannot be looked up" in err and "hint: unset it" in err
    assert hub.requests == []


def test_no_more_is_asked_or_told_than_needed(hub: FakeHub, clone: Path) -> None:
    running = start(hub, clone, "maker/toy:Q8_0", HF_TOKEN="hf_good", AI_AGENT="someone", HOME=str(clone))
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert [(r.where, r.method) for r in hub.requests] == [("api", "GET"), ("resolve", "GET"), ("store", "GET")]
    assert not (clone / ".cache").exists()


def test_silent_hub_is_not_awaited_forever(hub: FakeHub, clone: Path) -> None:
    hub.faults.append(Fault("api", wait=30))
    running = start(hub, clone, "maker/toy:Q8_0", HF_HUB_ETAG_TIMEOUT="1")
    _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert f"error: {hub.url} does not answer in time" in err


def test_stalled_store_is_not_awaited_forever(hub: FakeHub, clone: Path) -> None:
    hub.faults.append(Fault("store", wait=30))
    running = start(hub, clone, "maker/toy:Q8_0", HF_HUB_DOWNLOAD_TIMEOUT="1")
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "does not answer in time; going on at 0 B in 1 s" in err
    assert Path(out.strip()).read_bytes() == WEIGHTS


def test_without_a_terminal_there_is_no_bar(hub: FakeHub, clone: Path) -> None:
    running = start(hub, clone, "maker/toy:Q8_0", TERM="xterm", FORCE_COLOR="")
    _, err = running.communicate(timeout=60)
    assert "\x1b" not in err and "━" not in err


def test_terminal_shows_a_bar_and_a_question(hub: FakeHub, clone: Path) -> None:
    hub.faults.append(Fault("store", times=1000, slow=0.05))
    own, theirs = pty.openpty()
    running = subprocess.Popen(
        [*LLAMA_RUN, "--download", "maker/toy"],
        env=environment(hub, clone, TERM="xterm", COLUMNS="120"),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        close_fds=True,
    )
    os.close(theirs)
    shown = read_until(own, "Which one?")
    assert "1)  Q4_0  1.0 kB" in shown and "2)  Q8_0  400.0 kB" in shown
    os.write(own, b"2\n")
    shown = read_until(own, "serve it:")
    assert "toy-Q8_0.gguf" in shown and "/400.0 kB" in shown and "kB/s, about" in shown
    out, _ = running.communicate(timeout=30)
    os.close(own)
    assert running.returncode == 0
    assert Path(out.strip()).read_bytes() == WEIGHTS


def read_until(descriptor: int, text: str) -> str:
    shown, deadline = b"", time.monotonic() + 60
    while text.encode() not in shown:
        ready, _, _ = select.select([descriptor], [], [], deadline - time.monotonic())
        assert ready, f"not within a minute: {text!r} in {shown!r}"
        shown += os.read(descriptor, 4096)
    return shown.decode(errors="replace")


def test_fake_hub_is_a_hub_to_the_real_client(hub: FakeHub, clone: Path) -> None:
    """The real client's own listing and download, which we do not use, work there too."""
    hub.add("maker/small", {"small-Q8_0.gguf": WEIGHTS}, large=False)
    script = """
import huggingface_hub as h
api = h.HfApi()
for name, file in (("maker/toy", "toy-Q8_0.gguf"), ("maker/small", "small-Q8_0.gguf")):
    (entry,) = [e for e in api.list_repo_tree(name, recursive=True) if e.path == file]
    info = api.model_info(name, files_metadata=True)
    (sibling,) = [s for s in info.siblings if s.rfilename == file]
    assert sibling.size == entry.size == 400_000 and sibling.blob_id == entry.blob_id
    assert (sibling.lfs is None) == (entry.lfs is None) == (name == "maker/small")
    print(h.hf_hub_download(name, file, local_dir=name))
assert [m.id for m in api.list_models(search="toy", filter="gguf", sort="downloads")] == ["maker/toy"]
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(hub, clone, HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1"),
        cwd=clone,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert [(clone / path).read_bytes() == WEIGHTS for path in result.stdout.split()] == [True, True]

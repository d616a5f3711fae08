"""Ctrl-C at a moment at which Python itself loses it, and how a benchmark ends that is ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helpers import ROOT

SCRIPT = """
import os, signal, time
from benchmarks import interrupt

signal.signal(signal.SIGINT, signal.default_int_handler)
interrupt.heed()

class Garbage:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

interrupt.check()
Garbage()
try:
    interrupt.check()
    print("lost")
except KeyboardInterrupt:
    print("kept")
"""


def test_ctrl_c_in_a_finaliser_is_heard() -> None:
    result = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("kept\n", "")


ENDED = """
import os, signal
from pathlib import Path
from tempfile import TemporaryDirectory
from benchmarks import interrupt

interrupt.heed()
with TemporaryDirectory() as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_polite_kill_leaves_no_folder_and_no_traceback() -> None:
    result = subprocess.run([sys.executable, "-c", ENDED], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stderr == "interrupted\n"
    assert result.returncode != 0
    assert not Path(result.stdout.strip()).exists()


def test_what_a_person_can_mend_is_told_in_a_line(tmp_path: Path) -> None:
    no_server = [sys.executable, "--upstream", sys.executable, "--server", sys.executable]
    command = [no_server[0], "-m", "benchmarks.cost", str(tmp_path / "missing.gguf"), *no_server[1:]]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stderr.startswith(f"error: there is no model {tmp_path}")
    assert "Traceback" not in result.stderr

"""Ctrl-C at a moment at which Python itself loses it."""

from __future__ import annotations

import subprocess
import sys

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

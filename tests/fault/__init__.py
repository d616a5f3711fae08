"""Programs that try to break the server: `python -m tests.fault.NAME`.

They share modules with the tests, and find them where pytest does.
"""

import sys
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[1])
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

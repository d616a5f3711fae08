"""The program enters here, as `llama-run`, and as `python -m pyrun` in a checkout that is not installed."""

from __future__ import annotations

import signal


def main() -> None:
    # Loading takes half a second in which nothing runs yet that Ctrl-C would have to stop: the process may just end.
    heeds_ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds_ctrl_c:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pyrun.cli.main import main as run

    if heeds_ctrl_c:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()

"""Time to the first token after a restart: cold, with llama-run's cache, and with upstream's manual slot restore.

    python -m benchmarks.restart [MODEL] [--tokens 5200] [--upstream SERVER] [--repeat 5]

Cold is a fresh server with an empty cache. Warm is the same prompt after the server was stopped and started again, with
the page cache dropped where the machine allows. Upstream's way is a slot saved to a file, restored by hand before the
request; the call that restores it counts.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from rich.table import Table

from benchmarks.peer import Peer, free_port
from benchmarks.text import words
from pyrun import console
from pyrun.home import find_home
from pyrun.models.default import ensure_default_model

WARM_UP = "Hello."


def drop_page_cache() -> bool:
    subprocess.run(["sync"], check=True)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def restart(peer: Peer) -> bool:
    """Whether the page cache is empty. The model is read again, and a first short request warms the process up."""
    peer.stop()
    dropped = drop_page_cache()
    peer.start()
    peer.complete(WARM_UP, 1, cache_prompt=False)
    return dropped


def prompt_of(peer: Peer, n_tokens: int) -> list[int]:
    text = words(n_tokens, "restart")
    tokens: list[int] = peer.post("/tokenize", {"content": text, "add_special": True})["tokens"]
    return tokens[:n_tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file (default: the built-in model)")
    parser.add_argument("--tokens", type=int, default=5200)
    parser.add_argument("--upstream", type=Path, help="an unpatched llama-server to run beside it")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()

    home = find_home()
    model = options.model or ensure_default_model(home)
    flags = ["-c", "8192", "-np", "1"]
    with tempfile.TemporaryDirectory(dir=home.root) as name:
        folder = Path(name)
        ours = Peer(
            "llama-run", home.server_binary("cpu"), model, [*flags, "--cache-ssd", f"{folder}/cache"], free_port(),
            folder / "llama-run.log",
        )  # fmt: skip
        ours.start()
        prompt = prompt_of(ours, options.tokens)
        ours.complete(WARM_UP, 1, cache_prompt=False)
        cold = ours.complete(prompt, 8)
        warm_ms: list[float] = []
        dropped = False
        for _ in range(options.repeat):
            dropped = restart(ours)
            warm = ours.complete(prompt, 8)
            if warm.text != cold.text or warm.evaluated != 1 or warm.source != "cold":
                raise SystemExit(f"invalid: {warm.text!r} after {cold.text!r}; {warm.timings}")
            warm_ms.append(warm.ttft_ms)
            read = warm.timings["restore_ms"]
        ours.stop()

        table = Table(title=f"{options.tokens} tokens of {model.name}, page cache {'dropped' if dropped else 'kept'}")
        for column in ("what", "TTFT ms", "spread", "times shorter"):
            table.add_column(column, justify="left" if column == "what" else "right")
        warm_best = statistics.median(warm_ms)
        table.add_row("cold", f"{cold.ttft_ms:.0f}", "", "")
        table.add_row(
            f"llama-run after a restart (restore {read:.0f} ms)", f"{warm_best:.1f}",
            f"{min(warm_ms):.1f}-{max(warm_ms):.1f}", f"{cold.ttft_ms / warm_best:.0f}",
        )  # fmt: skip
        if options.upstream:
            slot_ms = upstream_slot(options.upstream, model, flags, folder, prompt, options.repeat)
            best = statistics.median(slot_ms)
            table.add_row(
                "upstream, slot restored by hand", f"{best:.1f}", f"{min(slot_ms):.1f}-{max(slot_ms):.1f}",
                f"{cold.ttft_ms / best:.0f}",
            )  # fmt: skip
            table.add_row("llama-run / upstream by hand", f"{warm_best / best:.2f}", "", "")
        console.out.print(table)


def upstream_slot(
    program: Path, model: Path, flags: list[str], folder: Path, prompt: list[int], repeat: int
) -> list[float]:
    slots = folder / "slots"
    slots.mkdir()
    peer = Peer(
        "upstream", program, model, [*flags, "--slot-save-path", str(slots)], free_port(), folder / "upstream.log"
    )
    peer.start()
    peer.complete(prompt, 8)
    peer.post("/slots/0?action=save", {"filename": "slot.bin"})
    out = []
    for _ in range(repeat):
        restart(peer)
        began = time.perf_counter()
        peer.post("/slots/0?action=restore", {"filename": "slot.bin"})
        restored_ms = (time.perf_counter() - began) * 1000
        out.append(restored_ms + peer.complete(prompt, 8).ttft_ms)
    peer.stop()
    return out


if __name__ == "__main__":
    main()

"""Knows where results lie. They are written as soon as they are known, so that nothing done is ever lost.

RUN/run.json                       what was asked for, on which machine, how it ended
RUN/summary.json, summary.md       all models and backends
RUN/BACKEND/MODEL/summary.json     everything about one model; summary.md and plots beside it
RUN/BACKEND/MODEL/SCENARIO/        raw.jsonl (every answer), stats.jsonl (the cache's counters), server logs
RUN/BACKEND/MODEL/restart/SIZE.json
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from benchmarks.peers import Answer
from benchmarks.records import (
    AgentResult,
    Case,
    ChatResult,
    CrowdResult,
    FleetResult,
    LoadResult,
    RestartResult,
    Result,
)
from pyrun.errors import UserError

SCHEMA = 1
SUMMARY = "summary.json"


@dataclass(frozen=True)
class Room:
    """The folder of one scenario."""

    folder: Path

    def log(self, peer: str) -> Path:
        return self.folder / f"{file_name(peer)}.log"

    def record(self, peer: str, label: str, answer: Answer) -> None:
        line = {
            "at": round(time.time(), 3),
            "peer": peer,
            "label": label,
            "ttft_ms": round(answer.ttft_ms, 3),
            "total_ms": round(answer.total_ms, 3),
            "timings": answer.timings,
            "usage": answer.usage,
            "text": answer.text,
        }
        self._append("raw.jsonl", line)

    def note_stats(self, peer: str, label: str, stats: dict[str, Any]) -> None:
        self._append("stats.jsonl", {"at": round(time.time(), 3), "peer": peer, "label": label, **stats})

    def _append(self, name: str, line: object) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@overload
def new_result(scenario: Literal["restart"], settings: dict[str, Any]) -> RestartResult: ...
@overload
def new_result(scenario: Literal["agent"], settings: dict[str, Any]) -> AgentResult: ...
@overload
def new_result(scenario: Literal["chat"], settings: dict[str, Any]) -> ChatResult: ...
@overload
def new_result(scenario: Literal["fleet"], settings: dict[str, Any]) -> FleetResult: ...
@overload
def new_result(scenario: Literal["load"], settings: dict[str, Any]) -> LoadResult: ...
@overload
def new_result(scenario: Literal["swarm", "herd"], settings: dict[str, Any]) -> CrowdResult: ...
@overload
def new_result(scenario: str, settings: dict[str, Any]) -> Result: ...
def new_result(scenario: str, settings: dict[str, Any]) -> Result:
    return {"scenario": scenario, "status": "running", "settings": settings, "problems": [], "notes": [], "failed": []}


def is_valid(result: Result) -> bool:
    return not result["problems"]


def verdict(result: Result) -> str:
    """Tables have room for a word or two."""
    return "invalid" if result["problems"] else "valid" if result["status"] == "complete" else str(result["status"])


def times_shorter(case: Case, name: str) -> float | None:
    """Says how much sooner a peer's warm start answers than the fastest cold one of all peers with the same prompt.

    Its own cold start would not do: the slower that is, the better the ratio would look.
    """
    medians = {peer: entry.get("ttft_ms", {}) for peer, entry in case["peers"].items()}
    colds = [times["cold"]["median"] for peer, times in medians.items() if "cold" in times and not is_url(peer)]
    warm = medians[name].get("warm")
    return min(colds) / warm["median"] if colds and warm and not is_url(name) else None


def is_url(peer: str) -> bool:
    """Such a server is somebody else's: never restarted or emptied, and asked other prompts in `restart`."""
    return peer.startswith(("http://", "https://"))


def file_name(text: str) -> str:
    """Makes the name of a file from a name that may hold anything, such as a URL."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in text).strip("-.") or "unnamed"


def new_run_folder(root: Path) -> Path:
    """Makes benchmarks/results/YYYYMMDD-HHMM; a second run in the same minute gets a number."""
    stamp = time.strftime("%Y%m%d-%H%M")
    for name in (stamp, *(f"{stamp}-{n}" for n in range(2, 100))):
        folder = root / name
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"cannot make {folder}: {error.strerror or error}", "give another folder: --out") from error
        return folder
    raise UserError(f"too many runs in {root} in one minute", "wait for the next one")


def chosen_run_folder(folder: Path) -> Path:
    """Takes the user's folder. It is made, if it can be, and seen to be writable before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            is_empty = not any(folder.iterdir())
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}", "give another folder: --out") from error
    if not is_empty:
        raise UserError(
            f"{folder} is not empty, and the results of two runs would be mixed",
            "give a new folder with --out, or remove what is there",
        )
    return folder


def write_json(path: Path, content: object) -> None:
    """The file is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(
            f"{path} is not valid JSON: {error}", "it was edited or cut off; run the benchmark again"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a result of `benchmark`")
    return content


def model_folders(run: Path) -> Iterator[Path]:
    """Gives the folders of a run that hold results, or the folder itself if it is one of them."""
    if not run.is_dir():
        raise UserError(f"there is no folder {run}", "results are in benchmarks/results/")
    found = [path.parent for path in sorted(run.glob(f"*/*/{SUMMARY}"))]
    if not found and (run / SUMMARY).exists() and "model" in read_json(run / SUMMARY):
        found = [run]
    if not found:
        raise UserError(f"{run} holds no results", "give the folder of a run: benchmarks/results/YYYYMMDD-HHMM")
    yield from found


def read_models(run: Path) -> list[dict[str, Any]]:
    summaries = [read_json(folder / SUMMARY) for folder in model_folders(run)]
    for summary in summaries:
        if summary.get("schema") != SCHEMA:
            raise UserError(f"{run} has results of version {summary.get('schema')}", "run the benchmark again")
    return summaries

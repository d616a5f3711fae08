"""Makes a fixture of what record.py wrote: shapes, keys, names and what changes stay; all prose and all traces go.

    cd tests; python -m agents.scrub claude-code 2.1.325 FOLDER --first 6 --home /tmp/home --project /tmp/project

Two sessions of one agent lie in the folder, of which the first has six requests. Every line of text becomes a mark (see
prose.py), equal lines the same one, so that what two requests have in common before, they have in common afterwards.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.prose import mark
from agents.record import ANSWER, COMMAND, LOOKING, Json
from agents.replay import FIXTURES

HEADERS = ("x-claude-code-session-id", "session-id", "thread-id", "x-session-id", "x-session-affinity")

# What we typed ourselves while recording.
TYPED = (
    "List what is in this folder",
    "Explain the first file",
    "Now add a test for it",
    "Find the slowest function here",
    "Make it faster",
    "Measure it again",
)
# What changes from session to session is the point of a fixture, and is kept.
CHANGES = (
    r"x-anthropic-billing-header: [ -~]*",
    r"\d{4}-\d\d-\d\d",
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z][a-z] \d\d \d{4}",
    r"\d+/\d+/\d{4}, \d+:\d\d:\d\d [AP]M",
    r"Chunk ID: [0-9a-f]{6}",
    r"Wall time: [\d.]+ seconds",
    r"/home/user(?:/project)?",
)
KEPT = re.compile("|".join([*CHANGES, *map(re.escape, (*TYPED, ANSWER, COMMAND, LOOKING))]))
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
IDS = re.compile(rf"{UUID}|\b(?:[0-9a-f]{{40}}|[0-9a-f]{{64}})\b|\bses_\w+")
LONGEST_NAME = 64


@dataclass
class Scrubber:
    """Remembers what it has replaced, so that equal things stay equal."""

    folders: Mapping[str, str]
    lines: dict[str, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        return self.string(value) if isinstance(value, str) else value

    def string(self, text: str) -> str:
        for real, ours in self.folders.items():
            text = text.replace(real, ours)
        text = IDS.sub(self._id, text)
        if text.startswith("{"):
            try:
                return json.dumps(self.value(json.loads(text)), separators=(",", ":"))
            except ValueError:
                pass  # it only looks like JSON
        if len(text) <= LONGEST_NAME and not re.search(r"\s", text):
            return text
        return "\n".join(self._line(line) for line in text.split("\n"))

    def _line(self, line: str) -> str:
        made, end = "", 0
        for kept in KEPT.finditer(line):
            made += self._mark(line[end : kept.start()]) + kept[0]
            end = kept.end()
        return made + self._mark(line[end:])

    def _mark(self, text: str) -> str:
        return mark(self.lines.setdefault(text, len(self.lines) + 1), len(text)) if text.strip() else text

    def _id(self, found: re.Match[str]) -> str:
        number = len(self.ids) + 1
        shape = found[0]
        if shape.startswith("ses_"):
            made = f"ses_{number:026}"
        elif "-" not in shape:  # a hash
            made = f"{number:0{len(shape)}x}"
        else:
            made = f"{number:08x}-0000-4000-8000-000000000000"
        return self.ids.setdefault(shape, made)


def make_fixture(agent: str, version: str, recorded: list[Json], first: int, scrubber: Scrubber) -> Json:
    """Two sessions; what all bodies agree on stands once, in `common`."""
    requests = [
        {
            "path": request["path"],
            "headers": {k.lower(): scrubber.string(v) for k, v in request["headers"].items() if k.lower() in HEADERS},
            "body": scrubber.value(request["body"]),
        }
        for request in recorded
    ]
    bodies = [request["body"] for request in requests]
    common = {k: v for k, v in bodies[-1].items() if all(body.get(k, v) == v for body in bodies)}
    for body in bodies:
        for key in common:
            if key in body:
                del body[key]
            else:
                body[key] = None  # this one goes without
    return {"agent": agent, "version": version, "common": common, "sessions": [requests[:first], requests[first:]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("agent")
    parser.add_argument("version")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, required=True, help="requests of the first session")
    parser.add_argument("--home", required=True, help="the agent's home folder while it was recorded")
    parser.add_argument("--project", required=True, help="the folder it worked in")
    options = parser.parse_args()
    recorded = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(options.folder.glob("*.json"))]
    recorded = [request for request in recorded if request["method"] == "POST"]
    # Claude Code writes folders with dashes for slashes, too.
    folders = {
        options.project: "/home/user/project",
        options.home: "/home/user",
        "/root": "/home/user",
        options.project.replace("/", "-"): "-home-user-project",
    }
    fixture = make_fixture(options.agent, options.version, recorded, options.first, Scrubber(folders))
    path = FIXTURES / f"{options.agent}.json"
    path.write_text(json.dumps(fixture, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path}: {len(recorded)} requests, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

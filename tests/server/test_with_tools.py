"""Our tools as upstream's web page uses them: listed and called through the server, by local pages only."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest
import requests
from cache_server import CacheServer, Serve, say, toy
from helpers import ROOT

from pyrun.tools.mcp_config import write_config
from toys.corpus import TEXT

pytestmark = pytest.mark.server


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tool server finds its memory."""
    made = tmp_path / "clone"
    (made / "llama.cpp").mkdir(parents=True)
    shutil.copy(ROOT / "llama.cpp" / "upstream.toml", made / "llama.cpp")
    monkeypatch.setenv("LLAMA_RUN_HOME", str(made))
    return made


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


def call(server: CacheServer, tool: str, **arguments: str) -> str:
    return server.request("POST", "/tools", {"tool": f"llama-run_{tool}", "params": arguments}).text


def test_a_page_of_this_machine_lists_and_calls_tools_and_no_other_does(serve: Serve, clone: Path, work: Path) -> None:
    (work / "note.txt").write_text("Rosinante")
    config = clone / "memory" / "mcp-servers.json"
    write_config(config, work)
    server = serve(toy("dense"), "--ctx-size", "512", "--mcp-servers-config", str(config))

    assert "llama-run_read_file" in {tool["tool"] for tool in server.get("/tools")}
    assert "Rosinante" in call(server, "read_file", path="note.txt")
    assert "leads out of" in call(server, "read_file", path="../clone/memory/mcp-servers.json")
    assert "allow" in call(server, "write_file", path="note.txt", content="Bucephalus")
    assert (work / "note.txt").read_text() == "Rosinante"
    call(server, "set_fact", name="horse", value="Rosinante")
    assert "Rosinante" in call(server, "get_fact", name="horse")

    for headers in ({"Origin": "https://example.org"}, {"Host": "example.org"}):
        assert requests.get(f"{server.url}/tools", headers=headers, timeout=30).status_code == 403
    local = requests.get(f"{server.url}/tools", headers={"Origin": server.url}, timeout=30)
    assert local.status_code == 200 and local.headers["Access-Control-Allow-Origin"] == server.url


def test_a_fact_that_left_the_chat_is_found_by_the_tool_server_after_everything_was_killed(
    serve: Serve, clone: Path, work: Path
) -> None:
    """Told in turn 3, dropped by turn 40, killed then, asked for in turn 50."""
    config = clone / "memory" / "mcp-servers.json"
    write_config(config, work)
    flags = ("--ctx-size", "1024", "--parallel", "1", "--context-overflow", "evict")
    flags += ("--context-spool", str(clone / "memory" / "spool"), "--mcp-servers-config", str(config))
    lines = TEXT.splitlines()
    history = [say("system", "You are brief.")]

    def turn(server: CacheServer, text: str) -> int:
        """Gives the number of messages that were left out."""
        history.append(say("user", text))
        answer = server.chat(history, max_tokens=2)
        history.append(say("assistant", f"Fine: {answer.text}"))
        return int(answer.timings.get("context_dropped", {}).get("messages", 0))

    server = serve(toy("dense"), *flags)
    n_dropped = 0
    for number in range(1, 41):
        told = "my bicycle is called Rosinante" if number == 3 else lines[number % len(lines)][:80]
        n_dropped = turn(server, f"Turn {number}: {told}.")
    assert n_dropped >= 6, "the fact of turn 3 has left the chat"
    everything = psutil.Process(server.process.pid).children(recursive=True)
    assert everything, "the tool server is a process of its own"
    server.kill()
    for process in everything:
        process.kill()

    server = serve(toy("dense"), *flags)
    for number in range(41, 50):
        turn(server, f"Turn {number}: {lines[number % len(lines)][:80]}.")
    found = call(server, "search_memory", query="what is the name of my bicycle")
    assert "Turn 3: my bicycle is called Rosinante." in found
    assert found.count("Rosinante") == 1, "it is there once"
    turn(server, f"Turn 50: {found}")
    assert "Rosinante" in server.post("/apply-template", {"messages": history})["prompt"]

"""Our tools as upstream's web page uses them: listed and called through the server, by local pages only."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import requests
from cache_server import Serve, toy
from helpers import ROOT

from pyrun.tools.mcp_config import write_config

pytestmark = pytest.mark.server


def test_a_page_of_this_machine_lists_and_calls_tools_and_no_other_does(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, root, config = tmp_path / "clone", tmp_path / "work", tmp_path / "clone" / "memory" / "mcp-servers.json"
    (clone / "llama.cpp").mkdir(parents=True)
    shutil.copy(ROOT / "llama.cpp" / "upstream.toml", clone / "llama.cpp")
    monkeypatch.setenv("LLAMA_RUN_HOME", str(clone))
    root.mkdir()
    (root / "note.txt").write_text("Rosinante")
    write_config(config, root)
    server = serve(toy("dense"), "--ctx-size", "512", "--mcp-servers-config", str(config))

    assert "llama-run_read_file" in {tool["tool"] for tool in server.get("/tools")}

    def call(tool: str, **arguments: str) -> str:
        return server.request("POST", "/tools", {"tool": f"llama-run_{tool}", "params": arguments}).text

    assert "Rosinante" in call("read_file", path="note.txt")
    assert "leads out of" in call("read_file", path="../clone/memory/mcp-servers.json")
    assert "allow" in call("write_file", path="note.txt", content="Bucephalus")
    assert (root / "note.txt").read_text() == "Rosinante"
    call("set_fact", name="horse", value="Rosinante")
    assert "Rosinante" in call("get_fact", name="horse")

    for headers in ({"Origin": "https://example.org"}, {"Host": "example.org"}):
        assert requests.get(f"{server.url}/tools", headers=headers, timeout=30).status_code == 403
    local = requests.get(f"{server.url}/tools", headers={"Origin": server.url}, timeout=30)
    assert local.status_code == 200 and local.headers["Access-Control-Allow-Origin"] == server.url

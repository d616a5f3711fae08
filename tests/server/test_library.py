"""The library with the real server: its page's examples, and joining and starting."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from cache_server import Serve, smollm2, toy
from helpers import ROOT, free_port, is_running
from stores import make_built_clone

from pyrun import Engine
from pyrun.errors import UserError

pytestmark = pytest.mark.server

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(encoding="utf-8"), re.DOTALL)


def test_examples_of_the_page_work(
    serve: Serve, kv: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(smollm2(), "--ctx-size", "2048", cache=kv)
    monkeypatch.setenv("LLAMA_ARG_PORT", str(server.port))
    expected = (
        r"\d+ ms, \d+% of the prompt reused, from \w+",
        r"\d+ tokens were evaluated",
        r"\d\d tokens were reused",
        r"it ended with (stop|length|tool_calls)",
    )
    assert len(EXAMPLES) == len(expected)
    for example, last_line in zip(EXAMPLES, expected, strict=True):
        exec(compile(example, "docs/library.md", "exec"), {})
        assert re.fullmatch(last_line, capsys.readouterr().out.splitlines()[-1])


def test_second_answer_says_that_it_reused_the_first(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), "--ctx-size", "2048", "--api-key", "k", cache=kv)
    with Engine(url=f"127.0.0.1:{server.port}", key="k") as engine:
        first = engine.generate("A long beginning that is the same. " * 5, max_tokens=2, temperature=0)
        again = engine.generate("A long beginning that is the same. " * 5, max_tokens=2, temperature=0)
    assert first.reuse_ratio == 0 and again.reuse_ratio > 0.9 and again.text == first.text
    assert again.tokens_evaluated == 1 and again.source != "none" and again.ttft_ms > 0
    with pytest.raises(UserError, match="refuses to answer"):
        Engine(url=server.url, key="wrong")
    assert server.request("GET", "/health").status_code == 200, "a server that was joined goes on"


def test_prompt_that_was_warmed_is_planned_and_answered_without_evaluating_it_again(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), "--ctx-size", "2048", cache=kv)
    system = {"role": "system", "content": "A long beginning that is the same. " * 5}
    messages = [system, {"role": "user", "content": "Hello!"}]
    with Engine(url=server.url) as engine:
        before = engine.plan(messages)
        warmed = engine.warm([system])
        after = engine.plan(messages)
        answer = engine.chat(messages, max_tokens=2, temperature=0)
    assert (before["reused"], before["evaluated"]) == (0, before["tokens"])
    assert warmed["evaluated"] == warmed["tokens"] > 0 and warmed["on_disk"]
    assert (after["tokens"], after["reused"]) == (before["tokens"], warmed["tokens"])
    assert answer.tokens_evaluated == after["evaluated"]


def test_server_is_started_where_none_runs_and_ends_with_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_built_clone(tmp_path)
    (root / "llama-run.toml").write_text('[server]\nno-build = true\nbackend = "cpu"\nctx = 512\n')
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    monkeypatch.setattr("pyrun.cli.background.own_command", lambda: [sys.executable, "-m", "pyrun"])
    port = free_port()
    with Engine(str(smollm2()), port=port) as engine:
        started = engine._started
        assert started and is_running(started.pid)
        assert Engine(port=port).chat([{"role": "user", "content": "Hello!"}], max_tokens=2).text
        with pytest.raises(UserError, match=", not qwen"):
            Engine("qwen", port=port)
        assert is_running(started.pid), "who joined it does not end it"
    assert not is_running(started.pid)

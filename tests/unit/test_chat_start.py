"""The server that a chat starts: it listens where the chat looks, and one that has ended is not waited for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers import free_port, is_running
from stores import make_clone

from pyrun.chat import local
from pyrun.chat.local import Start, local_server
from pyrun.errors import UserError
from pyrun.home import Home

# They stand for the launcher: their words are those of `llama-run`.
ENDS = "import json, sys; print('words:', json.dumps(sys.argv[1:])); print('error: no room'); sys.exit(1)"
SERVES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from fakes.routing_server import RoutingServer
print("pid", os.getpid(), flush=True)
RoutingServer(["a-toy"], port=int(sys.argv[sys.argv.index("--port") + 1])).serve_forever()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    root = make_clone(tmp_path)
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    return Home(root)


def test_a_launcher_that_has_ended_is_not_waited_for_and_its_last_words_are_shown(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "llama_run_command", lambda: [sys.executable, "-c", ENDS])
    port = free_port()
    home.settings.write_text(f"[server]\nport = {port}\n[models.toy]\nport = 1\n")
    with pytest.raises(UserError) as caught, local_server(home, Start("toy", ("--no-build",), ("--temp", "1"))):
        pass
    said = caught.value.message.splitlines()
    assert said[0] == "the server did not start:" and said[-1] == "error: no room"
    assert str(home.logs / "chat-server.log") in (caught.value.hint or "")
    words = json.loads(said[-2].removeprefix("words: "))
    where = ["--host", "127.0.0.1", "--port", str(port)]
    assert words == ["--server", "toy", "--no-build", "--", "--temp", "1", *where], "its own port does not count"


def test_a_server_is_found_where_it_was_started_and_ends_with_the_chat(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = str(Path(__file__).parents[1])
    monkeypatch.setattr(local, "llama_run_command", lambda: [sys.executable, "-c", SERVES, tests])
    port = free_port()
    monkeypatch.setenv("LLAMA_ARG_PORT", str(port))
    with local_server(home, Start("models/other-name.gguf")) as endpoint:
        assert (endpoint.url, endpoint.model) == (f"http://127.0.0.1:{port}", "a-toy")
        pid = int((home.logs / "chat-server.log").read_text().split()[1])
        with local_server(home, Start("toy")) as joined:
            assert joined == endpoint
        assert is_running(pid), "who joined it does not end it"
        with pytest.raises(UserError, match="does not serve qwen"), local_server(home, Start("qwen")):
            pass
    assert not is_running(pid)

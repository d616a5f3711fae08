"""The library against a server that lies, breaks off and refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import psutil
import pytest

from pyrun import Engine
from pyrun.errors import UserError
from pyrun.server.served import Served
from pyrun.service import background


class Double(BaseHTTPRequestHandler):
    """Stands for llama-server. What it does wrong is in `fault`."""

    fault: ClassVar[str] = ""
    asked: ClassVar[list[tuple[str, Any]]] = []
    n_loading: ClassVar[int] = 0  # so many times it says that it loads its model
    go_on: ClassVar[threading.Event] = threading.Event()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if Double.n_loading > 0:
            Double.n_loading -= 1
            self._json({"error": {"message": "Loading model"}}, 503)
            return
        self._json({"status": "ok", "data": [{"id": "toy"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, body))
        if self.path in ("/cache/warm", "/cache/plan"):
            self._json({"tokens": 7})
        elif self.fault == "refuses":
            self._json({"error": {"message": "the prompt is too long"}}, 400)
        elif body.get("stream"):
            self._stream(self.path)
        else:
            self._complete(cold=body.get("cache_prompt") is False)

    def _json(self, content: object, status: int = 200) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _complete(self, cold: bool) -> None:
        second = {"wrong": 3, "tie": 4}.get(self.fault, 2) if not cold else 2
        likely = [{"id": 2, "logprob": -0.70}, {"id": 4, "logprob": -0.71}, {"id": 3, "logprob": -5.0}]
        entries = [{"id": 1, "top_logprobs": [{"id": 1, "logprob": 0.0}]}, {"id": second, "top_logprobs": likely}]
        timings = {"cache_n": 0 if cold else 5, "prompt_n": 6 if cold else 1}
        self._json({"content": f"1 {second}", "completion_probabilities": entries, "timings": timings})

    def _stream(self, path: str) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.fault == "calls":
            self._call()
            return
        for piece in ("Hel", "lö"):
            chat = {"choices": [{"delta": {"content": piece}}]}
            self._event(chat if "chat" in path else {"content": piece})
        if self.fault == "breaks":
            self._write('error: {"message": "out of memory"}')
            return
        ended = {"choices": [{"delta": {}, "finish_reason": "length"}]}
        last = ended if "chat" in path else {"content": "", "stop": True, "stop_type": "limit"}
        self._event({**last, "timings": {"cache_n": 3, "prompt_n": 1, "cache_source": "warm"}})
        self._write("data: [DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _call(self) -> None:
        """It thinks, and then has two functions called at once, as llama-server streams them."""
        self._delta({"role": "assistant", "content": None})
        self._delta({"reasoning_content": "The weather, "})
        self.go_on.wait(10)
        self._delta({"reasoning_content": "and the time."})
        for index, name in enumerate(("weather", "time")):
            started = {"index": index, "id": f"call-{index}", "type": "function"}
            self._delta({"tool_calls": [started | {"function": {"name": name, "arguments": "{"}}]})
        for index, piece in ((0, '"city": '), (1, "}"), (0, '"Rome"}')):
            self._delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "timings": {"prompt_n": 1}})
        self._write("data: [DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _delta(self, delta: object) -> None:
        self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    def _event(self, content: object) -> None:
        self._write(f"data: {json.dumps(content)}")

    def _write(self, line: str) -> None:
        data = f"{line}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


@pytest.fixture
def engine() -> Iterator[Engine]:
    Double.fault = ""
    Double.asked.clear()
    Double.go_on.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Double) as server:
        threading.Thread(target=server.serve_forever).start()
        with Engine(url=f"127.0.0.1:{server.server_port}") as engine:
            yield engine
        server.shutdown()


@pytest.mark.parametrize(("fault", "is_same"), [("", True), ("wrong", False), ("tie", True)])
def test_verify_finds_a_wrong_reuse(engine: Engine, fault: str, is_same: bool) -> None:
    Double.fault = fault
    (found,) = engine.verify(["a prompt"])
    assert found.is_same is is_same and found.tokens_reused == 5
    assert (found.reused == found.cold) is (fault == "")


def test_answer_has_text_and_what_it_cost(engine: Engine) -> None:
    for answer in (engine.generate("x", user="alice"), engine.chat([{"role": "user", "content": "x"}], temperature=1)):
        assert answer.text == "Hellö" and answer.ttft_ms > 0
        assert (answer.reuse_ratio, answer.source, answer.tokens_evaluated) == (0.75, "warm", 1)
        assert (answer.reasoning, answer.tool_calls, answer.finish_reason) == ("", [], "length")
    (_, completion), (_, chat) = Double.asked
    assert completion["llama_user_id"] == "alice" and completion["n_predict"] == 256
    assert chat["temperature"] == 1 and "llama_user_id" not in chat


def test_stream_gives_pieces_and_then_the_whole(engine: Engine) -> None:
    stream = engine.chat_stream([{"role": "user", "content": "x"}])
    assert list(stream) == ["Hel", "lö"] and stream.answer and stream.answer.text == "Hellö"
    assert stream.wait() == stream.answer


def test_answer_that_calls_has_its_calls_and_what_it_thought(engine: Engine) -> None:
    Double.fault = "calls"
    threading.Timer(5, Double.go_on.set).start()
    answer = engine.chat([{"role": "user", "content": "x"}], tools=[])
    assert (answer.text, answer.reasoning) == ("", "The weather, and the time.")
    assert answer.tool_calls == [
        {"id": "call-0", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}},
        {"id": "call-1", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ]
    assert answer.finish_reason == "tool_calls"
    assert answer.ttft_ms < 4900, "its first token was one of reasoning, five seconds before the rest"


def test_trouble_is_an_error_with_the_servers_own_words(engine: Engine) -> None:
    Double.fault = "breaks"
    with pytest.raises(UserError, match="out of memory"):
        engine.generate("x")
    Double.fault = "refuses"
    with pytest.raises(UserError) as refused:
        engine.chat([])
    assert "400" in refused.value.message and refused.value.hint == "the prompt is too long"


def test_no_server_is_an_error(engine: Engine) -> None:
    with pytest.raises(UserError, match="no server answers"):
        Engine(url="127.0.0.1:1")


def test_a_start_that_takes_long_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([None, None, 503, 200])
    monkeypatch.setattr(background, "start", lambda *_: this_process())
    monkeypatch.setattr("pyrun.engine.health", lambda _: next(answers))
    monkeypatch.setattr("pyrun.engine.SILENT_SECONDS", 0.0)
    monkeypatch.setattr("pyrun.engine.choose_served", lambda *_, **__: Served("toy"))
    Engine(port=9, keep=True).close()
    assert capsys.readouterr().err.replace("\n", " ").count("launcher.log shows how far") == 1


def this_process() -> background.Started:
    me = psutil.Process()
    return background.Started(9, me.pid, me.create_time(), "http://127.0.0.1:9", "launcher.log", "server.log")


def test_a_server_that_loads_is_waited_for_and_one_that_was_begun_is_not_started_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Double.n_loading = 3
    assert Engine(url=engine.url).model == "toy" and Double.n_loading == 0
    answers = iter([None, 503, 200])
    monkeypatch.setattr(background, "find", lambda *_: this_process())
    monkeypatch.setattr("pyrun.engine.health", lambda _: next(answers))
    monkeypatch.setattr("pyrun.engine.choose_served", lambda *_, **__: Served("toy"))
    monkeypatch.setattr(background, "stop", lambda *_: pytest.fail("it belongs to somebody else"))
    Engine(port=9).close()


def test_a_start_that_is_interrupted_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = []
    monkeypatch.setattr(background, "start", lambda *_: this_process())
    monkeypatch.setattr(background, "stop", lambda _, started: stopped.append(started.port))
    monkeypatch.setattr("pyrun.engine.time.sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Engine(port=9)
    assert stopped == [9]


def test_a_server_with_another_model_is_not_joined(engine: Engine) -> None:
    assert Engine("models/TOY.gguf", url=engine.url).model == "toy"
    with pytest.raises(UserError, match="serves toy, not qwen"):
        Engine("qwen", url=engine.url)


def test_prompts_and_conversations_are_warmed_and_planned(engine: Engine) -> None:
    messages = [{"role": "system", "content": "x"}]
    assert engine.warm("text") == engine.plan(messages, user="bob") == {"tokens": 7}
    assert Double.asked == [
        ("/cache/warm", {"prompt": "text"}),
        ("/cache/plan", {"messages": messages, "llama_user_id": "bob"}),
    ]

"""Other models are asked."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from fakes.dialects import Reply
from fakes.model_server import model_server
from helpers import wait_until
from tool_fixtures import Bench, call, refusal, stopped_call

from pyrun.errors import UserError
from pyrun.providers.ask import ask
from pyrun.providers.known import Provider


@pytest.mark.parametrize(("protocol", "path"), [("openai", "/v1"), ("anthropic", "")])
def test_other_models_are_asked_in_their_language_and_keys_stay_secret(protocol: str, path: str, bench: Bench) -> None:
    def script(body: dict[str, Any]) -> Reply:
        return Reply(status=401, error="the key sk-1 is wrong") if body["model"] == "broken" else Reply(["Because."])

    with model_server(script, "sk-1") as server:
        url = f"{server.url}{path}"
        provider = Provider("big", url, protocol, "m", "sk-1", "It knows much.")
        box = bench.box(providers=[provider])
        assert call(box, "ask_big", question="Why?", system="Be brief.", max_tokens=50) == "Because."
        [told] = server.requests
        assert "Why?" in json.dumps(told["messages"][-1])
        assert "Be brief." in json.dumps(told)
        assert told["max_tokens"] == 50
        assert "sk-1" not in bench.log.read_text()
        with pytest.raises(UserError) as refused:
            ask(Provider("big", url, protocol, "broken", "sk-1"), "Why?")
        assert "did not answer" in refused.value.message
        assert "sk-1" not in refused.value.message
    assert "did not answer" in refusal(bench.box(providers=[provider]), "ask_big", question="Why?")


def test_a_cancelled_question_does_not_wait_for_a_silent_model(bench: Bench) -> None:
    speaks = threading.Event()

    def script(_: dict[str, Any]) -> Reply:
        speaks.wait(30)
        return Reply(["Because."])

    with model_server(script) as server:
        box = bench.box(providers=[Provider("big", f"{server.url}/v1", "openai", "m")])
        try:
            assert "the call was cancelled" in stopped_call(box, "ask_big", question="Why?")
            # What is asked in the background takes memory, which another test would count as its own.
            wait_until(lambda: bool(server.bodies), 60, "the model was asked")
        finally:
            speaks.set()

"""What a chat has evaluated ahead: once for each cut, and given up when a question comes."""

from __future__ import annotations

from fakes.dialects import Reply
from fakes.model_server import model_server
from helpers import wait_until

from pyrun.chat.ahead import Ahead
from pyrun.providers.events import Request
from pyrun.providers.known import LOCAL, Provider

REQUEST = Request([{"role": "user", "content": "What was said before"}], (), 1, "talk")


def test_a_cut_is_prepared_once_and_a_question_goes_first() -> None:
    ahead = Ahead()
    with model_server(lambda body: Reply(["word "] * 2000, pause=0.05)) as server:
        local = Provider("local", f"{server.url}/v1", "openai", "m", kind=LOCAL)
        ahead.start(local, REQUEST, "first cut")
        wait_until(lambda: len(server.bodies) == 1, 30, "it is asked for")
        ahead.stop()
        assert server.gone.wait(30), "the server goes on for nobody"

        server.script = lambda body: Reply(["word "])
        ahead.start(local, REQUEST, "first cut")
        wait_until(lambda: ahead._connection is None, 30, "it is done")
        ahead.start(local, REQUEST, "first cut")
        assert ahead._connection is None
        ahead.start(local, REQUEST, "second cut")
        wait_until(lambda: ahead._connection is None, 30, "it is done")
        assert len(server.bodies) == 3


def test_a_server_that_is_not_there_costs_nothing() -> None:
    ahead = Ahead()
    ahead.start(Provider("local", "http://127.0.0.1:1/v1", "openai", "m", kind=LOCAL), REQUEST, "cut")
    wait_until(lambda: ahead._connection is None, 30, "it is given up")
    ahead.stop()

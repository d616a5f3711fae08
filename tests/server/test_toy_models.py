"""Every kind of memory loads in the built server and answers, with plain and with quantised K/V."""

from __future__ import annotations

import pytest
from helpers import ROOT
from server_fixtures import StartServer

import toys

pytestmark = pytest.mark.server


@pytest.mark.parametrize("flags", [(), ("-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on")], ids=["f16", "q8_0"])
@pytest.mark.parametrize("name", toys.MODELS)
def test_toy_model_answers(start_server: StartServer, name: str, flags: tuple[str, ...]) -> None:
    server = start_server(toys.ensure(name, ROOT / ".cache" / "toys"), "--ctx", "2048", "--", *flags)
    messages = [
        {"role": "system", "content": "You are a toy. 你好 \N{LLAMA}"},
        {"role": "user", "content": "Hello!"},
    ]
    body = {"messages": messages, "max_tokens": 16, "temperature": 0}
    answer = server.post("/v1/chat/completions", body).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["message"]["content"].isascii()
    again = server.post("/v1/chat/completions", body | {"cache_prompt": False}).json()
    assert again["choices"][0]["message"]["content"] == answer["choices"][0]["message"]["content"]
    assert server.stop() == 0

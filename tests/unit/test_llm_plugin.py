"""The plugin for llm, without llm: what it asks the server for."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pydantic
import pytest
from fakes.routing_server import RoutingServer, routing_server
from helpers import ROOT


class ModelError(Exception):
    pass


class TextPart(SimpleNamespace):
    text: str


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model that llm is given, with as much of llm as it needs."""
    llm, parts = ModuleType("llm"), ModuleType("llm.parts")
    vars(llm).update(Model=object, Options=pydantic.BaseModel, ModelError=ModelError, hookimpl=lambda made: made)
    vars(llm).update(dict.fromkeys(("Prompt", "Response", "Conversation"), object))
    vars(parts).update(TextPart=TextPart)
    monkeypatch.setitem(sys.modules, "llm", llm)
    monkeypatch.setitem(sys.modules, "llm.parts", parts)
    spec = importlib.util.spec_from_file_location("llm_llama_run", ROOT / "llm-llama-run" / "llm_llama_run.py")
    assert spec and spec.loader
    plugin = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "llm_llama_run", plugin)
    spec.loader.exec_module(plugin)
    registered: list[Any] = []
    plugin.register_models(registered.append)
    return registered[0]


@pytest.fixture
def router() -> Iterator[RoutingServer]:
    with routing_server(["small", "large"]) as server:
        yield server


def answer(model: Any, /, **options: Any) -> tuple[str, Any]:
    said = SimpleNamespace(role="user", parts=[TextPart(text="Who?")])
    response = SimpleNamespace(set_usage=lambda **usage: None)
    prompt = SimpleNamespace(options=model.Options(**options), messages=[said])
    return "".join(model.execute(prompt, True, response, None)), response


def test_a_model_of_several_is_named_by_an_option(model: Any, router: RoutingServer) -> None:
    text, response = answer(model, url=router.url, model="lar")
    assert text == "large says so." and response.response_json["timings"]["cache_source"] == "warm"
    assert router.asked == [("/v1/chat/completions", "large")]


def test_without_one_the_error_says_which_there_are(model: Any, router: RoutingServer) -> None:
    with pytest.raises(ModelError, match="several models .name one of them: small, large"):
        answer(model, url=router.url)

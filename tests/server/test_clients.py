"""Real clients against the real server on the default model: what an agent does."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from server_fixtures import Server

pytestmark = pytest.mark.server

WEATHER = {"Rome": "Rain, 12 degrees", "Oslo": "Snow, -2 degrees", "Cairo": "Sun, 35 degrees"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
QUESTION = "What is the weather in {}?"


@pytest.fixture
def openai_client(default_server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{default_server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def anthropic_client(default_server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=default_server.url, api_key="none", max_retries=0)


def test_openai_chat_is_answered(openai_client: openai.OpenAI) -> None:
    answer = openai_client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Say hello."}], max_tokens=16, temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None and 0 < answer.usage.completion_tokens <= 16


def test_openai_stream_is_the_whole_answer(openai_client: openai.OpenAI) -> None:
    request: dict[str, Any] = {
        "model": "any",
        "messages": [{"role": "user", "content": "Count to five."}],
        "max_tokens": 24,
        "temperature": 0,
    }
    whole = openai_client.chat.completions.create(**request)
    chunks = list(openai_client.chat.completions.create(**request, stream=True))
    assert len(chunks) > 3
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content


def test_openai_tool_call_comes_back(openai_client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
    # A small model learns from the history what a call looks like.
    messages: list[Any] = []
    for number, (city, weather) in enumerate(WEATHER.items()):
        function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
        messages += [
            {"role": "user", "content": QUESTION.format(city)},
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": weather},
            {"role": "assistant", "content": f"{weather} in {city}."},
        ]
    messages.append({"role": "user", "content": QUESTION.format("Paris")})
    request: dict[str, Any] = {"model": "any", "tools": tools, "temperature": 0, "max_tokens": 64}

    first = openai_client.chat.completions.create(messages=messages, **request)
    call: Any = (first.choices[0].message.tool_calls or [None])[0]
    assert call is not None and first.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Paris"}

    messages += [
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Fog, 9 degrees"},
    ]
    second = openai_client.chat.completions.create(messages=messages, **request)
    assert "Fog, 9 degrees" in (second.choices[0].message.content or "")

    streamed = openai_client.chat.completions.create(messages=messages[:-2], stream=True, **request)
    pieces = [c for chunk in streamed if chunk.choices for c in chunk.choices[0].delta.tool_calls or []]
    assert json.loads("".join(p.function.arguments or "" for p in pieces if p.function)) == {"city": "Paris"}


def test_anthropic_chat_is_answered(anthropic_client: anthropic.Anthropic) -> None:
    answer = anthropic_client.messages.create(
        model="any",
        max_tokens=16,
        system="You are brief.",
        messages=[{"role": "user", "content": "Say hello."}],
    )
    assert answer.content[0].type == "text" and answer.content[0].text
    assert 0 < answer.usage.output_tokens <= 16


def test_anthropic_stream_ends_with_text(anthropic_client: anthropic.Anthropic) -> None:
    with anthropic_client.messages.stream(
        model="any", max_tokens=16, messages=[{"role": "user", "content": "Count to five."}]
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text and final.content[0].type == "text" and final.content[0].text == text


def test_anthropic_tool_call_comes_back(anthropic_client: anthropic.Anthropic) -> None:
    messages: list[Any] = []
    for number, (city, weather) in enumerate(WEATHER.items()):
        use = {"type": "tool_use", "id": f"t{number}", "name": "get_weather", "input": {"city": city}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": weather}
        messages += [
            {"role": "user", "content": QUESTION.format(city)},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": f"{weather} in {city}."},
        ]
    messages.append({"role": "user", "content": QUESTION.format("Paris")})
    request: dict[str, Any] = {
        "model": "any",
        "max_tokens": 64,
        "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
        "extra_body": {"temperature": 0},
    }
    first = anthropic_client.messages.create(messages=messages, **request)
    call = next(block for block in first.content if block.type == "tool_use")
    assert call.name == "get_weather" and call.input == {"city": "Paris"} and first.stop_reason == "tool_use"

    messages += [
        {"role": "assistant", "content": [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Fog, 9 degrees"}]},
    ]
    second = anthropic_client.messages.create(messages=messages, **request)
    assert any("Fog, 9 degrees" in block.text for block in second.content if block.type == "text")

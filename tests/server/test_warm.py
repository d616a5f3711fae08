"""A prompt that was prepared is not evaluated when it is asked, whatever follows it, also after a restart."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import requests
from cache_server import CacheServer, Serve, say, smollm2, toy
from helpers import ROOT, wait_until

import toys
from toys.corpus import TEXT

pytestmark = pytest.mark.server

FLAGS = ("--parallel", "2", "--ctx-size", "4096", "--no-kv-unified")
SYSTEM = say("system", " ".join(TEXT.split()[:220]))
QUESTION = say("user", "What is the weather like?")
TOOL = {"name": "get_weather", "description": "Says the weather.", "parameters": {"type": "object", "properties": {}}}
KINDS = [*toys.MODELS, "SmolLM2"]


def model_of(kind: str) -> Path:
    return smollm2() if kind == "SmolLM2" else toy(kind)


def warm(server: CacheServer, **body: Any) -> dict[str, Any]:
    return dict(server.post("/cache/warm", body))


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_follows_a_prepared_prompt_is_evaluated_before_and_after_a_restart(
    serve: Serve, kv: Path, kind: str
) -> None:
    server = serve(model_of(kind), *FLAGS, cache=kv)
    done = warm(server, messages=[SYSTEM])
    assert done["evaluated"] == done["tokens"] > 100 and done["restored"] == 0 and done["on_disk"], done
    again = warm(server, messages=[SYSTEM])
    assert (again["tokens"], again["evaluated"], again["restored"]) == (done["tokens"], 0, done["tokens"])
    prompt = server.prompt([SYSTEM, QUESTION])
    asked = server.chat([SYSTEM, QUESTION])
    assert asked.reused == done["tokens"] and asked.prompt_size == len(prompt)
    server.stop()

    server = serve(model_of(kind), *FLAGS, cache=kv)
    other = say("user", "And who are you?")
    later = server.chat([SYSTEM, other])
    assert later.reused >= done["tokens"] and later.source == "cold"
    # A server without the cache evaluates the same tokens in the same two pieces, and never stops.
    plain = serve(model_of(kind), *FLAGS)
    plain.complete(prompt[: done["tokens"]], n_predict=0)
    assert plain.chat([SYSTEM, QUESTION]).said == asked.said
    assert plain.chat([SYSTEM, other]).apart(later) < 0.1, "in other pieces, for a few words more were there"


@pytest.mark.parametrize("kind", KINDS)
def test_the_words_of_both_vendors_prepare_a_prompt_before_and_after_a_restart(
    serve: Serve, kv: Path, kind: str
) -> None:
    server = serve(model_of(kind), *FLAGS, cache=kv)
    claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    system: Any = [{"type": "text", "text": SYSTEM["content"], "cache_control": {"type": "ephemeral"}}]
    tools: Any = [{"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}]
    # A message must be there; behind the mark it only fills the user's place.
    filler: Any = [{"role": "user", "content": "warmup"}]
    made = claude.messages.create(model="any", max_tokens=0, system=system, tools=tools, messages=filler)
    assert made.content == [] and made.stop_reason == "max_tokens" and made.usage.output_tokens == 0
    assert (made.usage.cache_creation_input_tokens or 0) > 100
    asked = claude.messages.create(
        model="any", max_tokens=4, system=system, tools=tools, messages=[{"role": "user", "content": "Hello, you"}]
    )
    assert asked.usage.cache_read_input_tokens == made.usage.cache_creation_input_tokens

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    instructions = "Another text, " + SYSTEM["content"]
    options: Any = {"prompt_cache_options": {"prewarm": True}}
    prepared = client.responses.create(model="any", instructions=instructions, input=[], extra_body=options)
    assert prepared.status == "completed" and prepared.output == [] and prepared.usage is not None
    answer = client.responses.create(model="any", instructions=instructions, input="Hello", max_output_tokens=4)
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cached_tokens == prepared.usage.input_tokens > 100
    server.stop()

    server = serve(model_of(kind), *FLAGS, cache=kv)
    claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    question: Any = [{"role": "user", "content": "And who are you?"}]
    asked = claude.messages.create(model="any", max_tokens=4, system=system, tools=tools, messages=question)
    assert (asked.usage.cache_read_input_tokens or 0) >= (made.usage.cache_creation_input_tokens or 0)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    answer = client.responses.create(model="any", instructions=instructions, input="Who?", max_output_tokens=4)
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cached_tokens >= prepared.usage.input_tokens


def test_a_prompt_and_a_conversation_with_tools_are_prepared_under_both_names(serve: Serve, kv: Path) -> None:
    server = serve(smollm2(), *FLAGS, cache=kv)
    text = " ".join(TEXT.split()[:120])
    done = dict(server.post("/v1/warm", {"prompt": text}))
    assert server.complete(text + " and the rest").reused == done["tokens"]
    talk = [SYSTEM, QUESTION, say("assistant", "Sunny."), say("user", "And tomorrow?")]
    body = {"messages": talk, "tools": [{"type": "function", "function": TOOL}]}
    done = warm(server, **body)
    asked = server.chat(talk, tools=body["tools"])
    assert asked.reused == done["tokens"] and asked.prompt_size - asked.reused < 8
    assert server.get("/v1/stats")["warm"]["done"] == 2


def test_preparing_waits_for_requests_and_goes_on_behind_them(serve: Serve, kv: Path) -> None:
    server = serve(smollm2(), "--parallel", "1", "--ctx-size", "4096", "--batch-size", "64", cache=kv)
    long = say("system", " ".join(TEXT.split()[:700]))
    result: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: result.update(warm(server, messages=[long])))
    thread.start()
    wait_until(lambda: server.cache()["warm"]["evaluated"] > 128, 60, "warming")
    asked = server.chat([QUESTION])
    assert thread.is_alive(), "the request waited until all was prepared"
    assert asked.text
    thread.join()
    assert result["interrupted"] == 1 and result["on_disk"]
    after = server.chat([long, QUESTION])
    assert after.reused == result["tokens"]
    # What was evaluated before the request came was kept.
    assert server.flush()["requests"]["tokens_evaluated"] < result["tokens"] + 300


def test_nothing_is_prepared_for_a_vendors_client_that_has_left(serve: Serve, kv: Path) -> None:
    server = serve(smollm2(), "--parallel", "1", "--ctx-size", "4096", cache=kv)
    long = {"prompt": "The Nile", "n_predict": 3000, "ignore_eos": True, "stream": True}
    with requests.post(f"{server.url}/completion", json=long, stream=True, timeout=60) as busy:
        lines = busy.iter_lines()
        next(lines)
        body = {"model": "any", "max_tokens": 0, "system": SYSTEM["content"], "messages": [QUESTION]}
        with pytest.raises(requests.RequestException):
            requests.post(f"{server.url}/v1/messages", json=body, timeout=1)
        wait_until(lambda: server.cache()["warm"]["queued"] == 0, 30, "given up while another is served")
        assert next(line for line in lines if line) and server.cache()["warm"]["failed"] == 1


def test_a_stored_conversation_is_read_into_ram_by_its_name(serve: Serve, kv: Path) -> None:
    flags = (*FLAGS, "--cache-ssd-read-ahead", "off")
    server = serve(toy("hybrid-mamba"), *flags, cache=kv)
    said = server.chat([SYSTEM, QUESTION])
    server.stop()
    server = serve(toy("hybrid-mamba"), *flags, cache=kv)
    (stored,) = server.conversations()
    assert stored["tier"] == "cold"
    where = f"/cache/conversations/{stored['hash']}"
    now = server.post(where, {"warm": True, "ttl": "1h"})
    assert now["bytes_read"] > 0 and now["tier"] != "cold" and now["ttl"] == "1h"
    assert server.post(where, {"warm": True})["bytes_read"] == 0
    after = server.chat([SYSTEM, QUESTION, say("assistant", said.text), say("user", "And tomorrow?")])
    assert after.source in ("hot", "warm") and after.reused > 100
    assert server.request("POST", where, {"warm": False}).status_code == 400
    assert server.request("POST", "/cache/conversations/0123456789abcdef", {"warm": True}).status_code == 404


def test_what_cannot_be_prepared_is_reported_and_costs_nothing(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *FLAGS, cache=kv)
    assert server.request("POST", "/cache/warm", {"temperature": 1}).status_code == 400
    assert server.request("POST", "/cache/warm", {"messages": "none"}).status_code == 400
    large = server.request("POST", "/cache/warm", {"prompt": [1] * 9000})
    assert large.status_code == 400 and "context size" in large.text
    told = server.cache()
    assert told["warm"]["failed"] >= 2 and told["warm"]["queued"] == 0
    assert server.chat([QUESTION]).text is not None


def test_a_file_and_the_command_line_prepare_prompts(serve: Serve, kv: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"messages": [SYSTEM]}) + "\nno json\n\n" + json.dumps({"prompt": "a b c d"}) + "\n")
    server = serve(toy("dense"), *FLAGS, "--cache-ssd-warm", str(file), cache=kv)
    wait_until(lambda: server.cache()["warm"]["done"] == 2, 60, "warmed at the start")
    assert f"{file}, line 2: not warmed" in server.said()
    assert server.chat([SYSTEM, QUESTION]).reused > 100

    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": TOOL}]))
    command = [sys.executable, "-m", "pyrun", "warm", "--url", server.url]
    text = "You are " + SYSTEM["content"]
    ran = subprocess.run(
        [*command, "--system", text, "--tools", str(tools), "--json"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    asked = server.chat([say("system", text), QUESTION], tools=json.loads(tools.read_text()))
    assert asked.reused == json.loads(ran.stdout)["tokens"]
    ran = subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1 and "line 2" in ran.stderr
    ran = subprocess.run([*command, "-"], cwd=ROOT, input='{"prompt": "a b c d"}', capture_output=True, text=True)
    assert ran.returncode == 0 and "0 evaluated" in ran.stdout

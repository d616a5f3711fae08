"""Which experts a mixture's routers choose: what the server counts against what numpy computes from the same tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_server import CacheServer, Serve, Tokens, starter, toy
from click.testing import CliRunner, Result
from helpers import wait_until

import toys
from pyrun.cli.main import cli
from pyrun.errors import UserError
from toys.corpus import TEXT

pytestmark = pytest.mark.server

LINES = TEXT.splitlines()[:18]
SLOTS = ("--parallel", "4", "--ctx-size", "8192")
MIXTURES = ("moe", "hybrid-moe")
ROUTER_NORM = {"moe": "ffn_norm", "hybrid-moe": "post_attention_norm"}
USED = 2


class Mute(toys.Weights):
    """Layers add nothing to the stream: every router sees the token's embedding, and nothing of other tokens."""

    def branch(self, name: str, *shape: int, gain: float = 1.0) -> None:
        self.constant(name, shape, 0.0)


class MuteModel:
    """A mixture whose routers' choices can be computed token by token."""

    def __init__(self, name: str, folder: Path) -> None:
        self.path = folder / f"{name}.gguf"
        self.norm = ROUTER_NORM[name]
        weights = Mute(name, toys.vocabulary())
        toys.write(toys.MODELS[name], self.path, weights)
        self.tensors = weights.tensors
        self.layers = sum(tensor.endswith("ffn_gate_inp.weight") for tensor in self.tensors)

    def choose(self, layer: int, tokens: Tokens) -> Counter[int]:
        stream = self.tensors["token_embd.weight"][tokens].astype(np.float64)
        stream /= np.sqrt(np.mean(stream**2, axis=1, keepdims=True) + 1e-5)
        stream *= self.tensors[f"blk.{layer}.{self.norm}.weight"]
        logits = stream @ self.tensors[f"blk.{layer}.ffn_gate_inp.weight"].T
        return Counter(np.argsort(-logits, axis=1)[:, :USED].ravel().tolist())


def counted(stats: dict[str, Any]) -> dict[int, Counter[int]]:
    """By layer, without the experts that were never chosen."""
    return {
        layer["layer"]: Counter({a["expert"]: a["count"] for a in layer["activations"] if a["count"]})
        for layer in stats["layers"]
    }


def check_sums(stats: dict[str, Any]) -> None:
    for layer in stats["layers"]:
        counts = [activation["count"] for activation in layer["activations"]]
        assert counts == sorted(counts, reverse=True) and len(counts) == stats["n_expert"]
        assert sum(counts) == layer["tokens"] * stats["n_expert_used"]
        assert sum(a["frequency"] for a in layer["activations"]) == pytest.approx(1)
    # the last layer may be evaluated only where an answer's token is drawn
    assert all(layer["tokens"] == stats["total_tokens"] for layer in stats["layers"][:-1])


def track(server: CacheServer, **change: bool) -> dict[str, Any]:
    return dict(server.post("/expert-tracking", change))


@pytest.mark.parametrize("name", MIXTURES)
def test_counts_are_what_the_routers_choose(serve: Serve, tmp_path: Path, name: str) -> None:
    model = MuteModel(name, tmp_path)
    server = serve(model.path, *SLOTS)
    server.complete(LINES[0])  # before tracking: not counted
    assert track(server, enabled=True)["total_tokens"] == 0

    prompts = [server.tokens("\n".join(LINES[n : n + 6])) for n in range(4)]
    with ThreadPoolExecutor(4) as clients:  # several slots in one batch
        answers = list(clients.map(lambda p: server.complete(p, n_predict=9, cache_prompt=False), prompts))
    stats = server.get("/expert-stats")
    assert (stats["n_expert"], stats["n_expert_used"], stats["tracking_enabled"]) == (8, USED, True)
    check_sums(stats)

    # The last token of an answer is never evaluated.
    drawn = [[prompt[-1], *answer.tokens[:-1]] for prompt, answer in zip(prompts, answers, strict=True)]
    whole = [prompt[:-1] + tail for prompt, tail in zip(prompts, drawn, strict=True)]
    assert stats["total_tokens"] == sum(len(tokens) for tokens in whole)
    assert [layer["layer"] for layer in stats["layers"]] == list(range(model.layers))
    for layer, counts in counted(stats).items():
        passed = whole if stats["layers"][layer]["tokens"] == stats["total_tokens"] else drawn
        assert counts == model.choose(layer, list(chain(*passed)))


@pytest.mark.parametrize("name", toys.MODELS)
def test_sums_are_tokens_times_experts_used(serve: Serve, name: str) -> None:
    server = serve(toy(name), *SLOTS)
    track(server, enabled=True)
    server.complete("\n".join(LINES[:9]), n_predict=5)
    stats = server.get("/expert-stats")
    check_sums(stats)
    has_experts = name in ("moe", "mla", "swa-gptoss", "hybrid-moe", "uncut")
    assert (stats["n_expert"] > 0, bool(stats["layers"])) == (has_experts, has_experts)


def test_tracking_does_not_change_answers(serve: Serve) -> None:
    server = serve(toy("hybrid-moe"), "--parallel", "1", "--ctx-size", "4096")
    prompt = "\n".join(LINES[:9])
    plain = server.complete(prompt, cache_prompt=False)
    track(server, enabled=True)
    assert server.complete(prompt, cache_prompt=False).said == plain.said
    first = server.get("/expert-stats")
    assert track(server, enabled=False)["tracking_enabled"] is False
    assert server.complete(prompt, cache_prompt=False).said == plain.said
    assert server.get("/expert-stats") == first | {"tracking_enabled": False}, "it counts while it is off"
    track(server, enabled=True)
    server.complete(prompt, cache_prompt=False)
    twice = {layer: counts + counts for layer, counts in counted(first).items()}
    assert counted(server.get("/expert-stats")) == twice
    assert track(server, reset=True) | {"tracking_enabled": True} == first | {"total_tokens": 0, "layers": []}


def test_counts_are_kept_when_the_model_sleeps(serve: Serve, tmp_path: Path) -> None:
    server = serve(toy("moe"), *SLOTS, "--sleep-idle-seconds", "1", cache=tmp_path / "kv")
    track(server, enabled=True)
    prompt = "\n".join(LINES[:3])
    server.complete(prompt, cache_prompt=False)
    awake = server.get("/expert-stats")
    wait_until(lambda: server.get("/props")["is_sleeping"], 20, "asleep")
    assert server.get("/expert-stats") == awake
    server.complete(prompt, cache_prompt=False)
    again = server.get("/expert-stats")
    assert again["total_tokens"] == 2 * awake["total_tokens"]
    check_sums(again)


@pytest.fixture(scope="module")
def expert_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheServer]:
    """It counts, and has answered something."""
    with starter(tmp_path_factory) as serve:
        server = serve(toy("moe"), *SLOTS)
        track(server, enabled=True)
        server.complete("\n".join(LINES[:9]), n_predict=5)
        yield server


@pytest.mark.parametrize(
    "body", ["", "no", "[]", "{}", "null", '{"enabled": 1}', '{"reset": "yes"}', '{"enable": true}', '{"enabled": true']
)
def test_malformed_body_is_refused(expert_server: CacheServer, body: str) -> None:
    answer = expert_server.request("POST", "/expert-tracking", data=body.encode())
    assert answer.status_code == 400 and "enabled" in answer.json()["error"]["message"]
    assert expert_server.get("/expert-stats")["tracking_enabled"] is True


# llama-run experts


def run(server: CacheServer, *options: str) -> Result:
    return CliRunner().invoke(cli, ["experts", "--url", server.url, *options], catch_exceptions=False)


def test_counts_are_shown_as_table_and_plot(expert_server: CacheServer, tmp_path: Path) -> None:
    stats = expert_server.get("/expert-stats")
    lines = run(expert_server, "--top", "3").stdout.splitlines()
    assert " ".join(lines[0].split()) == "layer tokens busiest 10 % balance for 90 % unused busiest 3"
    for line, layer in zip(lines[1:], stats["layers"], strict=True):
        words = line.split()
        assert words[:2] == [str(layer["layer"]), str(layer["tokens"])]
        busiest = [f"{a['expert']} ({a['frequency']:.1%})" for a in layer["activations"][:3]]
        assert line.endswith(", ".join(busiest)) and words[2] == f"{layer['activations'][0]['frequency']:.1%}"
    assert json.loads(run(expert_server, "--json").stdout) == stats

    plot = tmp_path / "experts.png"
    assert run(expert_server, "--plot", str(plot)).exit_code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_dense_model_has_no_table(serve: Serve) -> None:
    server = serve(toy("dense"), *SLOTS)
    with pytest.raises(UserError, match="dense"):
        run(server)


def test_tracking_is_turned_on_from_the_command_line(serve: Serve) -> None:
    server = serve(toy("moe"), *SLOTS)
    assert "--track" in run(server).stderr
    assert "ask the server something" in run(server, "--track").stderr
    server.complete(LINES[0])
    assert server.get("/expert-stats")["layers"]
    assert "nothing is counted yet" in run(server, "--no-track", "--reset").stderr
    assert server.get("/expert-stats")["tracking_enabled"] is False

"""Several models behind one address: each goes on where it was when it was swapped out."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from cache_server import Serve, toy
from helpers import children_told, free_port, wait_until
from stores import make_built_clone, run

from pyrun.cache.owners import owners
from pyrun.engine import Engine, is_same
from pyrun.memory.recall import UserMemory
from pyrun.memory.store import Memory
from toys.corpus import TEXT

pytestmark = pytest.mark.server

MODELS = ("dense", "hybrid-mamba", "mla")
FOURTH = "recurrent"
N_REQUESTS = 15
PROMPTS = [" ".join(TEXT.split()[start : start + 120]) for start in (0, 200)]


Router = Callable[..., str]


@pytest.fixture
def router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Router]:
    """`llama-run --server --all` with four models: router(FLAG, ..., of_models=WHAT STANDS IN llama-run.toml)."""
    root = make_built_clone(tmp_path)
    (root / "models").mkdir()
    for name in (*MODELS, FOURTH):
        (root / "models" / f"{name}.gguf").symlink_to(toy(name))
    monkeypatch.setenv("LLAMA_RUN_HOME", str(root))
    started = []
    log = tmp_path / "launcher.log"

    def start(*flags: str, of_models: str = "") -> str:
        (root / "llama-run.toml").write_text(of_models)
        port = free_port()
        words = f"--server --all --backend cpu --no-build --noauto --ctx 2048 --port {port} --".split()
        with log.open("wb") as output:
            started.append(
                subprocess.Popen([sys.executable, "-m", "pyrun", *words, *flags], stdout=output, stderr=output)
            )
        wait_until(lambda: "ready at" in log.read_text(), 120, f"it is ready: {log}")
        return f"http://127.0.0.1:{port}"

    try:
        yield start
    finally:
        for launcher in started:
            launcher.send_signal(signal.SIGTERM)
            assert launcher.wait(60) == 0, log.read_text()


def asked(prompt: str, model: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": prompt, "n_predict": 8, "temperature": 0, "n_probs": 5}
    return {**body, "model": model} if model else body


def is_up(url: str) -> set[str]:
    models = requests.get(f"{url}/models", timeout=20).json()["data"]
    return {model["id"] for model in models if model["status"]["value"] == "loaded"}


def expect_lone_answers(serve: Serve, said: dict[tuple[str, str], Any]) -> None:
    for name in {name for name, _ in said}:
        lone = serve(toy(name), "--ctx-size", "2048")
        for prompt in (prompt for model, prompt in said if model == name):
            alone = lone.post("/completion", asked(prompt))
            assert is_same(said[name, prompt], alone["completion_probabilities"])
        lone.process.terminate()


def test_models_that_are_swapped_go_on_where_they_were(serve: Serve, router: Router) -> None:
    url = router("--models-max", "2")
    rng = random.Random(7)
    turns = [(name, prompt) for name in MODELS for prompt in PROMPTS]
    turns += [(rng.choice(MODELS), rng.choice(PROMPTS)) for _ in range(N_REQUESTS - len(turns))]
    said: dict[tuple[str, str], Any] = {}
    loaded: list[str] = []
    swaps = 0
    for name, prompt in turns:
        answer = requests.post(f"{url}/completion", json=asked(prompt, name), timeout=120).json()
        assert "timings" in answer, answer
        if name not in loaded:
            swaps += 1
        loaded = [name, *(other for other in loaded if other != name)][:2]
        if (name, prompt) in said:
            assert is_same(answer["completion_probabilities"], said[name, prompt])
            assert answer["timings"]["prompt_n"] <= 8, f"{name} was not restored: {json.dumps(answer['timings'])}"
        said[name, prompt] = answer["completion_probabilities"]
    assert swaps > len(MODELS), "some had to make room, and came back"
    expect_lone_answers(serve, said)
    assert {one["id"] for one in requests.get(f"{url}/v1/models", timeout=20).json()["data"]} >= set(MODELS)


def test_models_make_room_by_the_memory_they_take(serve: Serve, router: Router) -> None:
    """Three small ones fit together; the large one needs all gone, be it asked for or loaded by its name."""
    one, two, large = MODELS
    needs = {one: "2G", two: "2G", FOURTH: "2G", large: "6G"}
    tables = [f"[models.{name}]\narguments = ['--model-need', '{need}']\n" for name, need in needs.items()]
    url = router("--models-memory", "7G", of_models="".join(tables))
    said: dict[tuple[str, str], Any] = {}

    def ask(name: str) -> None:
        answer = requests.post(f"{url}/completion", json=asked(PROMPTS[0], name), timeout=120).json()
        assert "timings" in answer, answer
        if before := said.get((name, PROMPTS[0])):
            assert is_same(answer["completion_probabilities"], before)
            assert answer["timings"]["prompt_n"] <= 8, f"{name} was not restored: {json.dumps(answer['timings'])}"
        said[name, PROMPTS[0]] = answer["completion_probabilities"]

    for is_loaded_unasked in (False, True):
        up: set[str] = set()
        for name in (one, two, FOURTH):
            ask(name)
            up.add(name)
            assert is_up(url) == up
        if is_loaded_unasked:
            loading = requests.post(f"{url}/models/load", json={"model": large}, timeout=60)
            assert loading.status_code == 200, loading.text
            wait_until(lambda: large in is_up(url), 60, "the large one is loaded")
        ask(large)
        assert is_up(url) == {large}
    expect_lone_answers(serve, said)


def test_each_model_keeps_its_state_as_its_own_settings_say(router: Router, tmp_path: Path) -> None:
    """One of them nowhere, others under their names; the example that is printed can be run."""
    url = router(of_models="[models.dense]\nno-cache-ssd = true\n[models.mla]\ncache-ssd = 'elsewhere'\n")
    for name in MODELS:
        requests.post(f"{url}/completion", json=asked(PROMPTS[0], name), timeout=120).raise_for_status()
    told = {name: requests.get(f"{url}/cache?model={name}", timeout=20).json() for name in MODELS}
    assert not told["dense"]["enabled"]
    folders = {"mla": tmp_path / "elsewhere", "hybrid-mamba": tmp_path / "kv-cache"}
    assert {name: Path(told[name]["path"]) for name in folders} == folders
    wait_until(
        lambda: all(name in owners(folder).values() for name, folder in folders.items()),
        20,
        "their state is known by their names",
    )
    command = (tmp_path / "launcher.log").read_text().split("try: ")[1].splitlines()[0]
    answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert json.loads(answer)["choices"], answer


def test_a_router_keeps_pages_of_other_sites_out_and_alone_has_the_tools(router: Router) -> None:
    url = router(of_models="[server]\nwith-tools = true\n")
    for name in MODELS[:2]:
        requests.post(f"{url}/completion", json=asked(PROMPTS[0], name), timeout=120).raise_for_status()
    assert is_up(url) == set(MODELS[:2])
    for path in ("/v1/models", f"/cache?model={MODELS[0]}", "/tools"):
        assert requests.get(f"{url}{path}", timeout=20).ok
        foreign = requests.get(f"{url}{path}", headers={"Origin": "https://example.org"}, timeout=20)
        assert foreign.status_code == 403 and "may not use this server" in foreign.text
    # What the router has just forked bears its command, for a moment.
    wait_until(lambda: len(children_told("--mcp-servers-config")) == 1, 30, "the router alone has the tools")


def test_commands_and_the_library_name_their_model_by_a_part_of_it(
    router: Router, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = router("--models-max", "1")
    text = " ".join(TEXT.split()[:80])
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "Hello!"}]

    def command(*words: str) -> tuple[int, str, str]:
        return run(capsys, *words, "--url", url)

    assert "has loaded no model" in command("cache", "why")[2]
    with Engine("mamba", url=url) as engine:
        assert engine.model == "hybrid-mamba"
        assert not engine.plan(messages)["reused"], "it is loaded to be asked"
        assert engine.warm(messages[:1])["tokens"] > 0
        answer = engine.chat(messages, max_tokens=4, temperature=0)
        assert answer.tokens_reused > 0 and answer.finish_reason in ("stop", "length") and answer.ttft_ms > 0
        assert engine.verify([text], max_tokens=4)[0].is_same
        code, out, err = command("cache", "why", "--json", "--model", "MAMBA")
        assert code == 0 and len(json.loads(out)) >= 4, err
        assert "slot 0" in command("top", "--once")[1], "the one that is loaded"
        code, out, err = command("warm", "--system", text, "--model", "dens", "--json")
        assert code == 0 and json.loads(out)["evaluated"] > 0, err
        assert is_up(url) == {"dense"}, "the other one made room"
        assert "has not loaded hybrid-mamba" in command("top", "--once", "--model", "mamba")[2]
        assert json.loads(command("experts", "--json")[1])["n_expert"] == 0
        assert json.loads(command("experts", "--json", "--model", "dense")[1])["n_expert"] == 0
        assert engine.cache()["enabled"] and is_up(url) == {"hybrid-mamba"}, "it came back"
        (one, *_) = requests.get(f"{url}/cache/conversations?model=hybrid-mamba", timeout=20).json()["conversations"]
        for words in (["push", one["hash"][:8], "--to", str(tmp_path)], ["pull", one["hash"], "--from", str(tmp_path)]):
            code, out, err = command("cache", *words, "--model", "mamba")
            assert code == 0 and one["hash"] in out, err
    assert "choose one with --model: " in command("warm", "--system", text)[2]


def test_what_leaves_a_chat_with_one_of_several_models_is_found_in_the_memory(router: Router, tmp_path: Path) -> None:
    url = router("--context-overflow", "evict")
    words = " ".join(TEXT.split()[:100])
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n}: {words}"} for n in range(21)]
    body = {"model": "dense", "messages": messages, "max_tokens": 4}
    answer = requests.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()
    assert "choices" in answer, answer

    def n_archived() -> int:
        with Memory(tmp_path / "memory") as memory:
            return UserMemory(memory, "").counts().get("message", 0)

    wait_until(lambda: n_archived() > 0, 30, "what was left out is in the memory")

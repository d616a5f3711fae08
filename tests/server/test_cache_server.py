"""The SSD cache beside everything else that llama-server can do: each test is a small one on toy models."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import requests
from backend import BACKEND, BINARY
from cache_server import Answer, CacheServer, Messages, Serve, completion, say, toy
from helpers import ROOT, wait_until

from toys.corpus import TEXT

pytestmark = pytest.mark.server

LINES = TEXT.splitlines()[:18]
SLOTS = ("--parallel", "4", "--ctx-size", "8192")


def text(first: int, count: int) -> str:
    return "\n".join(LINES[(first + n) % len(LINES)] for n in range(count))


def talk(number: int = 0, lines: int = 9) -> Messages:
    """The first request of a conversation: about 40 tokens a line, other ones from the first words on."""
    return [say("system", f"{number}. {text(number, lines - 2)}"), say("user", text(number + 9, 2))]


def grown(messages: Messages, answer: Answer) -> Messages:
    return [*messages, say("assistant", answer.text), say("user", text(5, 1))]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def stored(folder: Path) -> list[Path]:
    """Files that hold state."""
    return [path for path in files(folder) if path.suffix in (".seg", ".anc", ".bin") and path.name != "index.bin"]


def disk_bytes(folder: Path) -> int:
    # Files that go while it looks make it fail, and do not count.
    return int(subprocess.run(["du", "-sB1", folder], capture_output=True, text=True).stdout.split()[0])


# Slots


@pytest.mark.parametrize("name", ["dense", "recurrent"])
def test_parallel_clients_do_not_get_each_others_state(serve: Serve, kv: Path, name: str) -> None:
    talks = [talk(number) for number in range(4)]
    plain = serve(toy(name), *SLOTS)
    first = [plain.chat(messages, id_slot=slot) for slot, messages in enumerate(talks)]
    sequels = [grown(messages, answer) for messages, answer in zip(talks, first, strict=True)]
    second = [plain.chat(messages, id_slot=slot) for slot, messages in enumerate(sequels)]
    plain.stop()

    server = serve(toy(name), *SLOTS, cache=kv)
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(server.chat, talks))
        assert all(answer.apart(alone) < 0.1 for answer, alone in zip(answers, first, strict=True))
        server.stop()
        server = serve(toy(name), *SLOTS, cache=kv)
        answers = list(clients.map(server.chat, sequels))
    assert all(answer.apart(alone) < 0.1 for answer, alone in zip(answers, second, strict=True))
    assert all(answer.source == "cold" and answer.reused > 300 for answer in answers)


def test_restore_finds_room_in_a_unified_cache(serve: Serve, kv: Path) -> None:
    flags = ("--parallel", "3", "--ctx-size", "1024", "--kv-unified")
    long, others = talk(0, 16), [talk(1, 8), talk(2, 8)]
    server = serve(toy("dense"), *flags, cache=kv)
    expected = server.chat(long, id_slot=0)
    for messages in others:
        server.chat(messages, id_slot=0)
    server.stop()

    server = serve(toy("dense"), *flags, cache=kv)
    for slot, messages in enumerate(others):
        answer = server.chat(messages, id_slot=slot)
        assert answer.reused == answer.prompt_size - 1
    answer = server.chat(long, id_slot=2)
    assert answer.reused == answer.prompt_size - 1 and answer.text == expected.text
    assert answer.prompt_size + 2 * 250 > 1024, "the test is too small to need idle slots purged"


@pytest.mark.parametrize("name", ["dense", "swa-gemma3", "hybrid-moe"])
def test_state_without_flash_attention_restores(serve: Serve, kv: Path, name: str) -> None:
    server = serve(toy(name), *SLOTS, "--flash-attn", "off", cache=kv)
    server.chat(talk(), id_slot=0)
    server.flush()
    expected = server.chat(talk(), id_slot=1)
    server.stop()
    server = serve(toy(name), *SLOTS, "--flash-attn", "off", cache=kv)
    answer = server.chat(talk(), id_slot=2)
    assert answer.source == "cold" and answer.reused == expected.reused >= answer.prompt_size - 4
    assert answer.said == expected.said


@pytest.mark.parametrize("name", ["swa-gemma3", "swa-gptoss"])
def test_prompt_shorter_than_the_window_is_not_evaluated_again(serve: Serve, kv: Path, name: str) -> None:
    flags = ("--parallel", "1", "--ctx-size", "2048")
    messages = [say("user", "Count from one to ten.")]
    plain = serve(toy(name), *flags)
    expected = plain.chat(grown(messages, plain.chat(messages)))
    plain.stop()
    server = serve(toy(name), *flags, cache=kv)
    longer = grown(messages, server.chat(messages))
    server.stop()
    server = serve(toy(name), *flags, cache=kv)
    answer = server.chat(longer)
    assert answer.source == "cold" and answer.reused > 10, answer.timings
    assert answer.apart(expected) < 0.1
    again = server.chat(longer)
    assert again.source == "slot" and again.reused == again.prompt_size - 1 and again.apart(answer) < 0.1


def test_named_slot_gets_what_another_evaluated(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SLOTS, cache=kv)
    first = server.chat(talk(), id_slot=0)
    server.flush()
    second = server.chat(talk(), id_slot=3)
    assert (first.source, second.source) == ("none", "hot")
    assert second.reused == second.prompt_size - 1 and second.text == first.text
    assert server.chat(talk(), id_slot=3).source == "slot"


# Requests of other kinds


def test_request_without_cache_prompt_is_not_stored(serve: Serve, kv: Path) -> None:
    server = serve(toy("hybrid-moe"), *SLOTS, cache=kv)
    for _ in range(2):
        answer = server.chat(talk(), cache_prompt=False, id_slot=0)
        assert (answer.reused, answer.source, answer.miss) == (0, "none", "off")
    server.flush()
    assert server.conversations() == [] and not stored(kv)


def test_prompt_without_an_answer_is_kept(serve: Serve, kv: Path) -> None:
    server = serve(toy("hybrid-moe"), *SLOTS, cache=kv)
    tokens = server.prompt(talk())
    server.complete(tokens, n_predict=0)
    server.stop()
    server = serve(toy("hybrid-moe"), *SLOTS, cache=kv)
    assert server.complete([*tokens, *tokens[:9]]).reused == len(tokens)


@pytest.mark.parametrize("name", ["dense", "hybrid-moe"])
def test_several_answers_to_one_prompt_are_the_same_and_kept(serve: Serve, kv: Path, name: str) -> None:
    body = {"prompt": "", "n_cmpl": 3, "n_predict": 6, "temperature": 0, "n_probs": 5, "return_tokens": True}
    server = serve(toy(name), *SLOTS, cache=kv)
    prompt = server.prompt(talk())
    before = [completion(answer) for answer in server.post("/completion", body | {"prompt": prompt})]
    server.stop()
    server = serve(toy(name), *SLOTS, cache=kv)
    after = [completion(answer) for answer in server.post("/completion", body | {"prompt": prompt})]
    assert len(before) == len(after) == 3
    assert len({answer.text for answer in before + after}) == 1
    assert max(answer.reused for answer in after) >= len(prompt) - 4


def hang_up(server: CacheServer, body: dict[str, Any], after: float | None) -> int:
    """After some seconds, or when the answer has ten parts. Returns how many tokens the slot held at the end."""
    with requests.post(f"{server.url}/completion", json=body | {"stream": True}, stream=True, timeout=60) as answer:
        if after is not None:
            time.sleep(after)
        else:
            lines = (line for line in answer.iter_lines() if b'"content":"' in line)
            assert len(list(itertools.islice(lines, 10))) == 10
    wait_until(lambda: "stop processing: n_tokens" in server.said(), 60, "the request is dropped")
    return int(re.findall(r"stop processing: n_tokens = (\d+)", server.said())[-1])


@pytest.mark.parametrize("where", ["prompt", "answer"])
@pytest.mark.parametrize("name", ["dense", "hybrid-moe"])
def test_client_that_hangs_up_keeps_what_was_evaluated(serve: Serve, kv: Path, name: str, where: str) -> None:
    flags = ("--parallel", "1", "--ctx-size", "16384", "-b", "64", "-ub", "64")
    server = serve(toy(name), *flags, cache=kv)
    tokens = server.prompt(talk())
    tokens = (tokens * 40)[:12000] if where == "prompt" else tokens
    held = hang_up(server, {"prompt": tokens, "n_predict": 4000}, 0.5 if where == "prompt" else None)
    assert 0 < held < len(tokens) if where == "prompt" else held > len(tokens)
    assert server.is_healthy()
    server.stop()
    server = serve(toy(name), *flags, cache=kv)
    answer = server.complete(tokens[: held + 99], n_predict=1)
    nearly = 0 if where == "prompt" else 4 if name == "hybrid-moe" else 1
    assert answer.source == "cold" and answer.reused == min(held, len(tokens) - nearly)


def test_shifted_state_is_not_stored(serve: Serve, kv: Path) -> None:
    """After a context shift the slot holds rows that no evaluation of its tokens would give."""
    flags = ("--parallel", "1", "--ctx-size", "512", "--context-shift")
    plain = serve(toy("dense"), *flags)
    tokens = plain.prompt(talk(0, 8))
    expected = plain.complete(tokens)
    plain.stop()

    server = serve(toy("dense"), *flags, cache=kv)
    whole = server.complete(tokens, n_predict=600)
    assert "slot context shift" in server.said() or "context shift" in server.said()
    server.flush()
    assert all(c["tokens"] <= 512 for c in server.conversations())
    server.stop()
    server = serve(toy("dense"), *flags, cache=kv)
    again = server.complete(tokens)
    assert again.reused == len(tokens) - 1 and again.text == expected.text == whole.text[: len(expected.text)]
    # What followed the shift is unknown.
    held = [*tokens[:1], *whole.tokens[-200:]]
    assert server.complete(held).reused <= 1


# Adapters and drafts


def write_lora(path: Path, model: Path) -> Path:
    """A random adapter for the queries and values of the first layers, strong enough to change every answer."""
    shapes = {tensor.name: tensor.shape for tensor in gguf.GGUFReader(model).tensors}
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for name in (f"blk.{layer}.attn_{part}.weight" for layer in range(2) for part in "qv"):
        inputs, outputs = (int(n) for n in shapes[name])
        writer.add_tensor(f"{name}.lora_a", rng.normal(0, 0.2, (4, inputs)).astype(np.float32))
        writer.add_tensor(f"{name}.lora_b", rng.normal(0, 0.2, (outputs, 4)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_adapters_do_not_share_state(serve: Serve, kv: Path, tmp_path: Path) -> None:
    lora = str(write_lora(tmp_path / "lora.gguf", toy("dense")))
    scales = (0.0, 1.0, 0.5)

    def ask(server: CacheServer, scale: float, **options: Any) -> Answer:
        return server.chat(talk(), lora=[{"id": 0, "scale": scale}], **options)

    plain = serve(toy("dense"), *SLOTS, "--lora", lora)
    cold = {scale: ask(plain, scale, cache_prompt=False, id_slot=0) for scale in scales}
    pairs = itertools.combinations(cold.values(), 2)
    assert all(one.apart(other) > 0.1 for one, other in pairs), "the adapter is too weak to show a mix-up"
    plain.stop()

    server = serve(toy("dense"), *SLOTS, "--lora", lora, cache=kv)
    for scale in scales:
        answer = ask(server, scale, id_slot=0)
        assert answer.reused == 0 and answer.said == cold[scale].said
        server.flush()
    server.stop()
    server = serve(toy("dense"), *SLOTS, "--lora", lora, cache=kv)
    for slot, scale in enumerate(scales):
        answer = ask(server, scale, id_slot=slot)
        assert answer.reused == answer.prompt_size - 1 and answer.apart(cold[scale]) < 0.03


@pytest.mark.parametrize("draft", ["dense", "moe"])
def test_draft_model_does_not_change_answers_after_a_restart(serve: Serve, kv: Path, draft: str) -> None:
    """A model that drafts for itself shares its own folder: the draft's state starts empty."""
    travels = draft != "dense"
    flags = (*SLOTS, "--model-draft", str(toy(draft)), "--spec-type", "draft-simple")
    plain = serve(toy("dense"), *SLOTS)
    expected = plain.chat(talk(), max_tokens=24)
    sequel = grown(talk(), expected)
    expected_sequel = plain.chat(sequel, max_tokens=24)
    plain.stop()

    server = serve(toy("dense"), *flags, cache=kv)
    assert server.cache()["draft"] is travels
    before = server.chat(talk(), max_tokens=24)
    assert before.text == expected.text and before.timings["draft_n"] > 0
    server.stop()
    server = serve(toy("dense"), *flags, cache=kv)
    answer = server.chat(talk(), max_tokens=24)
    assert answer.text == expected.text and answer.reused == answer.prompt_size - 1
    if travels:
        assert answer.timings["draft_n_accepted"] == before.timings["draft_n_accepted"], "the draft is not where it was"
    assert server.chat(sequel, max_tokens=24).text == expected_sequel.text


# Upstream's other features


def test_slot_files_of_upstream_do_not_confuse_the_cache(serve: Serve, kv: Path, tmp_path: Path) -> None:
    flags = (*SLOTS, "--slot-save-path", str(tmp_path))
    server = serve(toy("dense"), *flags, cache=kv)
    one, two = server.chat(talk(1), id_slot=0), server.chat(talk(2), id_slot=1)
    server.flush()
    assert server.post("/slots/0?action=save", {"filename": "one.bin"})["n_saved"] > 300
    assert server.post("/slots/1?action=restore", {"filename": "one.bin"})["n_restored"] > 300
    again = server.chat(talk(1), id_slot=1)
    assert again.reused == again.prompt_size - 1 and again.text == one.text
    again = server.chat(talk(2), id_slot=1)
    assert again.reused == again.prompt_size - 1 and again.text == two.text
    server.stop()
    server = serve(toy("dense"), *flags, cache=kv)
    assert server.chat(talk(1)).text == one.text and server.chat(talk(2)).text == two.text


def test_embeddings_do_not_change_and_are_not_stored(serve: Serve, kv: Path) -> None:
    flags = ("--embedding", "--pooling", "mean", "--parallel", "2", "--ctx-size", "4096")
    body = {"input": [text(0, 3), text(4, 3), text(0, 3)]}
    answers = []
    for cache in (None, kv):
        server = serve(toy("dense"), *flags, cache=cache)
        answers.append([entry["embedding"] for entry in server.post("/v1/embeddings", body)["data"]])
        server.stop()
    assert answers[0] == answers[1] and not stored(kv)


def test_rerank_does_not_change_and_is_not_stored(serve: Serve, kv: Path) -> None:
    body = {"query": LINES[0], "documents": [LINES[1], LINES[5]]}
    answers = []
    for cache in (None, kv):
        server = serve(toy("dense"), "--rerank", "--parallel", "2", "--ctx-size", "4096", cache=cache)
        answers.append(server.post("/v1/rerank", body)["results"])
        server.stop()
    assert answers[0] == answers[1] and not stored(kv)


def test_sleep_keeps_state(serve: Serve, kv: Path) -> None:
    server = serve(toy("hybrid-moe"), *SLOTS, "--sleep-idle-seconds", "1", cache=kv)
    first = server.chat(talk())
    wait_until(lambda: server.get("/props")["is_sleeping"], 20, "the server sleeps")
    second = server.chat(talk())
    assert second.source == "cold" and second.reused == second.prompt_size - 4 and second.text == first.text
    assert server.cache()["enabled"] is True


def test_models_of_a_router_have_fingerprints_of_their_own(serve: Serve, kv: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("dense", "moe"):
        (models / f"{name}.gguf").symlink_to(toy(name))
    server = serve(None, "--models-dir", str(models), *SLOTS, cache=kv)
    first = {name: server.chat(talk(), model=name) for name in ("dense", "moe")}
    second = {name: server.chat(talk(), model=name) for name in ("dense", "moe")}
    for name in ("dense", "moe"):
        assert first[name].reused == 0 and second[name].reused == second[name].prompt_size - 1
        assert second[name].text == first[name].text
    about = {name: server.get(f"/cache?model={name}") for name in ("dense", "moe")}
    assert all(a["enabled"] for a in about.values())
    assert about["dense"]["fingerprint"] != about["moe"]["fingerprint"]
    assert server.request("POST", "/cache/flush?model=dense", {}).status_code == 200
    server.stop()


# Trouble with the folder


def test_second_server_does_not_write_into_the_same_folder(serve: Serve, kv: Path) -> None:
    first = serve(toy("dense"), *SLOTS, cache=kv)
    expected = first.chat(talk())
    second = serve(toy("dense"), *SLOTS, cache=kv)
    about = second.cache()
    assert about["enabled"] is False and str(first.process.pid) in about["reason"]
    answer = second.chat(talk())
    assert answer.text == expected.text and "cache_source" not in answer.timings
    # Another model may use the folder at the same time.
    assert serve(toy("moe"), *SLOTS, cache=kv).cache()["enabled"] is True


def test_folder_that_cannot_be_made_does_not_stop_the_server(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    server = serve(toy("dense"), *SLOTS, cache=tmp_path / "file" / "kv")
    about = server.cache()
    assert about["enabled"] is False and str(tmp_path / "file") in about["reason"]
    assert server.chat(talk()).text


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_does_not_break_answers(serve: Serve, small_disk: Path) -> None:
    server = serve(toy("dense"), *SLOTS, "--cache-ssd-max-size", "1G", cache=small_disk / "kv")
    answers = [server.chat(talk(number), id_slot=0) for number in range(4)]
    about = server.flush()
    assert about["counters"]["skipped_no_space"] > 0 and about["last_error"]
    assert server.chat(talk(3), id_slot=0).text == answers[3].text
    server.stop()
    server = serve(toy("dense"), *SLOTS, "--cache-ssd-max-size", "1G", cache=small_disk / "kv")
    assert [server.chat(talk(number), id_slot=0).text for number in range(4)] == [a.text for a in answers]


@pytest.mark.parametrize("name", ["dense", "hybrid-moe"])
def test_flipped_byte_does_not_reach_the_model(serve: Serve, kv: Path, name: str) -> None:
    server = serve(toy(name), *SLOTS, cache=kv)
    expected = server.chat(talk())
    server.stop()
    for segment in kv.rglob("*.seg"):
        content = bytearray(segment.read_bytes())
        content[len(content) // 2] ^= 1
        segment.write_bytes(content)
    server = serve(toy(name), *SLOTS, cache=kv)
    answer = server.chat(talk())
    assert (answer.reused, answer.miss) == (0, "corrupt") and answer.text == expected.text
    assert sum(server.flush()["damaged"].values()) > 0
    server.stop()
    server = serve(toy(name), *SLOTS, cache=kv)
    answer = server.chat(talk())
    assert answer.source == "cold" and answer.reused >= answer.prompt_size - 4 and answer.text == expected.text


# Reports and removal


def test_strangers_do_not_see_the_cache(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SLOTS, cache=kv, api_key="secret")
    server.chat(talk())
    wanted = [("GET", "/cache"), ("GET", "/cache/conversations"), ("POST", "/cache/flush")]
    wanted.append(("DELETE", f"/cache/conversations/{server.conversations()[0]['hash'] if server.flush() else ''}"))
    for method, path in wanted:
        assert requests.request(method, server.url + path, timeout=10).status_code == 401
        assert server.request(method, path).status_code == 200


def test_metrics_have_the_cache(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SLOTS, "--metrics", cache=kv)
    size = server.chat(talk(), id_slot=0).prompt_size
    server.chat(talk(), id_slot=0)
    server.flush()
    lines = server.request("GET", "/metrics").text.splitlines()
    values = {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("llamacpp:cache_")}
    assert values["llamacpp:cache_requests_total"] == 2
    assert values["llamacpp:cache_tokens_reused_total"] == size - 1
    assert values["llamacpp:cache_tokens_evaluated_total"] == size + 1
    assert values["llamacpp:cache_disk_bytes"] == server.cache()["state"]["disk_bytes"]
    assert all(f"# HELP {name} " in "\n".join(lines) for name in values)


def test_what_the_inference_thread_waited_for_is_told(serve: Serve, kv: Path) -> None:
    server = serve(toy("hybrid-moe"), *SLOTS, cache=kv)
    told = server.chat(talk())
    server.stop()
    server = serve(toy("hybrid-moe"), *SLOTS, "--metrics", cache=kv)
    assert set(server.cache()["waited_ms"].values()) == {0}
    again = server.chat(grown(talk(), told))
    assert again.reused > 0
    waited = server.cache()["waited_ms"]
    assert all(waited[cause] > 0 for cause in ("lookup", "restore", "anchor", "persist")), waited
    lines = server.request("GET", "/metrics").text
    for cause in waited:
        found = re.search(rf"^llamacpp:cache_waited_ms_{cause}_total ([\d.]+)$", lines, re.MULTILINE)
        assert found and float(found[1]) >= waited[cause] * 0.99, cause
    if BACKEND == "cpu":  # its tensors are the host's: they are copied beside, and filled at once
        assert (server.cache()["takes_state"], server.cache()["puts_state"]) == ("beside", "at_once")


@pytest.mark.parametrize("lines", [9, 40], ids=["short", "long"])
@pytest.mark.parametrize("name", ["dense", "hybrid-moe"])
def test_removed_conversation_does_not_come_back(serve: Serve, kv: Path, name: str, lines: int) -> None:
    """Longer than 1024 tokens, a conversation keeps its name; before that every turn has another one."""
    server = serve(toy(name), *SLOTS, cache=kv)
    expected = server.chat(talk(0, lines), id_slot=0)
    server.flush()
    (conversation,) = server.conversations()
    answer = server.request("DELETE", f"/cache/conversations/{conversation['hash']}")
    assert answer.status_code == 200 and answer.json()["bytes_freed"] == conversation["bytes_own"] > 0
    assert server.conversations() == [] and not stored(kv)

    for slot in (0, 1):
        again = server.chat(talk(0, lines), id_slot=slot)
        if slot == 0:
            assert (again.reused, again.miss) == (0, "nothing_stored")
        assert again.text == expected.text
    assert server.request("DELETE", "/cache/conversations/nonsense").status_code == 400
    assert server.request("DELETE", f"/cache/conversations/{'0' * 16}").status_code == 404


@pytest.mark.parametrize("name", ["dense", "hybrid-moe"])
def test_conversation_removed_while_its_prompt_is_evaluated_goes(serve: Serve, kv: Path, name: str) -> None:
    server = serve(toy(name), "--parallel", "1", "--ctx-size", "16384", cache=kv)
    messages = talk(0, 40)
    longer = [*grown(messages, server.chat(messages)), say("assistant", "."), say("user", text(3, 220))]
    server.flush()
    (conversation,) = server.conversations()
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(server.chat, longer)
        wait_until(lambda: server.get("/slots")[0]["is_processing"], 20, "the prompt is being evaluated")
        answer = server.request("DELETE", f"/cache/conversations/{conversation['hash']}")
        assert answer.status_code == 200 and not asked.done(), "the test is too small to remove it in time"
        assert asked.result().prompt_size > 4000
    server.flush()
    assert server.conversations() == [] and not stored(kv)


def test_request_that_fails_after_its_restore_does_not_end_the_storing(serve: Serve, kv: Path) -> None:
    flags = ("--parallel", "1", "--ctx-size", "8192")
    server = serve(toy("dense"), *flags, cache=kv)
    messages = talk(0, 40)
    longer = grown(messages, server.chat(messages))
    server.chat(talk(1, 40))  # takes the slot
    body = {"messages": longer, "grammar": "root ::= ("}
    assert server.request("POST", "/v1/chat/completions", body).status_code == 400
    answer = server.chat(longer)
    server.stop()
    server = serve(toy("dense"), *flags, cache=kv)
    again = server.chat(longer)
    assert again.reused == again.prompt_size - 1 and again.text == answer.text


@pytest.mark.parametrize(
    ("flag", "value", "hint"),
    [
        ("--cache-ssd-max-size", "lots", "'lots' is not a size: write it like 512M, 20G or 1.5T"),
        ("--cache-ssd-ram", "-1G", "is not a size"),
        ("--cache-ssd-page-size", "3", "must be at least 16"),
        ("--cache-ssd-checkpoints", "0", "must be at least 1"),
    ],
)
def test_wrong_value_of_a_flag_is_explained(kv: Path, flag: str, value: str, hint: str) -> None:
    command = [str(BINARY), "--model", str(toy("dense")), "--cache-ssd", str(kv), flag, value]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert flag in result.stderr and hint in result.stderr, result.stderr


# Budgets


def test_small_ram_budget_holds(serve: Serve, kv: Path) -> None:
    server = serve(toy("dense"), *SLOTS, "--cache-ssd-ram", "1M", cache=kv)
    answers = [server.chat(talk(number), id_slot=0) for number in range(6)]
    state = server.flush()["state"]
    assert state["ram_limit"] == 1 << 20 >= state["ram_bytes"]
    for number, expected in enumerate(answers):
        answer = server.chat(talk(number), id_slot=1)
        assert answer.reused == answer.prompt_size - 1 and answer.text == expected.text
        assert server.cache()["state"]["ram_bytes"] <= 1 << 20


@pytest.mark.parametrize("name", ["dense", "hybrid-moe"])
def test_small_disk_budget_holds(serve: Serve, kv: Path, name: str) -> None:
    limit = 6 << 20
    flags = (*SLOTS, "--cache-ssd-max-size", "6M")
    server = serve(toy(name), *flags, cache=kv)
    for number in range(12):
        server.chat(talk(number), id_slot=0)
        assert disk_bytes(kv) <= limit
    about = server.flush()
    assert disk_bytes(kv) <= limit and about["state"]["disk_bytes"] <= limit == about["state"]["disk_limit"]
    assert about["counters"]["evicted_bytes"] > 0, "the test is too small to reach the limit"
    server.stop()
    server = serve(toy(name), *flags, cache=kv)
    answer = server.chat(talk(11), id_slot=1)
    assert answer.source == "cold" and answer.reused >= answer.prompt_size - 4
    assert disk_bytes(kv) <= limit


def test_command_line_lists_the_conversations_of_the_server(serve: Serve, kv: Path) -> None:
    server = serve(toy("hybrid-moe"), *SLOTS, cache=kv)
    for number in range(3):
        server.chat(grown(talk(number, 40), server.chat(talk(number, 40))))
    server.flush()
    fingerprint = server.cache()["fingerprint"]
    served = {c["hash"]: c for c in server.conversations()}
    server.stop()
    command = [str(ROOT / "llama-run"), "cache", "ls", "--json", "--cache-ssd", str(kv)]
    (model,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["models"]
    assert model["fingerprint"] == fingerprint
    listed = {c["hash"]: c for c in model["conversations"]}
    assert listed.keys() == served.keys() and len(listed) == 3
    for name in ("turns", "tokens", "bytes_own", "bytes_shared", "backend"):
        assert [listed[h][name] for h in served] == [served[h][name] for h in served], name

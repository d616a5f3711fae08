"""`llama-run cache` on real stores, which the bindings write: what it shows, finds, removes and refuses."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrun import _kernels
from pyrun.cache.look import list_cache, verify_cache
from pyrun.cli.main import main

MODEL = bytes([0xF1]) + bytes(15)
OTHER = bytes([0xF2]) + bytes(15)
PAGE = 16
BLOCK = 4096


def rows_of(tokens: Sequence[int], width: int = 8) -> Any:
    """State that depends on every token before it, as real state does."""

    def rows(p0: int, p1: int) -> bytes:
        parts = [hashlib.blake2b(repr(list(tokens[: p + 1])).encode(), digest_size=width) for p in range(p0, p1)]
        return b"".join(part.digest() for part in parts)

    return rows


def prompt(seed: int, n: int = 40) -> list[int]:
    return [(seed * 7919 + i * 31) % 50000 for i in range(n)]


def store_at(cache: Path, model: bytes = MODEL, **options: Any) -> _kernels.Store:
    return _kernels.Store(str(cache), model, page_size=PAGE, written_by="test", **options)


def fill(cache: Path, *prompts: list[int], model: bytes = MODEL, user: str = "", width: int = 8) -> None:
    with store_at(cache, model) as store:
        for tokens in prompts:
            store.save(tokens, rows_of(tokens, width), user=user, backend="cpu")


def conversation(tokens: list[int]) -> str:
    return f"{_kernels.conversation_hash(tokens):016x}"


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    try:
        main([str(argument) for argument in arguments])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every name, time and byte below a folder; of a lock only the time, because it names who looked last."""
    found = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        data = path.read_bytes() if path.is_file() and path.name != "lock" else b""
        found[str(path.relative_to(folder))] = (info.st_mode, info.st_mtime_ns, data)
    return found


def segment_files(cache: Path, model: bytes = MODEL) -> list[Path]:
    return sorted((cache / model.hex() / "pages").glob("*.seg"))


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def clone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without logs: `rm --all` takes those of the clone, too."""
    monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(tmp_path_factory.mktemp("clone"))))


def make_clone(root: Path) -> Path:
    (root / "llama.cpp").mkdir()
    shutil.copy(ROOT / "llama.cpp" / "upstream.toml", root / "llama.cpp")
    return root


@contextmanager
def holding(cache: Path) -> Iterator[int]:
    """Another process that has the store of MODEL open."""
    code = (
        "import sys; from pyrun import _kernels\n"
        f"store = _kernels.Store({str(cache)!r}, bytes.fromhex({MODEL.hex()!r}), page_size={PAGE})\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


@contextmanager
def as_somebody_else(*paths: Path) -> Iterator[None]:
    """Without the rights of root, which may read and write everything."""
    if os.geteuid() != 0:
        yield
        return
    for path in paths:
        os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


# --- the bindings ---


def test_bindings_lose_bytes(cache: Path) -> None:
    tokens = prompt(1, 50)
    anchors = {32: b"state at 32", 50: b"state at 50"}
    with store_at(cache) as store:
        assert store.plan(tokens) == [(0, 16), (16, 32), (32, 48), (48, 50)]
        written = store.save(tokens, rows_of(tokens), anchors=anchors, backend="cpu")
        assert written == 50 * 4 + 50 * 8 + 22
        assert store.plan(tokens) == []
    with store_at(cache, ram_bytes=1 << 20) as store:
        match = store.lookup([*tokens[:40], 1, 2])
        assert (match.n_tokens, match.n_common, match.source) == (40, 40, "cold")
        assert match.reason == "diverged"
        state = store.load([*tokens, 7], folded=True)
        assert b"".join(data for _, _, data in state.runs) == rows_of(tokens)(0, 50)
        assert state.anchor == b"state at 50" and state.match.n_tokens == 50
        assert store.load(tokens[:45], folded=True).anchor == b"state at 32"
        assert store.lookup(tokens, user="bob").n_tokens == 0
        with pytest.raises(_kernels.StoreError) as miss:
            store.load(prompt(2))
        assert miss.value.kind == "miss" and miss.value.pid is None


def test_inspected_or_closed_store_is_changed(cache: Path) -> None:
    fill(cache, prompt(1))
    with store_at(cache, inspect=True) as store:
        for change in (
            store.gc,
            lambda: store.save(prompt(2), rows_of(prompt(2))),
            lambda: store.remove_conversation(bytes(16), 1),
            lambda: store.remove_name_space(bytes(16)),
            lambda: store.set_aside([]),
        ):
            with pytest.raises(_kernels.StoreError, match="inspection only"):
                change()
    with pytest.raises(ValueError, match="closed"):
        store.stats()
    with store_at(cache) as store:
        for outside in (str(cache / "x"), f"{cache}/{MODEL.hex()}/../x"):
            with pytest.raises(ValueError, match="is not in"):
                store.set_aside([outside])


def test_second_process_is_not_told_who_has_the_store(cache: Path) -> None:
    fill(cache, prompt(1))
    with holding(cache) as pid:
        for inspect in (False, True):
            with pytest.raises(_kernels.StoreBusyError) as busy:
                store_at(cache, inspect=inspect)
            assert busy.value.pid == pid and busy.value.kind == "busy"
    with store_at(cache, inspect=True), pytest.raises(_kernels.StoreBusyError) as busy:
        store_at(cache)
    assert busy.value.pid == os.getpid()


def test_verify_cannot_be_broken_off(cache: Path) -> None:
    fill(cache, prompt(1))

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with store_at(cache, inspect=True) as store:
        with pytest.raises(KeyboardInterrupt):
            store.verify(stop)
        assert store.verify().damaged == []


def test_close_pulls_the_store_from_under_a_call(cache: Path) -> None:
    fill(cache, *(prompt(seed) for seed in range(20)))
    store = store_at(cache, inspect=True)
    closer = threading.Thread(target=store.close)
    report = store.verify(lambda done: closer.start() if not closer.ident else None)
    closer.join()
    assert report.n_files >= 40 and report.damaged == []
    store_at(cache).close()  # the lock was given back


# --- looking ---


def test_looking_changes_something(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1), prompt(2))
    fill(cache, prompt(1), model=OTHER, user="alice")
    flip_last_byte(segment_files(cache)[0])
    (cache / MODEL.hex() / "pages" / "tmp-1").write_bytes(b"unfinished")
    before = snapshot(cache)
    for command in ("ls", "stats", "verify"):
        run(capsys, "cache", command, "--cache-ssd", cache)
        run(capsys, "cache", command, "--cache-ssd", cache, "--json")
    assert snapshot(cache) == before


@pytest.mark.parametrize("command", ["ls", "stats", "verify", "gc", "rm --all --yes"])
def test_wrong_folders_give_riddles(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    words = ["cache", *command.split(), "--cache-ssd"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    (tmp_path / "photos" / ("0" * 32)).mkdir()  # a name like a fingerprint's, but no store
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "README.md").write_text("as in a fresh clone")
    before = snapshot(tmp_path)

    code, _, err = run(capsys, *words, tmp_path / "missing")
    assert code == 1 and f"error: there is no folder {tmp_path}/missing" in err and "hint: " in err
    code, _, err = run(capsys, *words, tmp_path / "photos")
    assert code == 1 and f"{tmp_path}/photos is not a cache of llama-run: it holds" in err
    code, _, err = run(capsys, *words, tmp_path / "photos" / "cat.jpg")
    assert code == 1 and "cat.jpg is not a folder" in err
    code, out, err = run(capsys, *words, tmp_path / "new")
    assert code == 0 and ("nothing is stored" in err or "on disk" in out)
    assert snapshot(tmp_path) == before


def test_default_folder_is_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(tmp_path)))
    assert f"there is no folder {tmp_path}/kv-cache" in run(capsys, "cache", "ls")[2]
    fill(tmp_path / "kv-cache", prompt(1))
    assert conversation(prompt(1)) in run(capsys, "cache", "ls")[1]


def test_restores_are_denied(cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What went on from a shared prefix is counted by a running server only."""
    fill(cache, prompt(1, 40))
    with store_at(cache) as store:
        store.load(prompt(1, 40)[:20] + prompt(2, 20))
    out = run(capsys, "cache", "stats", "--cache-ssd", cache)[1]
    assert "  conversations  1 with 1 turn, continued 0 times\n" in out and "  restores" not in out
    state = dict.fromkeys(
        ("conversations", "users", "hits", "checkpoints", "pages", "segments", "anchors", "disk_bytes"), 1
    )
    told = {
        "enabled": True,
        "path": str(cache),
        "fingerprint": MODEL.hex(),
        "state": state,
        "counters": {"temporary_removed": 0, "loose_segments": 0, "read_errors": 0, "loads": 2},
        "damaged": {},
    }
    monkeypatch.setattr("pyrun.cache.remote.ask", lambda url, path, key: told)
    out = run(capsys, "cache", "stats", "--url", "127.0.0.1:1")[1]
    assert re.search(r"restores +2 since the server started", out)


def test_ls_shows_other_numbers_than_are_stored(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = prompt(1, 1100)  # a conversation is known by its first 1024 tokens
    longer = [*shared, *prompt(2, 30)]
    fill(cache, prompt(5), shared, longer)
    fill(cache, prompt(3), user="alice")
    models = run_json(capsys, "cache", "ls", "--cache-ssd", cache)["models"]
    assert [model["fingerprint"] for model in models] == [MODEL.hex()]
    found = {(c["hash"], c["user"]): c for c in models[0]["conversations"]}
    alice = _kernels.user_key("alice").hex()
    assert set(found) == {
        (conversation(prompt(5)), None),
        (conversation(shared), None),
        (conversation(prompt(3)), alice),
    }
    newest = found[conversation(shared), None]
    assert (newest["turns"], newest["tokens"], newest["tier"], newest["backend"]) == (2, 1130, "cold", "cpu")
    assert newest["bytes_shared"] == 0 and newest["bytes_own"] % BLOCK == 0
    out = run(capsys, "cache", "ls", "--cache-ssd", cache)[1]
    assert f"model {MODEL.hex()}" in out
    assert " 1,130 " in out and all(c["hash"] in out for c in found.values()) and alice[:8] in out and " s ago" in out


def test_shared_bytes_count_as_own(cache: Path) -> None:
    static = prompt(1, 64)
    with store_at(cache) as store:
        for seed in (2, 3):
            tokens = [*static, *prompt(seed, 30)]
            store.save(tokens, rows_of(tokens, 64), n_static=64)
    first, second = list_cache(cache).models[0].conversations
    assert first.bytes_shared == second.bytes_shared > 0
    with store_at(cache) as store:
        assert store.remove_conversation(bytes(16), int(first.hash, 16)) == first.bytes_own


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 90), st.sampled_from(["", "ann"])), min_size=1, max_size=6))
def test_json_disagrees_with_the_bytes_on_disk(saves: list[tuple[int, int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        for seed, length, user in saves:
            fill(cache, prompt(seed, length), user=user)
        result = plain_json("stats", cache)
        sizes = [max(0, -(-path.lstat().st_size // BLOCK) * BLOCK) for path in cache.rglob("*") if path.is_file()]
        folders = [path for path in [cache, *cache.rglob("*")] if path.is_dir()]
        sizes += [max(BLOCK, path.stat().st_blocks * 512) for path in folders]
        assert result["bytes"] == sum(sizes)
        model = result["models"][0]
        assert model["bytes"] == result["bytes"] - 2 * BLOCK  # the folder itself and its tag
        with store_at(cache, inspect=True) as store:
            assert store.stats().disk_bytes == result["bytes"]
        checkpoints = list(cache.rglob("ckpt-*.bin"))
        assert model["turns"] == len(checkpoints)
        assert model["conversations"] == len({path.parent for path in checkpoints})
        assert model["page_files"] == len(list(cache.rglob("*.seg")))
        assert model["users"] == len({user for _, _, user in saves} - {""})
        listed = plain_json("ls", cache)["models"][0]["conversations"]
        assert {(c["hash"], c["user"]) for c in listed} == {
            (path.parent.name, path.parts[-3] if path.parts[-4] == "u" else None) for path in checkpoints
        }
        # Removing frees what was promised: the own bytes of each, one after the other.
        for c in listed:
            now = {(d.hash, d.user): d for d in list_cache(cache).models[0].conversations}
            before = _kernels.measure_tree(str(cache))
            with store_at(cache) as store:
                freed = store.remove_conversation(bytes.fromhex(c["user"] or "00" * 16), int(c["hash"], 16))
            assert freed == now[c["hash"], c["user"]].bytes_own == before - _kernels.measure_tree(str(cache))


def plain_json(command: str, cache: Path) -> Any:
    """Like run_json, for tests that cannot use function-scoped fixtures."""
    from click.testing import CliRunner

    from pyrun.cli.main import cli

    result = CliRunner().invoke(cli, ["cache", command, "--cache-ssd", str(cache), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# --- damage ---


def test_flipped_byte_is_called_sound(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1), prompt(2))
    code, out, err = run(capsys, "cache", "verify", "--cache-ssd", cache)
    assert (code, out) == (0, "") and "sound, 6 files read" in err
    damaged = segment_files(cache)[0]
    flip_last_byte(damaged)
    code, out, err = run(capsys, "cache", "verify", "--cache-ssd", cache)
    assert code == 1
    assert out == f"{damaged}: bad_checksum\n"
    assert f"error: 1 of 6 files fail their checksum in {cache / MODEL.hex()}/\n" in err
    assert "hint: `llama-run cache gc --corrupt` sets them aside" in err
    code, out, _ = run(capsys, "cache", "verify", "--cache-ssd", cache, "--json")
    assert code == 1
    assert [d["path"] for d in json.loads(out)["models"][0]["damaged"]] == [str(damaged)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_flipped_byte_is_called_sound(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        fill(cache, prompt(1))
        files = sorted(
            path for path in cache.rglob("*") if path.is_file() and path.name not in ("lock", "CACHEDIR.TAG")
        )
        path = data.draw(st.sampled_from(files))
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        found = verify_cache(cache).models[0]
        assert str(path) in [damage.path for damage in found.damaged] and not found.is_sound


def test_truncated_files_are_called_sound(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1), prompt(2), prompt(3))
    first, second, _ = segment_files(cache)
    os.truncate(first, first.stat().st_size - 1)
    second.write_bytes(b"")
    code, out, err = run(capsys, "cache", "verify", "--cache-ssd", cache)
    assert code == 1
    assert f"{first}: truncated" in out and f"{second}: truncated" in out and "incomplete" in out
    # The index files of the two conversations that lost all their turns are not looked at any more.
    assert "4 of 7 files are damaged" in err and "2 have the wrong length" in err
    assert run_json(capsys, "cache", "stats", "--cache-ssd", cache)["models"][0]["damaged"] == {
        "truncated": 2,
        "incomplete": 2,
    }
    assert "warning: damage in 4 files" in run(capsys, "cache", "ls", "--cache-ssd", cache)[2]


def test_hostile_names_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / os.fsdecode(b"ca\xffche")
    with store_at(cache) as store:
        store.save(prompt(1), rows_of(prompt(1)), backend="\x1b[31mred")
    (cache / MODEL.hex() / "pages" / os.fsdecode(b"\xff\x1b[31m")).write_bytes(b"junk")
    for words in (["ls"], ["stats"], ["verify"], ["verify", "--json"], ["gc", "--corrupt"], ["verify"]):
        _, out, err = run(capsys, "cache", *words, "--cache-ssd", cache)
        assert "\x1b" not in out + err and "Traceback" not in err
    assert not (cache / MODEL.hex() / "pages" / os.fsdecode(b"\xff\x1b[31m")).exists()


def test_gc_corrupt_loses_sound_state(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1), prompt(2))
    damaged = segment_files(cache)[0]
    flip_last_byte(damaged)
    code, out, err = run(capsys, "cache", "gc", "--corrupt", "--cache-ssd", cache)
    assert code == 0, err
    assert "2 damaged files set aside" in out  # the pages, and the checkpoint that needs them
    assert f"set aside: {damaged} (bad_checksum)" in err and "`llama-run cache gc` removes" in err
    assert not damaged.exists()
    quarantine = cache / MODEL.hex() / "quarantine"
    assert len(list(quarantine.iterdir())) == 2
    assert run(capsys, "cache", "verify", "--cache-ssd", cache)[0] == 0
    with store_at(cache) as store:
        assert store.lookup(prompt(1)).n_tokens == 0
        assert b"".join(run[2] for run in store.load(prompt(2)).runs) == rows_of(prompt(2))(0, 40)

    before = _kernels.measure_tree(str(cache))
    aside = run_json(capsys, "cache", "stats", "--cache-ssd", cache)["models"][0]
    assert aside["quarantine_files"] == 2
    freed = run_json(capsys, "cache", "gc", "--cache-ssd", cache)
    assert freed["bytes_freed"] == before - _kernels.measure_tree(str(cache)) == aside["quarantine_bytes"] > 0
    assert not quarantine.exists()
    assert run_json(capsys, "cache", "gc", "--cache-ssd", cache)["bytes_freed"] == 0


def test_gc_keeps_what_nothing_can_use(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = prompt(1, 48)
    with store_at(cache) as store:
        store.save(tokens[:32], rows_of(tokens), checkpoint=False)
        store.save(tokens, rows_of(tokens))
    segment_files(cache)[0].unlink()  # the beginning of the conversation
    (cache / MODEL.hex() / "pages" / "tmp-7").write_bytes(bytes(5000))
    stats = run_json(capsys, "cache", "stats", "--cache-ssd", cache)["models"][0]
    assert (stats["unfinished_files"], stats["unusable_files"]) == (1, 1)
    code, out, err = run(capsys, "cache", "gc", "--cache-ssd", cache)
    assert code == 0 and "freed" in out and "incomplete" in err
    assert not segment_files(cache) and not list(cache.rglob("tmp-*")) and not list(cache.rglob("*.bin"))


def test_cleaning_applies_limits_that_nobody_gave(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, *(prompt(seed, 20) for seed in range(1, 301)))  # more than a server keeps by default
    fill(cache, prompt(1), model=OTHER)
    run_json(capsys, "cache", "gc", "--cache-ssd", cache)
    run_json(capsys, "cache", "rm", conversation(prompt(1, 20)), "--yes", "--cache-ssd", cache)
    models = list_cache(cache).models
    assert [len(model.conversations) for model in models] == [299, 1]


# --- removing ---


def test_rm_does_not_ask(cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache, prompt(1), prompt(2))
    name = conversation(prompt(1))
    before = snapshot(cache)
    for words in ((name,), ("--all",)):
        code, _, err = run(capsys, "cache", "rm", *words, "--cache-ssd", cache)
        assert code == 1 and "this would remove" in err and "hint: add --yes" in err
    answers: list[str] = []
    monkeypatch.setattr("pyrun.console.is_interactive", lambda: True)

    def refuse(question: str, err: bool) -> bool:
        answers.append(question)
        return False

    monkeypatch.setattr("click.confirm", refuse)
    assert run(capsys, "cache", "rm", name[:6], "--cache-ssd", cache)[0] == 130
    assert answers[0].startswith("Remove 1 conversation, ") and snapshot(cache) == before
    monkeypatch.setattr("click.confirm", lambda question, err: True)
    code, out, err = run(capsys, "cache", "rm", name[:6], "--cache-ssd", cache)
    assert code == 0 and "1 conversation removed" in out and f"  {name}: 1 turn, 40 tokens" in err
    assert [c.hash for c in list_cache(cache).models[0].conversations] == [conversation(prompt(2))]


def test_rm_frees_other_bytes_than_it_says(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1), prompt(2))
    fill(cache, prompt(1), model=OTHER)
    before = _kernels.measure_tree(str(cache))
    done = run_json(capsys, "cache", "rm", conversation(prompt(1)), "--model", "f1", "--yes", "--cache-ssd", cache)
    after = _kernels.measure_tree(str(cache))
    assert done["bytes_freed"] == before - after > 0
    assert [c["hash"] for c in done["conversations"]] == [conversation(prompt(1))]
    assert [len(model.conversations) for model in list_cache(cache).models] == [1, 1]
    done = run_json(capsys, "cache", "rm", "--all", "--yes", "--cache-ssd", cache)
    assert done["bytes_freed"] == after - _kernels.measure_tree(str(cache)) and len(done["conversations"]) == 2
    assert [path.name for path in cache.iterdir()] == ["CACHEDIR.TAG"]
    assert run(capsys, "cache", "ls", "--cache-ssd", cache) == (0, "", f"nothing is stored in {cache}\n")


def test_rm_takes_one_user_for_another(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1))
    for user in ("alice", "bob"):
        fill(cache, prompt(1), prompt(2), user=user)
    fill(cache, prompt(1), model=OTHER, user="alice")
    with store_at(cache) as store:  # pages whose answer never came: no conversation lists them
        store.save(prompt(9), rows_of(prompt(9)), user="carol", checkpoint=False)
    done = run_json(capsys, "cache", "rm", "--user", "alice", "--yes", "--cache-ssd", cache)
    assert len(done["conversations"]) == 3
    left = {c.user for model in list_cache(cache).models for c in model.conversations}
    assert left == {None, _kernels.user_key("bob").hex()}
    assert run_json(capsys, "cache", "rm", "--user", "carol", "--yes", "--cache-ssd", cache)["bytes_freed"] > 0
    assert not list(cache.rglob(_kernels.user_key("carol").hex()))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("", 2, "give the hashes of conversations, or --all, or --user ID"),
        ("--all --user x", 2, "give the hashes of conversations, or --all, or --user ID"),
        ("abcd --all", 2, "give the hashes of conversations, or --all, or --user ID"),
        ("xyz!", 1, "'xyz!' is not the hash of a conversation"),
        ("abc", 1, "'abc' is not the hash of a conversation"),
        ("0000000000000000", 1, "no conversation 0000000000000000 is stored"),
        ("--user a/b", 1, "'a/b' is not a user id"),
        ("--user nobody", 1, "nothing is stored for the user 'nobody'"),
        ("--all --model 00", 1, "no model in"),
    ],
)
def test_wrong_names_remove_something(
    cache: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, message: str
) -> None:
    fill(cache, prompt(1))
    before = snapshot(cache)
    actual, _, err = run(capsys, "cache", "rm", *words.split(), "--yes", "--cache-ssd", cache)
    assert (actual, message in err) == (code, True), err
    assert snapshot(cache) == before


def test_short_hash_removes_several_conversations(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: dict[str, int] = {}
    for seed in range(2000):  # two prompts whose hashes start alike
        start = conversation(prompt(seed, 5))[:4]
        if start in seen:
            break
        seen[start] = seed
    fill(cache, prompt(seen[start], 5), prompt(seed, 5))
    code, _, err = run(capsys, "cache", "rm", start, "--yes", "--cache-ssd", cache)
    assert code == 1 and f"{start} could be any of these conversations:\n  {start}" in err
    assert len(list_cache(cache).models[0].conversations) == 2


# --- stores that cannot be had ---


@pytest.mark.parametrize(
    "command", ["ls", "stats", "verify", "gc", "gc --corrupt", "rm --all --yes", "rm {hash} --yes"]
)
def test_store_of_a_running_server_is_touched(cache: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    fill(cache, prompt(1))
    with holding(cache) as pid:
        before = snapshot(cache)
        words = command.format(hash=conversation(prompt(1))).split()
        code, out, err = run(capsys, "cache", *words, "--cache-ssd", cache)
        assert code == 1 and out in ("", run_stats_line(out))
        assert f"error: {cache / MODEL.hex()} is in use by " in err and f"(pid {pid})" in err and "hint: " in err
        assert snapshot(cache) == before


def run_stats_line(out: str) -> str:
    """The first line of `stats` is about the folder, which nobody holds."""
    return out if out.count("\n") == 1 and "free beside it" in out else ""


def test_held_model_hides_the_others(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1))
    fill(cache, prompt(2), model=OTHER)
    with holding(cache) as pid:
        code, out, err = run(capsys, "cache", "ls", "--cache-ssd", cache, "--json")
        found = json.loads(out)
        assert code == 1 and f"(pid {pid})" in err
        assert [model["fingerprint"] for model in found["models"]] == [OTHER.hex()]
        assert [(held["fingerprint"], held["pid"]) for held in found["held"]] == [(MODEL.hex(), pid)]
        assert run(capsys, "cache", "verify", "--cache-ssd", cache, "--model", "f2")[0] == 0
        assert run(capsys, "cache", "rm", conversation(prompt(2)), "--yes", "--cache-ssd", cache)[0] == 0


def test_folder_without_permission_gives_a_traceback(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache, prompt(1))
    cache.chmod(0)
    try:
        with as_somebody_else():
            for command in ("ls", "gc"):
                code, _, err = run(capsys, "cache", command, "--cache-ssd", cache)
                assert code == 1 and f"error: cannot read {cache}: Permission denied" in err and "hint: run as" in err
    finally:
        cache.chmod(0o700)


def test_looking_needs_the_right_to_write(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path lies below a folder that only its owner may enter
        Path(folder).chmod(0o755)
        monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(Path(folder))))
        cache = Path(folder) / "cache"
        fill(cache, prompt(1))
        tree = [cache, *cache.rglob("*")]
        for path in tree:
            path.chmod(0o500 if path.is_dir() else 0o400)
        try:
            with as_somebody_else(*tree):
                assert conversation(prompt(1)) in run(capsys, "cache", "ls", "--cache-ssd", cache)[1]
                assert run(capsys, "cache", "verify", "--cache-ssd", cache)[0] == 0
                for command in (["gc"], ["rm", "--all", "--yes"]):
                    code, _, err = run(capsys, "cache", *command, "--cache-ssd", cache)
                    assert code == 1 and f"error: no permission to change {cache}" in err
        finally:
            for path in tree:
                path.chmod(0o700)


def test_read_only_disk_cannot_be_looked_at(cache: Path) -> None:
    fill(cache, prompt(1))
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    inside = ["unshare", "-rm", "sh", "-c", mount, str(cache)]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no read-only disk can be made here")
    command = [*inside, sys.executable, "-c", "from pyrun.__main__ import main; main()", "cache"]
    for words in (["ls"], ["stats"], ["verify"]):
        result = subprocess.run([*command, *words, "--cache-ssd", str(cache)], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    for words in (["gc"], ["rm", "--all", "--yes"]):
        result = subprocess.run([*command, *words, "--cache-ssd", str(cache)], capture_output=True, text=True)
        assert result.returncode == 1 and "is on a read-only disk" in result.stderr

"""The store through its bindings."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from stores import (
    MODEL,
    fill,
    holding,
    prompt,
    rows_of,
    store_at,
)

from pyrun import _kernels


def test_bindings_give_back_the_bytes_they_took(cache: Path) -> None:
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


def test_inspected_or_closed_store_is_not_changed(cache: Path) -> None:
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


def test_second_process_is_told_who_has_the_store(cache: Path) -> None:
    fill(cache, prompt(1))
    with holding(cache) as pid:
        for inspect in (False, True):
            with pytest.raises(_kernels.StoreBusyError) as busy:
                store_at(cache, inspect=inspect)
            assert busy.value.pid == pid and busy.value.kind == "busy"
    with store_at(cache, inspect=True), pytest.raises(_kernels.StoreBusyError) as busy:
        store_at(cache)
    assert busy.value.pid == os.getpid()


def test_verify_can_be_broken_off(cache: Path) -> None:
    fill(cache, prompt(1))

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with store_at(cache, inspect=True) as store:
        with pytest.raises(KeyboardInterrupt):
            store.verify(stop)
        assert store.verify().damaged == []


def test_close_waits_for_a_call(cache: Path) -> None:
    fill(cache, *(prompt(seed) for seed in range(20)))
    store = store_at(cache, inspect=True)
    closer = threading.Thread(target=store.close)
    report = store.verify(lambda done: closer.start() if not closer.ident else None)
    closer.join()
    assert report.n_files >= 40 and report.damaged == []
    store_at(cache).close()  # the lock was given back

"""Makes upstream's server tests use local models and own ports, and compares texts instead of matching them.

A test may look for words that only its own model says. Here the stand-in's text is written down on the unpatched
server, and the patched one has to say the same. Everything else the tests assert is left as it is.

Settings come from the environment, since workers of pytest-xdist get nothing else:
  UPSTREAM_TESTS_HUB      address of the local hub
  UPSTREAM_TESTS_RESULTS  file to append a line of JSON to for every test
  UPSTREAM_TESTS_SAID     folder of the texts
  UPSTREAM_TESTS_RECORD   1: write texts down; else: compare
  UPSTREAM_TESTS_CACHES   folder for state caches, a new one for every test; unset: no cache
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import utils
import wget

HUGGING_FACE = "https://huggingface.co/"
HUB = os.environ["UPSTREAM_TESTS_HUB"]
RESULTS = Path(os.environ["UPSTREAM_TESTS_RESULTS"])
SAID = Path(os.environ["UPSTREAM_TESTS_SAID"])
RECORD = os.environ.get("UPSTREAM_TESTS_RECORD") == "1"
CACHES = os.environ.get("UPSTREAM_TESTS_CACHES")

_said: list[str] = []
_expected: list[list[str]] = []


# A port is chosen before its server binds it, and in between the kernel may hand it to another. So each worker counts
# through ports of its own, below those that the kernel hands out.
_ports = itertools.count(20000 + 1000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))


def _free_port() -> int:
    for port in _ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("ports do not end")


def _local(value: Any) -> Any:
    """Gives the same request, with addresses of the hub in place of Hugging Face's."""
    return json.loads(json.dumps(value).replace(HUGGING_FACE, HUB)) if HUGGING_FACE in json.dumps(value) else value


def _redirected(send: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(url: str, *arguments: Any, **options: Any) -> Any:
        if "json" in options:
            options["json"] = _local(options["json"])
        return send(url.replace(HUGGING_FACE, HUB), *arguments, **options)

    return wrapper


def _fetch(url: str, out: str) -> None:
    Path(out).parent.mkdir(exist_ok=True)
    with urllib.request.urlopen(url.replace(HUGGING_FACE, HUB)) as source, Path(out).open("wb") as target:
        shutil.copyfileobj(source, target)


def _says_the_same(_regex: str, text: str) -> bool:
    at = len(_said)
    _said.append(text)
    return RECORD or not _expected or any(at < len(texts) and texts[at] == text for texts in _expected)


def _with_own_port(init: Callable[..., None]) -> Callable[..., None]:
    def wrapper(self: Any) -> None:
        init(self)
        self.server_port = _free_port()

    return wrapper


requests.get = _redirected(requests.get)
requests.post = _redirected(requests.post)
wget.download = _fetch
utils.match_regex = _says_the_same
utils.ServerProcess.__init__ = _with_own_port(utils.ServerProcess.__init__)


@pytest.fixture(autouse=True)
def _texts_of_one_test(request: pytest.FixtureRequest) -> Iterator[None]:
    path = SAID / hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:24]
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    _said.clear()
    _expected[:] = [] if RECORD else known
    yield
    if RECORD and _said not in known:
        path.write_text(json.dumps([*known, _said]), encoding="utf-8")


@pytest.fixture(autouse=True)
def _cache_of_one_test(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test starts with an empty cache, as it starts with an empty server.

    A server that cannot open its cache serves without it. So that this never passes for a test of the cache, the report
    says whether one was opened.
    """
    if CACHES is None:
        yield
        return
    folder = Path(CACHES) / hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:24]
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("LLAMA_ARG_CACHE_SSD", str(folder))
    yield
    request.node.user_properties.append(("cache", any(folder.glob("*/lock"))))
    shutil.rmtree(folder, ignore_errors=True)


class _Results:
    """What became of each test: the worst of setup, call and teardown."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cache = dict(report.user_properties).get("cache", False)
        if report.when == "call" or report.outcome != "passed" or cache:
            line = {"test": report.nodeid, "outcome": report.outcome, "cache": cache}
            if report.failed:
                line["why"] = str(report.longrepr)[-4000:]
                line["output"] = "".join(text for _, text in report.sections)[-12000:]
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Results())

"""Ways out of the tools' root folder, to private addresses, and past their limits: each is refused or bounded."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import json
import os
import resource
import shutil
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from helpers import wait_until
from stores import make_clone
from tool_fixtures import Bench, call, refusal

from pyrun.cli.main import cli
from pyrun.errors import UserError
from pyrun.tools import commands as commands_module
from pyrun.tools import files as files_module
from pyrun.tools import http as http_module
from pyrun.tools.http import HttpTools, is_public
from pyrun.tools.root import Root
from pyrun.tools.rules import read_rules
from pyrun.tools.tool import MAX_RESULT_CHARACTERS, Call, ToolError

# Paths


OUT = [
    "../outside/secret.txt",
    "a/../../outside/secret.txt",
    "./.././outside/secret.txt",
    "link_to_outside/secret.txt",
    "link_to_secret",
    "link_up/outside/secret.txt",
    "chain_1/secret.txt",
    "folder/link_up_again/outside/secret.txt",
    "link_to_outside/../secret.txt",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/environ",
    "proc_link/self/root/etc/passwd",
]
NO_FILE = [
    "proc/self/environ",
    "loop",
    "a\0b",
    "x" * 5000,
    "\udcff\ud800",
    "",
    ".",
    "..",
    "folder",
    "fifo",
    "socket",
]


def plant_links(bench: Bench) -> None:
    work = bench.work
    (work / "folder").mkdir()
    (work / "a").mkdir()
    (work / "link_to_outside").symlink_to(bench.outside)
    (work / "link_to_secret").symlink_to("../outside/secret.txt")
    (work / "link_up").symlink_to("..")
    (work / "chain_1").symlink_to("chain_2")
    (work / "chain_2").symlink_to(bench.outside)
    (work / "folder" / "link_up_again").symlink_to("../..")
    (work / "proc_link").symlink_to("/proc")
    (work / "loop").symlink_to("loop")


@pytest.mark.parametrize("path", OUT)
def test_no_tool_follows_a_path_that_leads_out(path: str, bench: Bench) -> None:
    plant_links(bench)
    box = bench.box()
    before = [sorted(os.walk(folder)) for folder in (bench.work, bench.outside)]
    refusal(box, "read_file", path=path)
    refusal(box, "file_exists", path=path)
    refusal(box, "write_file", path=path, content="planted")
    refusal(box, "edit_file", path=path, old="the secret", new="gone")
    if path != "link_to_secret":  # a link of this folder may be deleted: another test
        refusal(box, "delete_file", path=path)
    parent = path if path == "link_to_secret" else path.rpartition("/")[0]
    refusal(box, "list_directory", path=parent)
    refusal(box, "find_files", path=parent, pattern="*")
    refusal(box, "search_text", path=parent, text="e")
    assert [sorted(os.walk(folder)) for folder in (bench.work, bench.outside)] == before
    assert (bench.outside / "secret.txt").read_text() == "the secret"


@pytest.mark.parametrize("path", [*OUT, *NO_FILE])
def test_no_path_leads_out_or_to_what_is_no_file(path: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    work = bench.work
    monkeypatch.chdir(work)
    plant_links(bench)
    os.mkfifo(work / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")  # the path to it may be longer than a socket's may be
        box = bench.box()
        before = sorted(os.walk(bench.outside))
        assert "secret" not in refusal(box, "read_file", path=path).replace("secret.txt", "")
        refusal(box, "edit_file", path=path, old="the secret", new="gone")
        # What leads nowhere may be written or deleted where it stands; nothing outside changes.
        for name, more in (("write_file", {"content": "planted"}), ("delete_file", {})):
            try:
                call(box, name, path=path, **more)
            except (ToolError, ValueError):
                continue
    assert sorted(os.walk(bench.outside)) == before
    assert (bench.outside / "secret.txt").read_text() == "the secret"


def test_links_that_stay_inside_are_followed_and_a_link_is_deleted_itself(bench: Bench) -> None:
    (bench.work / "folder").mkdir()
    (bench.work / "folder" / "up").symlink_to("..")
    (bench.work / "absolute").symlink_to(bench.work / "inside.txt")
    (bench.work / "to_outside").symlink_to(bench.outside / "secret.txt")
    box = bench.box()
    assert "inside" in call(box, "read_file", path="folder/up/folder/../inside.txt")
    assert "inside" in call(box, "read_file", path="absolute")
    assert "inside" in call(box, "read_file", path=str(bench.work / "inside.txt"))
    assert call(box, "delete_file", path="to_outside") == "to_outside is deleted"
    assert call(box, "delete_file", path="absolute") == "absolute is deleted"
    assert (bench.outside / "secret.txt").exists()
    assert (bench.work / "inside.txt").exists()


def test_a_link_planted_between_looking_and_opening_is_not_followed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = bench.box()
    victim = bench.work / "victim"
    real = Root._link

    def plant(self: Root, folder: int, name: str) -> str | None:
        found = real(self, folder, name)
        if name == "victim" and found is None:
            if victim.is_dir():
                victim.rmdir()
            else:
                victim.unlink()
            victim.symlink_to(bench.outside if kind == "folder" else bench.outside / "secret.txt")
        return found

    for kind in ("file", "folder"):
        victim.unlink(missing_ok=True)
        if kind == "file":
            victim.write_text("harmless")
        else:
            victim.mkdir()
        monkeypatch.setattr(Root, "_link", plant)
        refusal(box, "read_file", path="victim" if kind == "file" else "victim/secret.txt")
        monkeypatch.setattr(Root, "_link", real)
        assert victim.is_symlink()


def test_while_links_are_swapped_in_and_out_nothing_outside_is_read_or_written(bench: Bench) -> None:
    box = bench.box()
    place = bench.work / "swapped"
    real, link = bench.work / "real", bench.work / "link"
    real.mkdir()
    (real / "secret.txt").write_text("harmless")
    (real / "mark").touch()
    link.symlink_to(bench.outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for source in (real, link):
                while not stop.is_set():
                    try:
                        source.rename(place)
                        break
                    except OSError:  # while it was away, a call made a folder of its name
                        shutil.rmtree(place, ignore_errors=True)
                time.sleep(0.0001)
                if place.is_symlink() or (place / "mark").exists():
                    place.rename(source)

    calls: list[tuple[str, dict[str, str]]] = [
        ("read_file", {"path": "swapped/secret.txt"}),
        ("write_file", {"path": "swapped/secret.txt", "content": "harmless"}),
        ("search_text", {"path": "swapped", "text": "e"}),
    ]
    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        for _ in range(300):
            for name, arguments in calls:
                try:
                    seen.add(call(box, name, **arguments))
                except ToolError as error:
                    seen.add(str(error).partition(":")[0])
    finally:
        stop.set()
        thread.join()
    assert (bench.outside / "secret.txt").read_text() == "the secret"
    assert not any("the secret" in text for text in seen)
    assert any("harmless" in text for text in seen), "the calls never came through"
    assert [path.name for path in bench.outside.iterdir()] == ["secret.txt"]


def test_what_llama_run_keeps_is_out_of_reach_even_inside_the_root(bench: Bench) -> None:
    kept = bench.work / "memory"
    kept.mkdir()
    (kept / "memory.db").write_text("what others said")
    settings = bench.work / "llama-run.toml"
    box = bench.box("write_file", memory=kept, protected=(kept, settings))
    assert "own" in refusal(box, "read_file", path="memory/memory.db")
    assert "own" in refusal(box, "list_directory", path="memory")
    assert "own" in refusal(box, "write_file", path="llama-run.toml", content="[tools]\ncommands = true")
    assert "others" not in call(box, "search_text", text="others")
    settings.write_text("")
    assert "own" in refusal(box, "write_file", path="llama-run.toml", content="[tools]\ncommands = true")


@pytest.mark.parametrize("target", ["file", "folder", "missing"])
def test_what_llama_run_keeps_is_out_of_reach_also_as_a_link(target: str, bench: Bench) -> None:
    (bench.work / "file").write_text("a key")
    (bench.work / "folder").mkdir()
    link = bench.work / "kept"
    link.symlink_to(target)
    box = bench.box(protected=(link,))
    for path in ("kept", target):
        assert "own" in refusal(box, "delete_file", path=path)
        assert "own" in refusal(box, "read_file", path=path)
        assert "own" in refusal(box, "write_file", path=path, content="planted")
    assert link.is_symlink()
    assert not (bench.work / "missing").exists()


@pytest.mark.parametrize("root", ["memory", "memory/users/alice", "link", "way/memory/users"])
def test_what_llama_run_keeps_is_no_root_folder(root: str, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    (memory / "users" / "alice").mkdir(parents=True)
    (tmp_path / "link").symlink_to(memory)
    (tmp_path / "way").symlink_to(".")
    for protected in (memory, tmp_path / "link"):
        with pytest.raises(UserError, match="own") as refused:
            Root(tmp_path / root, [tmp_path / "missing", protected])
        assert "--root" in (refused.value.hint or "")
    Root(tmp_path, [memory])


def test_the_command_says_so_where_it_is_started_in_what_llama_run_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_RUN_HOME", str(make_clone(tmp_path)))
    (tmp_path / "memory").mkdir()
    monkeypatch.chdir(tmp_path / "memory")
    refused = CliRunner().invoke(cli, ["tools", "--memory", ".", "list"]).exception
    assert isinstance(refused, UserError)
    assert "own" in refused.message and "--root" in (refused.hint or "")


def test_the_root_of_the_disk_is_no_root_folder() -> None:
    with pytest.raises(UserError):
        Root(Path("/"))


# Sizes and kinds of files


def test_huge_files_are_refused_and_left_out(bench: Bench) -> None:
    with (bench.work / "huge.txt").open("wb") as file:
        file.truncate(10 << 30)
    box = bench.box()
    assert "10,737,418,240 bytes" in refusal(box, "read_file", path="huge.txt")
    assert "10,737,418,240 bytes" in refusal(box, "edit_file", path="huge.txt", old="a", new="b")
    assert "1 large or binary files were left out" in call(box, "search_text", text="inside")


def test_binary_files_are_refused_and_left_out(bench: Bench) -> None:
    (bench.work / "image.png").write_bytes(b"\x89PNG\0\0inside")
    (bench.work / "latin.txt").write_bytes(b"caf\xe9 inside")
    box = bench.box()
    assert "binary" in refusal(box, "read_file", path="image.png")
    assert "binary" in refusal(box, "read_file", path="latin.txt")
    assert "2 large or binary files were left out" in call(box, "search_text", text="inside")


def test_results_are_bounded(bench: Bench) -> None:
    (bench.work / "long.txt").write_text("line of text\n" * 70_000)
    for n in range(2100):
        (bench.work / f"file{n}").touch()
    box = bench.box()
    assert "of 70000]" in call(box, "read_file", path="long.txt", max_lines=10_000)
    assert "cut: more than 2,000" in call(box, "list_directory")
    assert "cut: more than 2,000" in call(box, "find_files", pattern="*")
    assert "cut: more than 2,000" in call(box, "search_text", text="line")


@pytest.mark.parametrize("depth", [1, 10])
def test_a_search_holds_no_more_than_its_result_has_room_for(depth: int, bench: Bench) -> None:
    folder = bench.work / "/".join(["long" * 50] * depth)
    folder.mkdir(parents=True)
    (folder / "many.txt").write_text("a\n" * 500_000)
    box = bench.box()
    tracemalloc.start()
    try:
        told = call(box, "search_text", text="a")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000
    assert len(told) <= MAX_RESULT_CHARACTERS
    assert told.endswith(f"[cut: more than {told.count('.txt:'):,} lines]")


def test_a_line_longer_than_a_result_is_read_piece_by_piece(bench: Bench) -> None:
    line = "".join(f"{n:07d}" for n in range(40_000))
    (bench.work / "wide.txt").write_text(f"first\n{line}\nlast\n")
    box = bench.box()
    assert call(box, "read_file", path="wide.txt") == "1\tfirst\n[lines 1 to 1 of 3]"
    read, begin = "", 1
    while begin <= len(line):
        result = call(box, "read_file", path="wide.txt", first_line=2, first_character=begin)
        assert len(result) <= 100_000
        piece, *more = result.removeprefix("2\t").split("\n")
        read += piece
        told = (
            f"[line 2 is cut: characters {begin} to {len(read)} of 280000; go on with first_character {len(read) + 1}]"
        )
        assert more == ([told] if len(read) < len(line) else ["3\tlast", "[lines 2 to 3 of 3]"])
        begin = len(read) + 1
    assert read == line
    assert "no character 280001" in refusal(box, "read_file", path="wide.txt", first_line=2, first_character=begin)


def test_many_folders_are_walked_with_few_of_them_open(bench: Bench, few_files: Callable[[int], None]) -> None:
    for n in range(150):
        (bench.work / f"folder{n:03d}" / "below").mkdir(parents=True)
        (bench.work / f"folder{n:03d}" / "below" / "note.txt").write_text("wanted")
    box = bench.box()
    few_files(30)
    assert call(box, "find_files", pattern="note.txt").splitlines() == [
        f"folder{n:03d}/below/note.txt" for n in range(150)
    ]
    assert len(call(box, "search_text", text="wanted").splitlines()) == 150


def test_a_folder_that_becomes_a_link_during_a_walk_is_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = bench.work / "victim"
    victim.mkdir()
    opened = files_module._opened_within

    def plant(folder: int, name: str, flags: int) -> int | None:
        if name == "victim":
            victim.rmdir()
            victim.symlink_to(bench.outside)
        return opened(folder, name, flags)

    monkeypatch.setattr(files_module, "_opened_within", plant)
    assert call(bench.box(), "search_text", text="secret") == "nothing was found"
    assert victim.is_symlink()


def test_of_a_huge_folder_no_more_is_read_than_may_be_visited(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "MAX_VISITED", 5)
    for number in range(20):
        (bench.work / f"{number}.txt").touch()
    read: list[str] = []
    scan = os.scandir

    def one_by_one(entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for entry in entries:
            read.append(entry.name)
            yield entry

    @contextmanager
    def counted(folder: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scan(folder) as entries:
            yield one_by_one(entries)

    monkeypatch.setattr(os, "scandir", counted)
    assert "too many files" in refusal(bench.box(), "find_files", pattern="*")
    assert len(read) == 6


@pytest.mark.parametrize(("name", "arguments"), [("find_files", {"pattern": "*"}), ("search_text", {"text": "inside"})])
def test_folders_that_cannot_be_opened_for_want_of_room_are_not_silently_missing(
    name: str, arguments: dict[str, str], bench: Bench, few_files: Callable[[int], None]
) -> None:
    (bench.work / "/".join(["deep"] * 50)).mkdir(parents=True)
    box = bench.box()
    few_files(20)
    assert "Too many open files" in refusal(box, name, **arguments)


@pytest.fixture
def few_files() -> Iterator[Callable[[int], None]]:
    """Lets this process open just some more files than it has open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(more: int) -> None:
        taken = {int(path.name) for path in Path("/dev/fd").iterdir()}
        free = (number for number in itertools.count() if number not in taken)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, more, None)), before[1]))

    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# Commands


def sleepers(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if mark in (process.info["cmdline"] or []) and "sh" not in (process.info["cmdline"] or [""])[0]:
            found.append(process)
    return found


@pytest.mark.parametrize(
    "command",
    [
        "trap '' TERM; sleep {0} & sleep {0}",
        "trap '' TERM; setsid sleep {0} & setsid sh -c 'trap \"\" TERM; sleep {0} & sleep {0}' & sleep {0}",
        "setsid nohup sh -c 'setsid sleep {0} & setsid sleep {0}' >/dev/null 2>&1 & exit 0",
    ],
    ids=["ignores SIGTERM", "new sessions", "leaves a daemon"],
)
def test_whatever_a_command_started_ends_with_it(command: str, bench: Bench) -> None:
    mark = f"98765.{os.getpid()}{abs(hash(command)) % 10**6}"
    result = call(bench.box(), "execute_command", command=command.format(mark), timeout=1)
    assert result.startswith(("[ended, because its time was over]", "[exit code 0]"))
    wait_until(lambda: not sleepers(mark), 10, "no process is left")


def test_endless_output_is_ended_and_its_beginning_and_end_are_kept(bench: Bench) -> None:
    result = call(bench.box(), "execute_command", command="echo first; yes endless", timeout=60)
    assert result.startswith(f"[ended, because it wrote more than {commands_module.MAX_OUTPUT_BYTES:,} bytes]\nfirst\n")
    assert "[cut: " in result
    assert len(result) < 130_000


def test_a_command_has_no_input_no_secrets_and_ends_when_the_call_is_cancelled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-123")
    monkeypatch.setenv("GITHUB_TOKEN", "ghp")
    monkeypatch.setenv("HARMLESS", "shown")
    box = bench.box()
    result = call(box, "execute_command", command="cat; env; pwd")
    assert "sk-123" not in result
    assert "ghp" not in result
    assert "HARMLESS=shown" in result
    assert result.rstrip().endswith(str(bench.work))
    pending = box.prepare("execute_command", {"command": "sleep 600"})
    pending.call.stopped.set()
    assert "cancelled" in box.make(pending)


def test_commands_are_off_unless_they_are_asked_for(bench: Bench) -> None:
    assert "--commands" in refusal(bench.box(commands=False), "execute_command", command="true")


# HTTP


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://LOCALHOST.:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f000001:{port}/",
        "http://127.1:{port}/",
        "http://0:{port}/",
        "http://[::1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://[::ffff:7f00:1]:{port}/",
        "http://[64:ff9b::7f00:1]:{port}/",
        "http://[2002:7f00:1::]:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://100.64.0.1/",
        "http://[fe80::1]/",
        "http://[fd00::1]/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://user:word@127.0.0.1:{port}/",
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "gopher://127.0.0.1:{port}/",
        "http://",
        "http://[::1",
        "http://127.0.0.1:99999/",
        "//127.0.0.1:{port}/",
        "127.0.0.1:{port}",
        "http://a..b/",
        "http://{{}}/",
    ],
)
def test_private_addresses_and_other_languages_are_refused(url: str, bench: Bench, web: ThreadingHTTPServer) -> None:
    box = bench.box()
    for name in ("http_get", "http_post"):
        refusal(box, name, url=url.format(port=web.server_port))
    assert web.seen == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_to_private_addresses_are_refused(status: int, bench: Bench, web: ThreadingHTTPServer) -> None:
    box = bench.box(f"address:127.0.0.1:{web.server_port}")
    start = f"http://127.0.0.1:{web.server_port}/to{status}?"
    for target in (
        "http://127.0.0.1:1/",
        "http://localhost:1/",
        "http://[::1]:1/",
        "//10.0.0.1/",
        "file:///etc/passwd",
    ):
        told = refusal(box, "http_get", url=start + target)
        assert "private" in told or "only http" in told


def test_redirects_end_and_headers_stay_with_the_server_they_are_for(bench: Bench, web: ThreadingHTTPServer) -> None:
    here = f"http://127.0.0.1:{web.server_port}"
    box = bench.box(f"address:127.0.0.1:{web.server_port}")
    assert "more than 5 times" in refusal(box, "http_get", url=f"{here}/to?/to?/to?/to?/to?/to?/to?/to")
    tools = HttpTools(read_rules([f"address:127.0.0.1:{web.server_port}"]), lambda host, port: ["127.0.0.1"])
    there = f"http://other.example:{web.server_port}/echo"
    headers = {"X-Mark": "for one", "Authorization": "Bearer secret"}
    for status, kept in ((302, False), (307, False)):
        result = tools.request("GET", Call({"url": f"{here}/to{status}?{there}", "headers": headers}))
        assert ("for one" in result) == kept
    assert "for one" in tools.request("GET", Call({"url": f"{here}/to?/echo", "headers": headers}))
    with pytest.raises(ToolError, match="sends this on"):
        tools.request("POST", Call({"url": f"{here}/to307?{there}", "body": "private"}))
    result = tools.request("POST", Call({"url": f"{here}/to303?{there}", "body": "private"}))
    assert '"method": "GET"' in result
    assert "private" not in result.partition("\n\n")[2]


def test_names_that_resolve_to_private_addresses_are_refused(web: ThreadingHTTPServer) -> None:
    for addresses in (["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["fe80::1%eth0"]):
        tools = HttpTools(read_rules([]), lambda host, port, found=addresses: found)  # type: ignore[misc]
        with pytest.raises(ToolError, match="private address"):
            tools.request("GET", Call({"url": f"http://innocent.example:{web.server_port}/"}))
    assert web.seen == []  # type: ignore[attr-defined]


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(web: ThreadingHTTPServer) -> None:
    asked: list[str] = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    tools = HttpTools(read_rules([f"address:127.0.0.1:{web.server_port}"]), rebinding)
    result = tools.request("GET", Call({"url": f"http://rebind.example:{web.server_port}/echo"}))
    assert f'"host": "rebind.example:{web.server_port}"' in result
    assert asked == ["rebind.example"]


def test_a_certificate_is_checked_against_the_name_not_the_address(
    tmp_path: Path, web: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = self_signed("site.example", tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    web.socket = context.wrap_socket(web.socket, server_side=True)
    tools = HttpTools(read_rules(["address:127.0.0.1"]), lambda host, port: ["127.0.0.1"])
    here = {name: f"https://{name}:{web.server_port}/echo" for name in ("site.example", "other.example")}
    with pytest.raises(ToolError, match="self-signed"):
        tools.request("GET", Call({"url": here["site.example"]}))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert '"host": "site.example' in tools.request("GET", Call({"url": here["site.example"]}))
    with pytest.raises(ToolError, match="other.example"):
        tools.request("GET", Call({"url": here["other.example"]}))


def self_signed(name: str, folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    title = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder(title, title, key.public_key(), 1, now, now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = (folder / "certificate.pem", folder / "key.pem")
    files[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


def test_where_one_address_does_not_answer_the_next_is_tried(web: ThreadingHTTPServer) -> None:
    rules = read_rules([f"address:[::1]:{web.server_port}", f"address:127.0.0.1:{web.server_port}"])
    tools = HttpTools(rules, lambda host, port: ["::1", "127.0.0.1"])
    result = tools.request("GET", Call({"url": f"http://both.example:{web.server_port}/echo"}))
    assert f'"host": "both.example:{web.server_port}"' in result


@pytest.mark.parametrize("rule", ["address:127.0.0.1:{port}", "address:127.0.0.0/8", "address:127.0.0.1"])
def test_an_allowed_address_is_open(rule: str, bench: Bench, web: ThreadingHTTPServer) -> None:
    url = f"http://127.0.0.1:{web.server_port}/echo"
    assert '"method": "GET"' in call(bench.box(rule.format(port=web.server_port)), "http_get", url=url)
    assert "private" in refusal(bench.box("address:127.0.0.1:1"), "http_get", url=url)


def test_endless_and_slow_answers_are_cut(bench: Bench, web: ThreadingHTTPServer) -> None:
    here = f"http://127.0.0.1:{web.server_port}"
    box = bench.box(f"address:127.0.0.1:{web.server_port}")
    endless = call(box, "http_get", url=f"{here}/endless")
    assert len(endless) < 101_000
    assert "too long" in refusal(box, "http_get", url=f"{here}/drip", timeout=1)
    assert "bytes that are no text" in call(box, "http_get", url=f"{here}/binary")
    assert http_module.MAX_BODY_BYTES == 1_000_000


@pytest.mark.parametrize(
    "headers",
    [{"Host": "other"}, {"A\r\nB": "c"}, {"A": "b\r\nC: d"}, {"content-length": "5"}, {"Transfer-Encoding": "chunked"}],
)
def test_headers_cannot_smuggle(headers: dict[str, str], bench: Bench, web: ThreadingHTTPServer) -> None:
    box = bench.box(f"address:127.0.0.1:{web.server_port}")
    refusal(box, "http_get", url=f"http://127.0.0.1:{web.server_port}/echo", headers=headers)
    refusal(box, "http_get", url=f"http://127.0.0.1:{web.server_port}/echo\r\nX: y", headers={})
    assert web.seen == []  # type: ignore[attr-defined]


# JSON


def test_a_schema_fetches_nothing_and_ends(
    bench: Bench, web: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = bench.box()
    remote = {"$ref": f"http://127.0.0.1:{web.server_port}/schema.json"}
    assert "cannot be used" in refusal(box, "json_validate", text="{}", schema=remote)
    assert web.seen == []  # type: ignore[attr-defined]
    monkeypatch.setattr("pyrun.tools.json_tools.VALIDATE_SECONDS", 3)
    text = '"' + "a" * 40 + '!"'
    assert "not done after" in refusal(box, "json_validate", text=text, schema={"pattern": "^(a+)+$"})
    for source in ("[" * 100_000, '{"a":' * 50_000, "1" * 100_000, "NaN", "", "\ud800"):
        refusal(box, "json_parse", text=source)


def test_of_many_errors_only_those_are_held_that_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrun.tools.json_tools.VALIDATE_SECONDS", 300)  # however slow the machine
    text = json.dumps("a" * 1_500_000)
    schema = {"allOf": [{"maxLength": 0}] * 500}  # each error holds a copy of the text
    told = call(bench.box(), "json_validate", text=text, schema=schema).splitlines()
    assert (len(told), told[-1]) == (21, "and more")
    # Of anyOf, all errors are kept until one of its schemas fits.
    assert "of memory" in refusal(bench.box(), "json_validate", text=text, schema={"anyOf": [schema]})

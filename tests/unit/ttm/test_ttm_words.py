"""scripts/apply-ttm-kernel-params: what it shows, asks and refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ttm_system import ENTRIES, GRUB, SCRIPT, TTM, UBUNTU, Live, System, ttm


def test_change_is_shown(system: System) -> None:
    system.put({GRUB: 'GRUB_TIMEOUT=1\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"'})
    _, output = system.run("--dry-run", "24")
    assert (
        "--- /etc/default/grub\n+++ /etc/default/grub (new)\n@@ -1,2 +1,2 @@\n GRUB_TIMEOUT=1\n"
        '-GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n\\ no newline at the end\n'
        f'+GRUB_CMDLINE_LINUX_DEFAULT="quiet {TTM}"\n\\ no newline at the end\n'
    ) in output


@pytest.mark.parametrize(
    ("ram", "asked", "expected"),
    [
        (31.2, None, 25),
        (31.2, "25", 25),
        (31.2, "16", 16),
        (125.4, None, 108),
        (125.4, "108", 108),
        (91.6, None, 85),
        (188.0, None, 168),
        (14.8, None, 8),
        (31.2, "26", "too much: 6 of 31.2 GiB have to stay"),
        (125.4, "110", "too much: of 128 GiB about 108 work"),
        (31.2, "15", "too little: without any parameter"),
        (31.2, "0", "too little"),
        (12.9, None, "nothing to gain here"),
        (7.2, "4", "nothing to gain here"),
        (31.2, "12.5", "'12.5' is not a whole number of GiB"),
        (31.2, "-3", "not a whole number"),
        (31.2, "lots", "not a whole number"),
        (31.2, "\u0662\u0664", "not a whole number"),
    ],
)
def test_wrong_size_is_refused(ram: float, asked: str | None, expected: int | str) -> None:
    if isinstance(expected, int):
        assert ttm.choose_size(asked, ram) == expected
        return
    with pytest.raises(ttm.Failure, match=expected) as caught:
        ttm.choose_size(asked, ram)
    assert caught.value.hint


def test_size_from_the_environment_is_used(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    system.put({GRUB: 'GRUB_CMDLINE_LINUX_DEFAULT=""\n'})
    monkeypatch.setenv("LLAMA_GTT_SIZE", "20")
    assert system.run("--dry-run")[1].startswith("20 GiB of 31.2 GiB RAM")
    assert system.run("--dry-run", "24")[1].startswith("24 GiB")


EMPTY = {GRUB: 'GRUB_CMDLINE_LINUX_DEFAULT=""\n'}


@pytest.mark.parametrize(
    ("files", "arguments", "message", "remedy"),
    [
        ({}, ["--yes"], "found neither GRUB nor systemd-boot", "ttm.pages_limit=6553600"),
        (EMPTY, [], "there is no terminal to ask on", "add --yes"),
        (EMPTY, ["--yes", "--kernel", "new"], "'new' is not a kernel version", "--kernel 6.14"),
        (EMPTY | {"run/ostree-booted": ""}, ["--yes", "24"], "ostree makes", f"--append-if-missing={TTM.split()[0]}"),
        (EMPTY | {"etc/NIXOS": ""}, ["--yes"], "NixOS makes", "boot.kernelParams"),
        (
            EMPTY | {"etc/modprobe.d/ttm.conf": "options ttm pages_limit=5242880\n"},
            ["--yes", "24"],
            "modprobe.d sets another size",
            "amd-ttm --set 24",
        ),
        (
            {GRUB: 'GRUB_CMDLINE_LINUX_DEFAULT="quiet \\\nsplash"\n'},
            ["--yes"],
            "/etc/default/grub: line 1 is written in a way",
            "on one line of its own",
        ),
        ({GRUB: "if true; then GRUB_CMDLINE_LINUX_DEFAULT=a; fi\n"}, ["--yes"], "line 1 is written", "one line"),
        ({GRUB: 'GRUB_CMDLINE_LINUX_DEFAULT="a"b\n'}, ["--yes"], "line 1 is written", "one line"),
        ({GRUB: "GRUB_CMDLINE_LINUX_DEFAULT=a\\ b\n"}, ["--yes"], "line 1 is written", "one line"),
        ({GRUB: "GRUB_CMDLINE_LINUX_DEFAULT=a#b\n"}, ["--yes"], "line 1 is written", "one line"),
    ],
)
def test_refusal_has_a_remedy_and_changes_nothing(
    system: System, files: dict[str, str], arguments: list[str], message: str, remedy: str
) -> None:
    system.put(files)
    before = system.files()
    code, output = system.run(*arguments)
    assert code == 1
    error, _, hint = output.partition("\nhint: ")
    assert message in error and remedy in hint, output
    assert system.files() == before


def test_grub_without_its_tools_is_not_changed_in_vain(system: System) -> None:
    system.put(EMPTY)
    (system.root / "usr/bin/update-grub").unlink()
    code, output = system.run("--yes")
    assert code == 1 and "no update-grub" in output
    system.put({f"{ENTRIES}/a.conf": "linux /a\noptions rw\n"})  # a leftover beside systemd-boot
    system.applied()
    assert system.files()[GRUB] == EMPTY[GRUB]


def test_limit_of_amd_ttm_is_not_contradicted(system: System) -> None:
    system.put(
        EMPTY | {"etc/modprobe.d/ttm.conf": "# no: options ttm pages_limit=1\noptions ttm pages_limit=6291456\n"}
    )
    output = system.applied("24")
    assert "/etc/modprobe.d/ttm.conf: ttm.pages_limit=6291456" in output and "left in charge" in output
    assert system.files()[GRUB] == EMPTY[GRUB]


def test_read_only_system_is_an_error(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    system.put(EMPTY | {"usr/bin/steamos-readonly": ""})
    monkeypatch.setattr(ttm, "read_only", lambda path: path.name == "grub")
    code, output = system.run("--yes")
    assert code == 1 and "/etc/default/grub is on a read-only file system" in output
    assert "steamos-readonly disable" in output
    assert "steamos-readonly disable" in system.run("--dry-run")[1]
    assert system.files() == EMPTY


def test_answer_no_changes_nothing(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    system.put(EMPTY)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, changed in (("", False), ("n", False), ("y", True)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        assert system.run("24")[0] == 0
        assert (system.files() != EMPTY) == changed


def test_ctrl_c_at_the_question_ends_quietly(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(question: str) -> str:
        raise KeyboardInterrupt

    system.put(EMPTY)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", interrupted)
    code, output = system.run("24")
    assert code == 0 and "nothing was changed" in output and system.files() == EMPTY


def test_damaged_record_is_an_error(system: System) -> None:
    system.put(EMPTY)
    system.applied("24")
    after = system.files()
    for damage in ("", "{", '{"other": 1}', "[]"):
        (system.root / ttm.STATE / "state.json").write_text(damage)
        code, output = system.run("--remove", "--yes")
        assert code == 1 and "state.json is damaged" in output and "originals" in output
    assert system.files() == after


def test_user_without_rights_gets_a_remedy(system: System, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    system.put(EMPTY)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    code, output = system.run("24", "--yes")
    assert code == 1 and "only root may" in output and "hint: sudo " in output
    assert system.run("24", "--dry-run")[0] == 0

    def denied(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", denied)
    code, output = system.run("24", "--dry-run")
    assert code == 1 and "hint: run this with sudo" in output


def test_tree_does_not_lead_to_the_host(system: System, tmp_path: Path) -> None:
    outside = tmp_path / "grub"
    outside.write_text(EMPTY[GRUB])
    (system.root / GRUB).parent.mkdir(parents=True)
    (system.root / GRUB).symlink_to(outside)
    code, output = system.run("--yes")
    assert code == 1 and "leads out of" in output
    assert outside.read_text() == EMPTY[GRUB]


def test_partition_mounted_twice_is_edited_once(system: System) -> None:
    system.put({f"{ENTRIES}/a.conf": "linux /a\noptions rw\n"})
    (system.root / "efi").symlink_to("boot")
    assert system.applied("24").count("+++") == 1


def test_script_needs_only_the_standard_library(system: System) -> None:
    system.put(EMPTY)
    command = [sys.executable, "-I", "-S", str(SCRIPT), "--root", str(system.root), "24", "--yes"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert TTM in system.files()[GRUB]


@pytest.mark.parametrize(("missing", "arguments"), [("meminfo", ()), ("sys/kernel/osrelease", ("24",))])
def test_tree_without_proc_has_a_remedy(system: System, missing: str, arguments: tuple[str, ...]) -> None:
    system.put({GRUB: UBUNTU.format("")})
    (system.root / "proc" / missing).unlink()
    code, output = system.run("--yes", *arguments)
    assert code == 1 and "Errno" not in output
    assert f"error: there is no {system.root}/proc/{missing}, which tells about the machine" in output
    assert f"hint: if the tree is of this machine: `mount --bind /proc {system.root}/proc`" in output

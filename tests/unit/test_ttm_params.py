"""scripts/apply-ttm-kernel-params on trees like real systems: exact files after a run, a second one, and --remove."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = ROOT / "scripts" / "apply-ttm-kernel-params"


def load() -> ModuleType:
    loader = SourceFileLoader("apply_ttm_kernel_params", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = written
    return module


ttm = load()
editing = sys.modules["kernel_command_line"]

# 24 GiB, on a kernel that has no use for gttsize and on one that needs it.
TTM = "ttm.pages_limit=6291456 ttm.page_pool_size=6291456"
OLD = f"{TTM} amdgpu.gttsize=24576"
GRUB = "etc/default/grub"
ENTRIES = "boot/loader/entries"


@dataclass(frozen=True)
class System:
    """A tree with 31.2 GiB RAM and kernel 6.18, unless told otherwise."""

    root: Path

    def put(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "surrogateescape"))

    def files(self) -> dict[str, str]:
        found = (path for path in self.root.rglob("*") if path.is_file())
        names = {
            str(path.relative_to(self.root)): path.read_bytes().decode("utf-8", "surrogateescape") for path in found
        }
        return {name: text for name, text in names.items() if name.split("/")[0] in ("etc", "boot", "efi")}

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code, and what was said on both channels."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code: int = ttm.main(["--root", str(self.root), *arguments])
        return code, output.getvalue()

    def applied(self, *arguments: str) -> str:
        code, output = self.run("--yes", *arguments)
        assert code == 0, output
        return output


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    monkeypatch.delenv("LLAMA_GTT_SIZE", raising=False)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    system = System(tmp_path / "root")
    system.put({"proc/meminfo": "MemTotal:       32716000 kB\nMemFree: 1 kB\n"})
    system.put({"proc/sys/kernel/osrelease": "6.18.2-arch1-1\n", "usr/bin/update-grub": ""})
    return system


@dataclass(frozen=True)
class Case:
    before: dict[str, str]
    after: dict[str, str]  # what differs
    arguments: Sequence[str] = field(default=("24",))


def grub(before: str, after: str, *arguments: str) -> Case:
    return Case({GRUB: before}, {GRUB: after}, arguments or ("24",))


UBUNTU = """# If you change this file, run 'update-grub' afterwards to update
# /boot/grub/grub.cfg.

GRUB_DEFAULT=0
GRUB_TIMEOUT_STYLE=hidden
GRUB_DISTRIBUTOR=`( . /etc/os-release; echo ${{NAME:-Ubuntu}} ) 2>/dev/null || echo Ubuntu`
GRUB_CMDLINE_LINUX_DEFAULT="quiet splash{0}"
GRUB_CMDLINE_LINUX=""
"""
ARCH_ENTRY = """# Created by: archinstall
title   Arch Linux (linux)
linux   /vmlinuz-linux
initrd  /initramfs-linux.img
options root=PARTUUID=0f4d zswap.enabled=0 rw rootfstype=ext4{0}
"""

CASES = {
    "grub, double quotes": grub(UBUNTU.format(""), UBUNTU.format(f" {TTM}")),
    "grub, older kernel": grub(UBUNTU.format(""), UBUNTU.format(f" {OLD}"), "24", "--kernel", "6.14.0-37-generic"),
    "grub, single quotes and a comment behind": grub(
        "GRUB_CMDLINE_LINUX_DEFAULT='loglevel=3 quiet'  # set by the installer\nGRUB_TIMEOUT=5\n",
        f"GRUB_CMDLINE_LINUX_DEFAULT='loglevel=3 quiet {TTM}'  # set by the installer\nGRUB_TIMEOUT=5\n",
    ),
    "grub, no quotes": grub(
        "GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=quiet\n",
        f'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT="quiet {TTM}"\n',
    ),
    "grub, no value": grub(
        "GRUB_CMDLINE_LINUX_DEFAULT=\nGRUB_TIMEOUT=5\n", f'GRUB_CMDLINE_LINUX_DEFAULT="{TTM}"\nGRUB_TIMEOUT=5\n'
    ),
    "grub, empty": grub('GRUB_CMDLINE_LINUX_DEFAULT=""\n', f'GRUB_CMDLINE_LINUX_DEFAULT="{TTM}"\n'),
    "grub, commented line and the real one": grub(
        '#GRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\n # GRUB_CMDLINE_LINUX_DEFAULT=\n'
        'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
        '#GRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\n # GRUB_CMDLINE_LINUX_DEFAULT=\n'
        f'GRUB_CMDLINE_LINUX_DEFAULT="quiet {TTM}"\n',
    ),
    "grub, other values in the middle": grub(
        'GRUB_CMDLINE_LINUX_DEFAULT="quiet amdgpu.gttsize=8192 ttm.pages_limit=2097152  iommu=pt"\n',
        'GRUB_CMDLINE_LINUX_DEFAULT="quiet amdgpu.gttsize=24576 ttm.pages_limit=6291456  iommu=pt'
        ' ttm.page_pool_size=6291456"\n',
    ),
    "grub, parameter spelt with a dash, and given twice": grub(
        'GRUB_CMDLINE_LINUX_DEFAULT="ttm.pages-limit=1 quiet ttm.pages_limit=2"\n',
        'GRUB_CMDLINE_LINUX_DEFAULT="ttm.pages-limit=6291456 quiet ttm.pages_limit=6291456'
        ' ttm.page_pool_size=6291456"\n',
    ),
    "grub, names that only look alike": grub(
        'GRUB_CMDLINE_LINUX_DEFAULT="xttm.pages_limit=1 ttm.pages_limit_x=1 amdgpu.vis_vramlimit=5"\n',
        f'GRUB_CMDLINE_LINUX_DEFAULT="xttm.pages_limit=1 ttm.pages_limit_x=1 amdgpu.vis_vramlimit=5 {TTM}"\n',
    ),
    "grub, no newline at the end, spaces before the quote": grub(
        'GRUB_TIMEOUT=5\n\tGRUB_CMDLINE_LINUX_DEFAULT="quiet  "',
        f'GRUB_TIMEOUT=5\n\tGRUB_CMDLINE_LINUX_DEFAULT="quiet {TTM}  "',
    ),
    "grub, quotes within quotes": grub(
        'GRUB_CMDLINE_LINUX_DEFAULT="dyndbg=\\"file ttm* +p\\" quiet"; export X\n',
        f'GRUB_CMDLINE_LINUX_DEFAULT="dyndbg=\\"file ttm* +p\\" quiet {TTM}"; export X\n',
    ),
    "grub, CRLF": grub(
        'GRUB_TIMEOUT=5\r\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\r\n',
        f'GRUB_TIMEOUT=5\r\nGRUB_CMDLINE_LINUX_DEFAULT="quiet {TTM}"\r\n',
    ),
    "grub, line is missing (Fedora), and so is the last newline": grub(
        'GRUB_CMDLINE_LINUX="rhgb quiet"', f'GRUB_CMDLINE_LINUX="rhgb quiet"\nGRUB_CMDLINE_LINUX_DEFAULT="{TTM}"\n'
    ),
    "grub, a second line adds to the first": grub(
        'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX_DEFAULT+=" splash"\n',
        f'GRUB_CMDLINE_LINUX_DEFAULT="quiet {TTM}"\nGRUB_CMDLINE_LINUX_DEFAULT+=" splash"\n',
    ),
    "grub, only a line that adds": grub(
        'GRUB_CMDLINE_LINUX_DEFAULT+=" splash"\n', f'GRUB_CMDLINE_LINUX_DEFAULT+=" splash {TTM}"\n'
    ),
    "grub, visible VRAM asked for": grub(
        'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
        f'GRUB_CMDLINE_LINUX_DEFAULT="quiet {TTM} amdgpu.vis_vramlimit=4096"\n',
        *("24", "--vis-vramlimit", "4096"),
    ),
    "grub.d: one overrides, one adds, one does neither": Case(
        {
            GRUB: 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
            "etc/default/grub.d/50-cloud.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="console=tty1"\n',
            "etc/default/grub.d/60-add.cfg": (
                'GRUB_CMDLINE_LINUX_DEFAULT="${GRUB_CMDLINE_LINUX_DEFAULT} ttm.pages_limit=9 apparmor=1"\n'
            ),
            "etc/default/grub.d/70-time.cfg": "GRUB_TIMEOUT=0\n",
            "etc/default/grub.d/80-off.cfg.bak": 'GRUB_CMDLINE_LINUX_DEFAULT="debug"\n',
        },
        {
            GRUB: f'GRUB_CMDLINE_LINUX_DEFAULT="quiet {TTM}"\n',
            "etc/default/grub.d/50-cloud.cfg": f'GRUB_CMDLINE_LINUX_DEFAULT="console=tty1 {TTM}"\n',
            "etc/default/grub.d/60-add.cfg": (
                'GRUB_CMDLINE_LINUX_DEFAULT="${GRUB_CMDLINE_LINUX_DEFAULT} ttm.pages_limit=6291456 apparmor=1"\n'
            ),
        },
    ),
    "systemd-boot, several entries and a fallback": Case(
        {
            f"{ENTRIES}/2026-03-01_linux.conf": ARCH_ENTRY.format(""),
            f"{ENTRIES}/2026-03-01_linux-fallback.conf": ARCH_ENTRY.format(""),
            f"{ENTRIES}/lts.conf": ARCH_ENTRY.format(" ttm.page_pool_size=1 quiet"),
            f"{ENTRIES}/old.conf": ARCH_ENTRY.format("").replace("initramfs-linux", "initramfs-linux-fallback"),
            f"{ENTRIES}/windows.conf": "title Windows\nefi /EFI/Microsoft/Boot/bootmgfw.efi\n",
            "boot/loader/loader.conf": "default 2026*\n",
        },
        {
            f"{ENTRIES}/2026-03-01_linux.conf": ARCH_ENTRY.format(f" {TTM}"),
            f"{ENTRIES}/lts.conf": ARCH_ENTRY.format(" ttm.page_pool_size=6291456 quiet ttm.pages_limit=6291456"),
        },
    ),
    "systemd-boot, comments, tabs, several options lines, no newline at the end": Case(
        {f"{ENTRIES}/a.conf": "#options nothing\nlinux\t/vmlinuz\n\toptions\troot=/dev/sda2\t rw\noptions\tquiet \t"},
        {
            f"{ENTRIES}/a.conf": (
                f"#options nothing\nlinux\t/vmlinuz\n\toptions\troot=/dev/sda2\t rw\noptions\tquiet {TTM} \t"
            )
        },
    ),
    "systemd-boot, value on the first of two options lines": Case(
        {f"{ENTRIES}/a.conf": "linux /vmlinuz\noptions ttm.pages_limit=4 rw\noptions quiet\n"},
        {f"{ENTRIES}/a.conf": "linux /vmlinuz\noptions {} rw\noptions quiet {}\n".format(*TTM.split())},
    ),
    "systemd-boot, CRLF": Case(
        {f"{ENTRIES}/a.conf": "title A\r\nlinux /vmlinuz\r\noptions rw\r\n"},
        {f"{ENTRIES}/a.conf": f"title A\r\nlinux /vmlinuz\r\noptions rw {TTM}\r\n"},
    ),
    "systemd-boot, no options line, CRLF, no newline at the end": Case(
        {f"{ENTRIES}/a.conf": "title A\r\nlinux /vmlinuz", f"{ENTRIES}/b.conf": "linux /vmlinuz\noptions\ninitrd /i\n"},
        {
            f"{ENTRIES}/a.conf": f"title A\r\nlinux /vmlinuz\r\noptions {TTM}\r\n",
            f"{ENTRIES}/b.conf": f"linux /vmlinuz\noptions {TTM}\ninitrd /i\n",
        },
    ),
    "systemd-boot on other mounts, and kernel-install's file": Case(
        {
            "efi/loader/entries/a.conf": "linux /vmlinuz\noptions rw\n",
            "boot/efi/loader/entries/b.conf": "linux /vmlinuz\noptions rw\n",
            "boot/EFI/steamfork/loader/entries/c.conf": "linux /vmlinuz\noptions rw\n",
            "etc/kernel/cmdline": "# for new kernels\nroot=UUID=1 rw\n\n",
        },
        {
            "efi/loader/entries/a.conf": f"linux /vmlinuz\noptions rw {TTM}\n",
            "boot/efi/loader/entries/b.conf": f"linux /vmlinuz\noptions rw {TTM}\n",
            "boot/EFI/steamfork/loader/entries/c.conf": f"linux /vmlinuz\noptions rw {TTM}\n",
            "etc/kernel/cmdline": f"# for new kernels\nroot=UUID=1 rw {TTM}\n\n",
        },
    ),
    "bytes that are not UTF-8": grub(
        '# Gr\udcf6\udcdfe\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
        f'# Gr\udcf6\udcdfe\nGRUB_CMDLINE_LINUX_DEFAULT="quiet {TTM}"\n',
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_byte_is_changed_that_should_not_be(system: System, case: Case) -> None:
    system.put({**case.before, "boot/grub/grub.cfg": "made\n"} if GRUB in case.before else case.before)
    before = system.files()
    wanted = before | case.after

    code, output = system.run("--dry-run", *case.arguments)
    assert code == 0 and "nothing was changed" in output
    assert system.files() == before

    output = system.applied(*case.arguments)
    assert system.files() == wanted
    assert ("not run, because of --root: /usr/bin/update-grub" in output) == (GRUB in case.before)

    assert "nothing to do" in system.applied(*case.arguments)
    assert system.files() == wanted

    system.applied("--remove")
    assert system.files() == before
    assert not (system.root / ttm.STATE).exists()
    assert "nothing to remove" in system.applied("--remove")


@pytest.mark.parametrize("name", CASES)
def test_edit_of_others_is_lost(system: System, name: str) -> None:
    case, more = CASES[name], "\n# a line more\n"
    system.put(case.before)
    system.applied(*case.arguments)
    for file, text in system.files().items():
        system.put({file: text + more})
    assert "nothing to do" in system.applied(*case.arguments)
    system.applied("--remove")
    # Quotes and lines that we had to add may hold something of others by now: they stay.
    traces = {
        "no quotes": '"quiet"',
        "no value": '=""',
        "(Fedora)": '\nGRUB_CMDLINE_LINUX_DEFAULT=""\n',
        "no options": "",
    }
    trace = next((trace for part, trace in traces.items() if part in name), None)
    for file, text in system.files().items():
        if trace is None:
            assert text == case.before[file] + more
        else:
            assert trace in text and text.endswith(more) and "ttm." not in text


def test_another_size_forgets_what_was_there_first(system: System) -> None:
    system.put({GRUB: 'GRUB_CMDLINE_LINUX_DEFAULT="ttm.pages_limit=7 quiet"\n'})
    system.applied("20", "--vis-vramlimit", "512", "--kernel", "6.8")
    system.applied("24", "--kernel", "6.8")
    assert system.files()[GRUB] == (
        'GRUB_CMDLINE_LINUX_DEFAULT="ttm.pages_limit=6291456 quiet ttm.page_pool_size=6291456 amdgpu.gttsize=24576"\n'
    )
    system.applied("--remove")
    assert system.files()[GRUB] == 'GRUB_CMDLINE_LINUX_DEFAULT="ttm.pages_limit=7 quiet"\n'


def test_value_of_the_users_own_is_removed(system: System) -> None:
    own = f"linux /a\noptions rw {TTM}\n"
    system.put({f"{ENTRIES}/own.conf": own, f"{ENTRIES}/a.conf": "linux /a\noptions rw\n"})
    system.applied("24")
    later = "linux /b\noptions rw ttm.pages_limit=5 ttm.page_pool_size=6291456\n"  # the first by hand, the second ours
    system.put({f"{ENTRIES}/later.conf": later})
    system.applied("--remove")
    assert system.files() == {
        f"{ENTRIES}/own.conf": own,
        f"{ENTRIES}/a.conf": "linux /a\noptions rw\n",
        f"{ENTRIES}/later.conf": "linux /b\noptions rw ttm.pages_limit=5\n",
    }


def test_parameters_that_were_there_all_along_get_a_record(system: System) -> None:
    system.put({f"{ENTRIES}/own.conf": f"linux /a\noptions rw {TTM}\n"})
    assert "nothing to do" in system.applied("24")
    assert "nothing to remove" in system.applied("--remove")


# --- failures ---------------------------------------------------------------------------------------------------------

TWO = {
    GRUB: 'GRUB_CMDLINE_LINUX_DEFAULT="quiet ttm.pages_limit=7"\n',
    f"{ENTRIES}/a.conf": "linux /a\noptions rw\n",
    f"{ENTRIES}/b.conf": "linux /b\noptions rw\n",
}


def faulty_write(monkeypatch: pytest.MonkeyPatch, fails: str, how: str) -> None:
    write = ttm.write_file

    def attempt(path: Path, text: str) -> None:
        if path.name != fails or "originals" in path.parts or how == "done":
            return write(path, text)  # type: ignore[no-any-return]
        if how == "short":
            path.write_text(text[:9])
        monkeypatch.setattr(ttm, "write_file", write)  # the next one works again
        raise {"interrupt": KeyboardInterrupt()}.get(how, OSError(28, "No space left on device"))

    monkeypatch.setattr(ttm, "write_file", attempt)


@pytest.mark.parametrize("how", ["full", "short", "interrupt"])
@pytest.mark.parametrize("fails", ["grub", "a.conf", "b.conf", "state.json"])
@pytest.mark.parametrize("again", [False, True])
def test_failed_write_leaves_half_of_the_files_changed(
    system: System, monkeypatch: pytest.MonkeyPatch, fails: str, how: str, again: bool
) -> None:
    system.put(TWO)
    if again:
        system.applied("20")
    before, record = system.files(), [*(system.root / ttm.STATE).glob("state.json")]
    told = [path.read_text() for path in record]
    faulty_write(monkeypatch, fails, how)
    code, output = system.run("--yes", "24")
    assert code == 1 and "all files are as they were before" in output, output
    assert system.files() == before
    assert [path.read_text() for path in (system.root / ttm.STATE).glob("state.json")] == told
    assert not list(system.root.rglob("*llama-run-new*"))
    monkeypatch.undo()
    system.applied("24")
    system.applied("--remove")
    assert system.files() == TWO


@dataclass
class Live:
    """Takes the tree for the running system, and records its commands."""

    fail: bool = False
    commands: list[Sequence[str]] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> None:
        self.commands.append(command)
        if self.fail:
            raise ttm.Failure("`update-grub` ended with exit code 1")


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Live:
    live = Live()
    initialise = ttm.Machine.__init__

    def as_live(self: Any, root: Path) -> None:
        initialise(self, root)
        self.live = True

    monkeypatch.setattr(ttm.Machine, "__init__", as_live)
    monkeypatch.setattr(ttm, "run_command", live.run)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return live


def test_failed_update_grub_leaves_files_changed(system: System, live: Live) -> None:
    system.put(TWO)
    live.fail = True
    code, output = system.run("--yes", "24")
    assert code == 1 and "exit code 1" in output and "all files are as they were before" in output
    assert system.files() == TWO and not (system.root / ttm.STATE).exists()

    live.fail = False
    system.applied("24")
    after = system.files()
    live.fail = True
    assert system.run("--yes", "--remove")[0] == 1
    assert system.files() == after
    live.fail = False
    system.applied("--remove")
    assert system.files() == TWO
    assert live.commands == [["/usr/bin/update-grub"]] * 4


def test_run_that_was_killed_before_update_grub_counts_as_done(
    system: System, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.put(TWO)
    state, killed = system.root / ttm.STATE / "state.json", []
    monkeypatch.setattr(ttm, "run_command", lambda command: killed.append(state.read_text()))
    system.applied("24")
    state.write_text(killed[0])  # as it stood on the disk while the command ran
    monkeypatch.setattr(ttm, "run_command", live.run)
    system.applied("24")
    assert len(live.commands) == 1
    assert "nothing to do" in system.applied("24")


def test_disk_that_stores_something_else_goes_unnoticed(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    system.put(TWO)
    rename = Path.replace

    def lose(self: Path, target: Path) -> Path:
        if TTM in self.read_text() and target.name == "b.conf":
            self.write_text("linux /b\n")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", lose)
    code, output = system.run("--yes", "24")
    assert code == 1 and "b.conf does not hold what was written to it" in output
    assert system.files() == TWO


def test_entries_alone_start_update_grub(system: System, live: Live) -> None:
    system.put({f"{ENTRIES}/a.conf": "linux /a\noptions rw\n"})
    system.applied("24")
    assert live.commands == []


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        (["usr/bin/grub-mkconfig", "boot/grub/x"], ["/usr/bin/grub-mkconfig", "-o", "/boot/grub/grub.cfg"]),
        (["usr/sbin/grub2-mkconfig", "boot/grub2/x"], ["/usr/sbin/grub2-mkconfig", "-o", "/boot/grub2/grub.cfg"]),
        (["usr/bin/steamfork-grub-update", "usr/sbin/update-grub"], ["/usr/bin/steamfork-grub-update"]),
    ],
)
def test_wrong_command_for_grub(system: System, live: Live, programs: list[str], expected: list[str]) -> None:
    (system.root / "usr/bin/update-grub").unlink()
    system.put({GRUB: 'GRUB_CMDLINE_LINUX_DEFAULT=""\n', **dict.fromkeys(programs, "")})
    system.applied("24")
    assert live.commands == [expected]


def test_command_that_fails_goes_unnoticed() -> None:
    ttm.run_command(["true"])
    with pytest.raises(ttm.Failure, match=r"exit code 3:\n    said"):
        ttm.run_command(["sh", "-c", "echo said; exit 3"])


def test_file_that_cannot_be_put_back_is_not_named(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    system.put(TWO)
    write = ttm.write_file

    def broken(path: Path, text: str) -> None:
        if path.name == "grub" and "originals" not in path.parts:
            path.write_text("")
            raise OSError(5, "Input/output error")
        write(path, text)

    monkeypatch.setattr(ttm, "write_file", broken)
    code, output = system.run("--yes", "24")
    assert code == 1 and "/etc/default/grub could not be put back" in output
    assert (system.root / ttm.STATE / "originals" / GRUB).read_text() == TWO[GRUB]


def test_mode_owner_or_link_is_lost(system: System) -> None:
    system.put({"etc/real-grub": 'GRUB_CMDLINE_LINUX_DEFAULT=""\n'})
    real = system.root / "etc/real-grub"
    real.chmod(0o640)
    owner = (1234, 1235) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    os.chown(real, *owner)
    (system.root / GRUB).parent.mkdir(parents=True)
    (system.root / GRUB).symlink_to("../real-grub")
    system.applied("24")
    assert (system.root / GRUB).is_symlink() and TTM in real.read_text()
    assert (real.stat().st_mode & 0o7777, real.stat().st_uid, real.stat().st_gid) == (0o640, *owner)


# --- what is explained ------------------------------------------------------------------------------------------------


def test_change_is_not_shown(system: System) -> None:
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
def test_wrong_size_is_accepted(ram: float, asked: str | None, expected: int | str) -> None:
    if isinstance(expected, int):
        assert ttm.choose_size(asked, ram) == expected
        return
    with pytest.raises(ttm.Failure, match=expected) as caught:
        ttm.choose_size(asked, ram)
    assert caught.value.hint


def test_size_from_the_environment_is_lost(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_refusal_has_no_remedy_or_changes_something(
    system: System, files: dict[str, str], arguments: list[str], message: str, remedy: str
) -> None:
    system.put(files)
    before = system.files()
    code, output = system.run(*arguments)
    assert code == 1
    error, _, hint = output.partition("\nhint: ")
    assert message in error and remedy in hint, output
    assert system.files() == before


def test_grub_without_its_tools_is_changed_in_vain(system: System) -> None:
    system.put(EMPTY)
    (system.root / "usr/bin/update-grub").unlink()
    code, output = system.run("--yes")
    assert code == 1 and "no update-grub" in output
    system.put({f"{ENTRIES}/a.conf": "linux /a\noptions rw\n"})  # a leftover beside systemd-boot
    system.applied()
    assert system.files()[GRUB] == EMPTY[GRUB]


def test_limit_of_amd_ttm_is_contradicted(system: System) -> None:
    system.put(
        EMPTY | {"etc/modprobe.d/ttm.conf": "# no: options ttm pages_limit=1\noptions ttm pages_limit=6291456\n"}
    )
    output = system.applied("24")
    assert "/etc/modprobe.d/ttm.conf: ttm.pages_limit=6291456" in output and "left in charge" in output
    assert system.files()[GRUB] == EMPTY[GRUB]


def test_read_only_system_gives_a_traceback(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    system.put(EMPTY | {"usr/bin/steamos-readonly": ""})
    monkeypatch.setattr(ttm, "read_only", lambda path: path.name == "grub")
    code, output = system.run("--yes")
    assert code == 1 and "/etc/default/grub is on a read-only file system" in output
    assert "steamos-readonly disable" in output
    assert "steamos-readonly disable" in system.run("--dry-run")[1]
    assert system.files() == EMPTY


def test_answer_no_changes_something(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    system.put(EMPTY)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, changed in (("", False), ("n", False), ("y", True)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        assert system.run("24")[0] == 0
        assert (system.files() != EMPTY) == changed


def test_ctrl_c_at_the_question_gives_a_traceback(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(question: str) -> str:
        raise KeyboardInterrupt

    system.put(EMPTY)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", interrupted)
    code, output = system.run("24")
    assert code == 0 and "nothing was changed" in output and system.files() == EMPTY


def test_damaged_record_gives_a_traceback(system: System) -> None:
    system.put(EMPTY)
    system.applied("24")
    after = system.files()
    for damage in ("", "{", '{"other": 1}', "[]"):
        (system.root / ttm.STATE / "state.json").write_text(damage)
        code, output = system.run("--remove", "--yes")
        assert code == 1 and "state.json is damaged" in output and "originals" in output
    assert system.files() == after


def test_user_without_rights_gets_a_traceback(system: System, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_tree_leads_to_the_host(system: System, tmp_path: Path) -> None:
    outside = tmp_path / "grub"
    outside.write_text(EMPTY[GRUB])
    (system.root / GRUB).parent.mkdir(parents=True)
    (system.root / GRUB).symlink_to(outside)
    code, output = system.run("--yes")
    assert code == 1 and "leads out of" in output
    assert outside.read_text() == EMPTY[GRUB]


def test_partition_mounted_twice_is_edited_twice(system: System) -> None:
    system.put({f"{ENTRIES}/a.conf": "linux /a\noptions rw\n"})
    (system.root / "efi").symlink_to("boot")
    assert system.applied("24").count("+++") == 1


def test_script_needs_more_than_the_standard_library(system: System) -> None:
    system.put(EMPTY)
    command = [sys.executable, "-I", "-S", str(SCRIPT), "--root", str(system.root), "24", "--yes"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert TTM in system.files()[GRUB]


# --- properties -------------------------------------------------------------------------------------------------------

WORD = st.sampled_from(
    ["quiet", "rw", "ttm.pages_limit=1", "amdgpu.gttsize=77", "a=ttm.pages_limit=1", "ttm.page_pool_size="]
)
LINE = st.lists(st.tuples(WORD, st.sampled_from([" ", "\t", "  "])), max_size=5).map(
    lambda w: "".join(a + b for a, b in w)
)


@given(lines=st.lists(LINE, min_size=1, max_size=3), shape=st.sampled_from(["grub", "entry", "cmdline"]))
def test_taking_out_is_not_the_inverse_of_putting_in(lines: list[str], shape: str) -> None:
    form = {"grub": 'GRUB_CMDLINE_LINUX_DEFAULT="{0}"', "entry": "options {0}", "cmdline": "{0}"}[shape]
    before = "".join(form.format(line) + "\n" for line in lines)
    wanted, optional = ttm.parameters(24, (6, 18), None)
    once = editing.with_parameters(shape, before, wanted, optional)
    assert editing.with_parameters(shape, once, wanted, optional) == once
    ours = {key: [value] for key, value in wanted.items()}
    assert editing.without_parameters(shape, once, ours, before) == before


@pytest.mark.parametrize(("missing", "arguments"), [("meminfo", ()), ("sys/kernel/osrelease", ("24",))])
def test_tree_without_proc_has_no_remedy(system: System, missing: str, arguments: tuple[str, ...]) -> None:
    system.put({GRUB: UBUNTU.format("")})
    (system.root / "proc" / missing).unlink()
    code, output = system.run("--yes", *arguments)
    assert code == 1 and "Errno" not in output
    assert f"error: there is no {system.root}/proc/{missing}, which tells about the machine" in output
    assert f"hint: if the tree is of this machine: `mount --bind /proc {system.root}/proc`" in output

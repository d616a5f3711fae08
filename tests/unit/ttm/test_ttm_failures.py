"""scripts/apply-ttm-kernel-params where writing or a command fails: all is as before, or it is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ttm_system import ENTRIES, GRUB, TTM, Live, System, ttm

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
def test_failed_write_leaves_all_files_as_they_were(
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


def test_failed_update_grub_leaves_files_as_they_were(system: System, live: Live) -> None:
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


def test_run_that_was_killed_before_update_grub_is_not_done(
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


def test_disk_that_stores_something_else_is_noticed(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_entries_alone_do_not_start_update_grub(system: System, live: Live) -> None:
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
def test_command_for_grub_is_the_one_that_is_there(
    system: System, live: Live, programs: list[str], expected: list[str]
) -> None:
    (system.root / "usr/bin/update-grub").unlink()
    system.put({GRUB: 'GRUB_CMDLINE_LINUX_DEFAULT=""\n', **dict.fromkeys(programs, "")})
    system.applied("24")
    assert live.commands == [expected]


def test_command_that_fails_is_noticed() -> None:
    ttm.run_command(["true"])
    with pytest.raises(ttm.Failure, match=r"exit code 3:\n    said"):
        ttm.run_command(["sh", "-c", "echo said; exit 3"])


def test_file_that_cannot_be_put_back_is_named(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_mode_owner_and_link_are_kept(system: System) -> None:
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

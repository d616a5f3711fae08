"""scripts/apply-ttm-kernel-params: exact files after a run, a second one, and --remove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ttm_system import ENTRIES, GRUB, OLD, TTM, UBUNTU, System, editing, ttm


@dataclass(frozen=True)
class Case:
    before: dict[str, str]
    after: dict[str, str]  # what differs
    arguments: Sequence[str] = field(default=("24",))


def grub(before: str, after: str, *arguments: str) -> Case:
    return Case({GRUB: before}, {GRUB: after}, arguments or ("24",))


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
def test_no_byte_is_changed_that_should_not_be(system: System, case: Case) -> None:
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
def test_edit_of_others_is_kept(system: System, name: str) -> None:
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


def test_another_size_remembers_what_was_there_first(system: System) -> None:
    system.put({GRUB: 'GRUB_CMDLINE_LINUX_DEFAULT="ttm.pages_limit=7 quiet"\n'})
    system.applied("20", "--vis-vramlimit", "512", "--kernel", "6.8")
    system.applied("24", "--kernel", "6.8")
    assert system.files()[GRUB] == (
        'GRUB_CMDLINE_LINUX_DEFAULT="ttm.pages_limit=6291456 quiet ttm.page_pool_size=6291456 amdgpu.gttsize=24576"\n'
    )
    system.applied("--remove")
    assert system.files()[GRUB] == 'GRUB_CMDLINE_LINUX_DEFAULT="ttm.pages_limit=7 quiet"\n'


def test_value_of_the_users_own_is_kept(system: System) -> None:
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


def test_parameters_that_were_there_all_along_get_no_record(system: System) -> None:
    system.put({f"{ENTRIES}/own.conf": f"linux /a\noptions rw {TTM}\n"})
    assert "nothing to do" in system.applied("24")
    assert "nothing to remove" in system.applied("--remove")


WORD = st.sampled_from(
    ["quiet", "rw", "ttm.pages_limit=1", "amdgpu.gttsize=77", "a=ttm.pages_limit=1", "ttm.page_pool_size="]
)


LINE = st.lists(st.tuples(WORD, st.sampled_from([" ", "\t", "  "])), max_size=5).map(
    lambda w: "".join(a + b for a, b in w)
)


@given(lines=st.lists(LINE, min_size=1, max_size=3), shape=st.sampled_from(["grub", "entry", "cmdline"]))
def test_taking_out_is_the_inverse_of_putting_in(lines: list[str], shape: str) -> None:
    form = {"grub": 'GRUB_CMDLINE_LINUX_DEFAULT="{0}"', "entry": "options {0}", "cmdline": "{0}"}[shape]
    before = "".join(form.format(line) + "\n" for line in lines)
    wanted, optional = ttm.parameters(24, (6, 18), None)
    once = editing.with_parameters(shape, before, wanted, optional)
    assert editing.with_parameters(shape, once, wanted, optional) == once
    ours = {key: [value] for key, value in wanted.items()}
    assert editing.without_parameters(shape, once, ours, before) == before

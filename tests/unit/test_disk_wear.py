"""How worn a disk is, as smartctl and nvme tell it, and which disk a folder is on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pyrun.power.disk import Wear, disk_of, read_wear, wear_of


@pytest.mark.parametrize(
    ("told", "wear"),
    [
        (
            {"nvme_smart_health_information_log": {"percentage_used": 4, "data_units_written": 20_000_000}},
            Wear(written=10_240_000_000_000, rated=256_000_000_000_000),
        ),
        ({"percent_used": 50, "data_units_written": 2}, Wear(written=1_024_000, rated=2_048_000)),
        ({"nvme_smart_health_information_log": {"percentage_used": 0, "data_units_written": 9}}, None),
        ({"ata_smart_attributes": {"table": []}}, None),
        ({"smartctl": {"exit_status": 2}}, None),
        ({}, None),
    ],
)
def test_the_rated_total_follows_from_what_was_written_and_the_share_it_is(
    told: dict[str, Any], wear: Wear | None
) -> None:
    assert wear_of(told) == wear


def block(sys: Path, number: int, device: Path) -> None:
    device.mkdir(parents=True, exist_ok=True)
    link = sys / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(device)


def test_a_folder_is_on_the_disk_of_its_partition_behind_encryption_too(tmp_path: Path) -> None:
    sys, mounts, number = tmp_path / "sys", tmp_path / "mountinfo", tmp_path.stat().st_dev
    mounts.write_text("")
    assert disk_of(tmp_path, sys, mounts) is None
    partition = sys / "devices" / "nvme0n1" / "nvme0n1p8"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("8\n")
    crypt = sys / "devices" / "dm-0"
    block(sys, number, crypt)
    (crypt / "slaves").mkdir()
    (crypt / "slaves" / "nvme0n1p8").symlink_to(partition)
    assert disk_of(tmp_path, sys, mounts) == "nvme0n1"


def test_volumes_without_a_device_number_are_found_by_their_mount(tmp_path: Path) -> None:
    sys, mounts, number = tmp_path / "sys", tmp_path / "mountinfo", tmp_path.stat().st_dev
    mounts.write_text(f"36 35 {os.major(number)}:{os.minor(number)} /@home /home rw shared:1 - btrfs /dev/null rw\n")
    block(sys, Path("/dev/null").stat().st_rdev, sys / "devices" / "nvme1n1")
    assert disk_of(tmp_path, sys, mounts) == "nvme1n1"


def test_whoever_may_ask_is_told_and_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrun.power.disk.disk_of", lambda folder: "nvme0n1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_wear(tmp_path) is None, "neither program is there"
    smartctl = tmp_path / "smartctl"
    smartctl.write_text('#!/bin/sh\necho \'{"smartctl": {"exit_status": 2}}\'; exit 2\n')
    smartctl.chmod(0o755)
    assert read_wear(tmp_path) is None, "smartctl may not open the disk"
    nvme = tmp_path / "nvme"
    nvme.write_text('#!/bin/sh\necho \'{"percent_used": 10, "data_units_written": 1000}\'\n')
    nvme.chmod(0o755)
    assert read_wear(tmp_path) == Wear(written=512_000_000, rated=5_120_000_000)

"""What is decided about a machine: from which source, with which override, and what is missing on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.machines import MACHINES, Recorded, snapshot_of
from fakes.machines.parts import AVX2, AVX512, GIB, base, card, kfd, nvidia_smi, x86

from pyrun.cli.doctor import report, text_report
from pyrun.errors import UserError
from pyrun.machine import amd
from pyrun.machine.backends import check_backends, install_hint, runtime_environment
from pyrun.machine.describe import Machine, describe
from pyrun.machine.disk import measure_disk
from pyrun.machine.isa import LEVELS, TARGETS, arm_level, build_flags, cuda_architectures, x86_level
from pyrun.machine.probe import probe, run_command
from pyrun.machine.snapshot import Snapshot

HANDHELD = MACHINES["7840U handheld, 32 GB"]


def described(machine: Recorded, root: Path, **environment: str) -> Machine:
    return describe(snapshot_of(machine, root, environment))


# PCI device -> gfx and the version ROCm may be told, as AMD and the kernel name them.
@pytest.mark.parametrize(
    ("devices", "gfx", "override"),
    [
        ("15dd 15d8", "gfx902", None),
        ("1636 164c 1638 15e7", "gfx90c", "9.0.0"),
        ("163f 1435", "gfx1033", "10.3.0"),
        ("1681 164d", "gfx1035", "10.3.0"),
        ("164e 13c0 1506", "gfx1036", "10.3.0"),
        ("15bf 15c8 1900 1901", "gfx1103", "11.0.0"),
        ("150e", "gfx1150", None),
        ("1586", "gfx1151", None),
        ("1114", "gfx1152", None),
        ("1902", "gfx1153", None),
    ],
)
def test_apu_is_known(devices: str, gfx: str, override: str | None) -> None:
    for device in devices.split():
        apu = amd.APUS[int(device, 16)]
        assert (apu.gfx, apu.override) == (gfx, override)


@pytest.mark.parametrize(
    ("version", "gfx"),
    [(110003, "gfx1103"), (90012, "gfx90c"), (110501, "gfx1151"), (100306, "gfx1036"), (90402, "gfx942"), (0, None)],
)
def test_kfd_version_is_read(version: int, gfx: str | None) -> None:
    assert amd.gfx_of_version(version) == gfx


def test_better_source_wins_over_the_table(tmp_path: Path) -> None:
    """KFD before amd-smi before rocm-smi before the table."""
    plain = Recorded("x", base(x86("x", 4, AVX2), 16, "debian") | card(0, 0x1002, 0x15BF, GIB, GIB))
    answers = {
        "rocm-smi": "GPU[0]\t\t: Card Model: \t\t0x15bf\nGPU[0]\t\t: GFX Version: \t\tgfx1101\n",
        "amd-smi": "GPU: 0\n  ASIC:\n    DEVICE_ID: 0x15bf\n    TARGET_GRAPHICS_VERSION: gfx1102\n",
    }
    steps = [
        (plain, "gfx1103", "table of PCI ids"),
        (replace(plain, answers={"rocm-smi": answers["rocm-smi"]}), "gfx1101", "rocm-smi"),
        (replace(plain, answers=answers), "gfx1102", "amd-smi"),
        (replace(plain, answers=answers, files={**plain.files, **kfd({0x15BF: 110000})}), "gfx1100", "KFD"),
    ]
    for number, (machine, gfx, source) in enumerate(steps):
        gpu = described(machine, tmp_path / str(number)).gpus[0]
        assert (gpu.gfx, gpu.gfx_source) == (gfx, source)


def test_unknown_card_gets_no_gfx_of_another(tmp_path: Path) -> None:
    machine = Recorded("x", base(x86("x", 4, AVX2), 16, "debian") | card(0, 0x1002, 0x9999, 8 * GIB, GIB))
    gpu = described(machine, tmp_path).gpus[0]
    assert (gpu.gfx, gpu.gfx_source, gpu.is_unified, gpu.memory) == (None, "not known", False, 8 * GIB)


@pytest.mark.parametrize(
    ("machine", "value", "source"),
    [
        ("5800H laptop, 32 GB", "9.0.0", "the ROCm libraries lack gfx90c and have gfx900"),
        ("Strix Halo, 128 GB", None, "KFD and the ROCm libraries agree on gfx1151"),
        ("7840U handheld, 32 GB", None, "no ROCm libraries are installed"),
    ],
)
def test_hsa_version_comes_from_the_libraries_that_are_there(
    tmp_path: Path, machine: str, value: str | None, source: str
) -> None:
    override = described(MACHINES[machine], tmp_path).gpus[0].override
    assert override == amd.HsaOverride(value, source)


def test_rocm_server_is_started_with_the_version(tmp_path: Path) -> None:
    laptop = described(MACHINES["5800H laptop, 32 GB"], tmp_path / "a")
    assert runtime_environment(laptop, "rocm") == {"HSA_OVERRIDE_GFX_VERSION": "9.0.0"}
    assert runtime_environment(laptop, "vulkan") == {}
    assert runtime_environment(described(MACHINES["Strix Halo, 128 GB"], tmp_path / "b"), "rocm") == {}


def test_overrides_are_used(tmp_path: Path) -> None:
    found = described(
        HANDHELD,
        tmp_path,
        LLAMA_GFX_ARCH_OVERRIDE="gfx1100",
        LLAMA_GFX_VERSION_OVERRIDE="11.0.0",
        LLAMA_CPU_ISA_OVERRIDE="zen3",
        LLAMA_HARDWARE_TIER_OVERRIDE="unified",
    )
    gpu = found.gpus[0]
    assert (gpu.gfx, gpu.gfx_source) == ("gfx1100", "LLAMA_GFX_ARCH_OVERRIDE")
    assert gpu.override == amd.HsaOverride("11.0.0", "LLAMA_GFX_VERSION_OVERRIDE")
    assert (found.cpu.level, found.cpu.level_source) == ("avx2", "LLAMA_CPU_ISA_OVERRIDE")
    assert found.cpu.build_flags == build_flags("zen3") and "-DGGML_AVX512=OFF" in found.cpu.build_flags
    assert (found.tier, found.tier_source) == ("unified", "LLAMA_HARDWARE_TIER_OVERRIDE")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("LLAMA_CPU_ISA_OVERRIDE", "avx1024", "neither an instruction set nor a processor"),
        ("LLAMA_CPU_ISA_OVERRIDE", "graviton3", "is for another kind of processor"),
        ("LLAMA_HARDWARE_TIER_OVERRIDE", "huge", "is not a tier"),
    ],
)
def test_wrong_override_is_told(tmp_path: Path, variable: str, value: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        described(HANDHELD, tmp_path, **{variable: value})


@pytest.mark.parametrize(
    ("level", "on"),
    [
        ("sse42", "SSE42"),
        ("avx", "SSE42 AVX"),
        ("avx2", "SSE42 AVX F16C FMA BMI2 AVX2"),
        ("zen3", "SSE42 AVX F16C FMA BMI2 AVX2"),
        ("avx512", "SSE42 AVX F16C FMA BMI2 AVX2 AVX512"),
        ("avx512_vnni", "SSE42 AVX F16C FMA BMI2 AVX2 AVX512 AVX512_VNNI"),
        ("zen4", "SSE42 AVX F16C FMA BMI2 AVX2 AVX512 AVX512_VBMI AVX512_VNNI AVX512_BF16"),
        ("zen5", "SSE42 AVX F16C FMA BMI2 AVX2 AVX_VNNI AVX512 AVX512_VBMI AVX512_VNNI AVX512_BF16"),
        (
            "amx",
            "SSE42 AVX F16C FMA BMI2 AVX2 AVX512 AVX512_VBMI AVX512_VNNI AVX512_BF16 AMX_TILE AMX_INT8 AMX_BF16",
        ),
    ],
)
def test_build_for_another_machine_has_no_instructions_it_lacks(level: str, on: str) -> None:
    flags = build_flags(level)
    assert flags[0] == "-DGGML_NATIVE=OFF"
    assert [f[7:-3] for f in flags if f.endswith("=ON")] == on.split()
    assert len(flags) == 15  # every option is said, on or off


@pytest.mark.parametrize(
    ("level", "march"),
    [
        ("armv8.2+dotprod", "armv8.2-a+dotprod"),
        ("armv8.6+i8mm", "armv8.6-a"),
        ("sve", "armv8.6-a+sve"),
        ("apple_silicon", "armv8.4-a+dotprod"),
        ("m2", "armv8.4-a+dotprod"),
    ],
)
def test_arm_build_has_no_x86_flags(level: str, march: str) -> None:
    assert build_flags(level) == ["-DGGML_NATIVE=OFF", f"-DGGML_CPU_ARM_ARCH={march}"]


def test_names_of_levels_and_targets_are_all_known() -> None:
    for name in (*LEVELS, *TARGETS, "native", "ZEN4"):
        assert build_flags(name)
    with pytest.raises(UserError, match="'z80'"):
        build_flags("z80")


def test_processor_without_all_of_a_level_does_not_get_it() -> None:
    assert x86_level(AVX512.split()) == "avx512"
    assert x86_level(AVX512.replace("avx512bw", "").split()) == "avx2"
    assert x86_level(f"{AVX512} avx512_vnni avx512_bf16".split()) == "avx512_vnni"  # no VBMI
    assert x86_level(["sse2"]) == "x86_64"
    assert arm_level(["asimd"]) == "armv8"
    assert arm_level(["asimddp", "i8mm", "bf16"]) == "armv8.6+i8mm"
    assert arm_level(["asimddp", "i8mm", "bf16", "sve"]) == "sve"
    assert arm_level(["sve"]) == "armv8"  # A64FX


def test_cuda_architecture_is_right() -> None:
    def of(*cards: tuple[str, str, str]) -> list[str]:
        return cuda_architectures(Snapshot("Linux", "x86_64", outputs={"nvidia-smi": nvidia_smi(*cards)}))

    assert of(("NVIDIA H200", "143771 MiB", "9.0")) == ["90"]
    assert of(("a", "1 MiB", "12.0"), ("b", "1 MiB", "8.6"), ("c", "1 MiB", "8.6")) == ["86", "120"]
    assert cuda_architectures(Snapshot("Linux", "x86_64")) == []
    assert cuda_architectures(Snapshot("Linux", "x86_64", outputs={"nvidia-smi": "No devices were found"})) == []


def test_nvidia_chip_that_shares_memory_has_some(tmp_path: Path) -> None:
    machine = Recorded(
        "x", base(x86("x", 4, AVX2), 119, "ubuntu"), {"nvidia-smi": nvidia_smi(("NVIDIA GB10", "[N/A]", "12.1"))}
    )
    gpu = described(machine, tmp_path).gpus[0]
    assert gpu.is_unified and gpu.memory == 119 * GIB


@pytest.mark.parametrize(
    ("machine", "on_battery", "percent"),
    [
        ("7840U handheld, 32 GB", True, 71),
        ("Steam Deck, 16 GB", False, 90),
        ("Apple M2 Pro, 32 GB", True, 64),
        ("H200 server", False, None),
    ],
)
def test_battery_of_a_mouse_does_not_count(tmp_path: Path, machine: str, on_battery: bool, percent: int | None) -> None:
    power = described(MACHINES[machine], tmp_path).power
    assert (power.on_battery, power.percent) == (on_battery, percent)


def test_missing_package_is_named(tmp_path: Path) -> None:
    snapshot = snapshot_of(MACHINES["Steam Deck, 16 GB"], tmp_path)
    machine = describe(snapshot)
    cpu, vulkan, rocm, cuda = check_backends(snapshot, machine)
    assert install_hint(cpu.missing, "arch") == "sudo pacman -S gcc"
    packages = "gcc vulkan-headers vulkan-icd-loader shaderc spirv-headers"
    assert install_hint(vulkan.missing, machine.distribution) == f"sudo pacman -S {packages}"
    assert "/dev/kfd" in [m.what for m in rocm.missing]
    assert not cuda.has_device and not cuda.missing
    everywhere = install_hint(cpu.missing, "")
    assert everywhere == "Debian/Ubuntu: g++ · Fedora: gcc-c++ · Arch/SteamOS: gcc"


def test_device_of_another_user_is_noticed(tmp_path: Path) -> None:
    snapshot = snapshot_of(replace(HANDHELD, answers={}), tmp_path)
    locked = replace(snapshot, usable=frozenset())
    hints = [m.hint for backend in check_backends(locked, describe(locked)) for m in backend.missing]
    assert sum("groups render and video" in hint for hint in hints) == 2  # vulkan and rocm
    assert not any("groups" in m.hint for b in check_backends(snapshot, describe(snapshot)) for m in b.missing)


def test_card_without_driver_is_seen(tmp_path: Path) -> None:
    machine = Recorded("x", base(x86("x", 4, AVX2), 16, "fedora") | card(0, 0x10DE, 0x28E0))
    snapshot = snapshot_of(machine, tmp_path)
    cuda = check_backends(snapshot, describe(snapshot))[3]
    assert cuda.has_device and [m.what for m in cuda.missing] == ["NVIDIA's driver", "the CUDA compiler"]
    assert cuda.missing[0].remark("fedora") == "it is in RPM Fusion"


def test_program_that_hangs_or_fails_does_not_stop_the_probe(tmp_path: Path) -> None:
    assert run_command(["/no/such/program"]) is None
    assert run_command(["false"]) is None

    def fails(command: Sequence[str]) -> str | None:
        return None

    found = probe(tmp_path, fails, lambda name: f"/usr/bin/{name}", {}, system="Linux", arch="x86_64")
    assert found.outputs == {} and describe(found).gpus == []


def test_graphics_are_asked_only_where_somebody_wants_to_know(tmp_path: Path) -> None:
    assert snapshot_of(MACHINES["H200 server"], tmp_path, gpus=False).outputs == {}


def test_doctor_describes_every_machine(tmp_path: Path) -> None:
    for number, machine in enumerate(MACHINES.values()):
        snapshot = snapshot_of(machine, tmp_path / str(number))
        text = "\n".join(text_report(snapshot, describe(snapshot), None, "not measured"))
        told = json.loads(json.dumps(report(snapshot, describe(snapshot), None)))
        assert told["cpu"]["name"] in text and told["recommended_backend"]["name"] in text
        assert [b["name"] for b in told["backends"]] == ["cpu", "vulkan", "rocm", "cuda"]


def test_this_machine_can_be_described() -> None:
    found = describe(probe())
    assert found.ram > 0 and found.cpu.threads > 0 and found.tier


def test_measuring_the_disk_leaves_no_files(tmp_path: Path) -> None:
    speed = measure_disk(tmp_path)
    assert speed.write > 0 and list(tmp_path.iterdir()) == []

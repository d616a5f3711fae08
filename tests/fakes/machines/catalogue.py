"""The machines that the table of decisions is made for."""

from __future__ import annotations

from fakes.machines.parts import (
    AVX2,
    GIB,
    RAPTOR_LAKE,
    SAPPHIRE_RAPIDS,
    ZEN4,
    ZEN5,
    amd_smi,
    arm,
    base,
    battery,
    card,
    kfd,
    nvidia_smi,
    rocm,
    vulkan_packages,
    vulkaninfo,
    x86,
)
from fakes.machines.recorded import Recorded

AMD, NVIDIA, INTEL = 0x1002, 0x10DE, 0x8086

_ALL = (
    Recorded(
        # 4 GiB set aside for graphics; KFD knows the chip.
        "7840U handheld, 32 GB",
        base(x86("AMD Ryzen 7 7840U w/ Radeon 780M Graphics", 8, ZEN4), 27.2, "arch", "G1618-04")
        | card(1, AMD, 0x15BF, 4 * GIB, 13 * GIB)
        | kfd({0x15BF: 110003})
        | vulkan_packages()
        | battery("Discharging", 71, 0),
        {"vulkaninfo": vulkaninfo((AMD, 0x15BF, "INTEGRATED_GPU", "AMD Radeon 780M (RADV PHOENIX)", "radv"))},
        programs=("c++", "glslc"),
    ),
    Recorded(
        # No KFD: the table of PCI ids decides. A fresh SteamOS has no compiler.
        "Steam Deck, 16 GB",
        base(x86("AMD Custom APU 0405", 4, AVX2), 14.5, "steamos", "Jupiter")
        | card(0, AMD, 0x163F, GIB, 8 * GIB)
        | {"/usr/share/vulkan/icd.d/radeon_icd.x86_64.json": "{}"}
        | battery("Charging", 90, 1),
        {"vulkaninfo": vulkaninfo((AMD, 0x163F, "INTEGRATED_GPU", "AMD Custom GPU 0405 (RADV VANGOGH)", "radv"))},
        programs=(),
    ),
    Recorded(
        # ROCm libraries that lack gfx90c and have gfx900.
        "5800H laptop, 32 GB",
        base(x86("AMD Ryzen 7 5800H with Radeon Graphics", 8, AVX2), 30.8, "ubuntu", "82L5")
        | card(0, AMD, 0x1638, GIB // 2, 15 * GIB)
        | kfd({0x1638: 90012})
        | rocm("gfx900", "gfx906", "gfx1030", "gfx1100")
        | battery("Not charging", 80, 1),
        programs=("c++", "hipcc"),
    ),
    Recorded(
        # A kernel without KFD for it; amd-smi knows.
        "Strix Point, 32 GB",
        base(x86("AMD Ryzen AI 9 HX 370 w/ Radeon 890M", 12, ZEN5), 30.5, "fedora", "Prestige A16")
        | card(1, AMD, 0x150E, GIB // 2, 15 * GIB)
        | vulkan_packages()
        | battery("Full", 100, 1),
        {
            "amd-smi": amd_smi(0x150E, "gfx1150"),
            "vulkaninfo": vulkaninfo((AMD, 0x150E, "INTEGRATED_GPU", "AMD Radeon 890M (RADV GFX1150)", "radv")),
        },
        programs=("c++", "glslc"),
    ),
    Recorded(
        # 512 MB set aside; the kernel lends graphics half of RAM.
        "Strix Halo, 128 GB",
        base(x86("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", 16, ZEN5), 124.9, "ubuntu", "GTR9 Pro")
        | card(1, AMD, 0x1586, GIB // 2, 62 * GIB)
        | kfd({0x1586: 110501})
        | rocm("gfx1100", "gfx1151")
        | vulkan_packages()
        | {"/sys/module/ttm/parameters/pages_limit": f"{62 * 262144}\n"},
        {"vulkaninfo": vulkaninfo((AMD, 0x1586, "INTEGRATED_GPU", "Radeon 8060S Graphics (RADV GFX1151)", "radv"))},
        programs=("c++", "glslc", "hipcc"),
        memlock=None,
    ),
    Recorded(
        # Graphics in the processor and a card beside it: the card is used.
        "Raphael desktop, RX 7900 XTX",
        base(x86("AMD Ryzen 9 7950X 16-Core Processor", 16, ZEN4), 61.9, "fedora", "X670E")
        | card(0, AMD, 0x164E, GIB // 2, 30 * GIB)
        | card(1, AMD, 0x744C, 24 * GIB, 30 * GIB)
        | kfd({0x744C: 110000, 0x164E: 100306})
        | vulkan_packages(),
        {
            "vulkaninfo": vulkaninfo(
                (AMD, 0x164E, "INTEGRATED_GPU", "AMD Ryzen 9 7950X (RADV RAPHAEL_MENDOCINO)", "radv"),
                (AMD, 0x744C, "DISCRETE_GPU", "AMD Radeon RX 7900 XTX (RADV NAVI31)", "radv"),
            )
        },
        programs=("c++", "glslc"),
    ),
    Recorded(
        "Raphael desktop, no card",
        base(x86("AMD Ryzen 9 7950X 16-Core Processor", 16, ZEN4), 61.9, "debian", "X670E")
        | card(0, AMD, 0x164E, GIB // 2, 30 * GIB)
        | kfd({0x164E: 100306}),
    ),
    Recorded(
        "RTX 4060 laptop, 32 GB",
        base(x86("13th Gen Intel(R) Core(TM) i7-13700H", 14, RAPTOR_LAKE), 31.1, "ubuntu", "Zephyrus")
        | card(0, INTEL, 0xA7A0)
        | card(1, NVIDIA, 0x28E0)
        | battery("Not charging", 79, 1),
        {
            "nvidia-smi": nvidia_smi(("NVIDIA GeForce RTX 4060 Laptop GPU", "8188 MiB", "8.9")),
            "vulkaninfo": vulkaninfo(
                (INTEL, 0xA7A0, "INTEGRATED_GPU", "Intel(R) Graphics (RPL-P)", "Intel open-source Mesa driver"),
                (NVIDIA, 0x28E0, "DISCRETE_GPU", "NVIDIA GeForce RTX 4060 Laptop GPU", "NVIDIA"),
            ),
        },
    ),
    Recorded(
        "H200 server",
        base(x86("INTEL(R) XEON(R) PLATINUM 8558", 48, SAPPHIRE_RAPIDS), 251.0, "ubuntu"),
        {"nvidia-smi": nvidia_smi(("NVIDIA H200", "143771 MiB", "9.0"))},
        programs=("c++", "nvcc"),
        memlock=None,
        cpus=16,
    ),
    Recorded(
        "Apple M2 Pro, 32 GB",
        {},
        {
            "sysctl": "machdep.cpu.brand_string: Apple M2 Pro\nhw.model: Mac14,9\nhw.memsize: 34359738368\n"
            "hw.physicalcpu: 10\nhw.logicalcpu: 10\nhw.perflevel0.physicalcpu: 6\n"
            "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 1\niogpu.wired_limit_mb: 0\n",
            "pmset": "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t64%; discharging; 5:12 remaining\n",
        },
        programs=("c++", "clang++"),
        system="Darwin",
        arch="arm64",
        memlock=None,
    ),
    Recorded(
        "ARM server, Neoverse N1",
        base(arm(64, "fp asimd evtstrm aes crc32 atomics fphp asimdhp asimdrdm asimddp", "0xd0c"), 125.4, "debian"),
        arch="aarch64",
    ),
    Recorded(
        # A container: two of eight processors by quota, and a Vulkan driver that is the processor itself.
        "no GPU, container of 2 CPUs",
        base(x86("Intel(R) Xeon(R) CPU E5-2680 v4", 4, AVX2), 15.6, "debian")
        | {"/sys/fs/cgroup/cpu.max": "200000 100000\n", "/sys/fs/cgroup/memory.max": f"{8 * GIB}\n"},
        {"vulkaninfo": vulkaninfo((0x10005, 0, "CPU", "llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe"))},
    ),
)

MACHINES: dict[str, Recorded] = {machine.name: machine for machine in _ALL}

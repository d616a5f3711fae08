"""Parts of recorded machines: sysfs files, /proc texts and the words of tools."""

from __future__ import annotations

from collections.abc import Mapping

GIB = 1 << 30

SSE = "fpu sse sse2 ssse3 sse4_1 sse4_2 popcnt"
AVX2 = f"{SSE} avx f16c fma bmi1 bmi2 avx2"
AVX512 = f"{AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"
ZEN4 = f"{AVX512} avx512vbmi avx512_vnni avx512_bf16"
ZEN5 = f"{ZEN4} avx_vnni"
RAPTOR_LAKE = f"{AVX2} avx_vnni"
SAPPHIRE_RAPIDS = f"{ZEN5} amx_bf16 amx_tile amx_int8"

RELEASES = {
    "arch": "NAME=CachyOS\nID=cachyos\nID_LIKE=arch\nPRETTY_NAME=CachyOS\n",
    "steamos": 'NAME="SteamOS"\nID=steamos\nID_LIKE=arch\nPRETTY_NAME="SteamOS"\n',
    "ubuntu": 'ID=ubuntu\nID_LIKE=debian\nPRETTY_NAME="Ubuntu 24.04.2 LTS"\n',
    "debian": 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    "fedora": 'ID=fedora\nPRETTY_NAME="Fedora Linux 43"\n',
}


def base(cpuinfo: str, ram: float, release: str, product: str = "") -> dict[str, str]:
    """ram: GiB that Linux sees, which is less than what was bought."""
    files = {
        "/proc/cpuinfo": cpuinfo,
        "/proc/meminfo": f"MemTotal:       {int(ram * (1 << 20))} kB\nMemFree:          123456 kB\n",
        "/etc/os-release": RELEASES[release],
    }
    return {**files, "/sys/class/dmi/id/product_name": f"{product}\n"} if product else files


def x86(name: str, cores: int, flags: str, threads_per_core: int = 2) -> str:
    """As Linux numbers them: the second threads come after all cores."""
    return "\n".join(
        f"processor\t: {n}\nmodel name\t: {name}\nphysical id\t: 0\ncore id\t\t: {n % cores}\nflags\t\t: {flags}\n"
        for n in range(cores * threads_per_core)
    )


def arm(cores: int, features: str, part: str) -> str:
    return "\n".join(f"processor\t: {n}\nFeatures\t: {features}\nCPU part\t: {part}\n" for n in range(cores))


def card(number: int, vendor: int, device: int, vram: int = 0, gtt: int = 0) -> dict[str, str]:
    folder = f"/sys/class/drm/card{number}/device"
    files = {
        f"{folder}/vendor": f"0x{vendor:04x}\n",
        f"{folder}/device": f"0x{device:04x}\n",
        f"{folder}/uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME=0000:{number:02x}:00.0\n",
        f"/dev/dri/renderD{128 + number}": "",
    }
    if vendor == 0x1002:
        files |= {f"{folder}/mem_info_vram_total": f"{vram}\n", f"{folder}/mem_info_gtt_total": f"{gtt}\n"}
    return files


def kfd(nodes: Mapping[int, int]) -> dict[str, str]:
    """PCI device -> gfx_target_version; node 0 is the processor."""
    folder = "/sys/class/kfd/kfd/topology/nodes"
    files = {f"{folder}/0/properties": "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0\ndevice_id 0\n"}
    for number, (device, version) in enumerate(nodes.items(), start=1):
        files[f"{folder}/{number}/properties"] = (
            f"cpu_cores_count 0\nsimd_count 24\ngfx_target_version {version}\nvendor_id 4098\ndevice_id {device}\n"
        )
    return {**files, "/dev/kfd": ""}


def rocm(*targets: str, root: str = "/opt/rocm", version: str = "6.4.1-83") -> dict[str, str]:
    """As AMD's packages and tarballs lay it out; in the system's own root its tools are spread elsewhere."""
    libraries = {f"{root}/lib/rocblas/library/TensileLibrary_lazy_{target}.dat": "" for target in targets}
    own = {
        f"{root}/lib/llvm/bin/clang++": "",
        f"{root}/lib/llvm/amdgcn/bitcode/ocml.bc": "",
        f"{root}/.info/version": f"{version}\n",
    }
    return {
        **libraries,
        **(own if root != "/usr" else {}),
        f"{root}/lib/cmake/hipblas/hipblas-config.cmake": "",
        f"{root}/bin/hipcc": "",
    }


def vulkan_packages(version: tuple[int, int, int] = (1, 4, 313)) -> dict[str, str]:
    major, minor, patch = version
    return {
        "/usr/include/vulkan/vulkan.h": "",
        "/usr/include/vulkan/vulkan_core.h": f"// Version of this file\n#define VK_HEADER_VERSION {patch}\n\n"
        f"#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, {major}, {minor}, VK_HEADER_VERSION)\n",
        "/usr/lib/libvulkan.so": "",
        "/usr/share/cmake/SPIRV-Headers/SPIRV-HeadersConfig.cmake": "",
        "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json": "{}",
    }


def vulkaninfo(*devices: tuple[int, int, str, str, str]) -> str:
    """Each: vendor, device, kind, name, driver."""
    text = "==========\nVULKANINFO\n==========\n\nVulkan Instance Version: 1.4.313\n\nDevices:\n========\n"
    for number, (vendor, device, kind, name, driver) in enumerate(devices):
        text += (
            f"GPU{number}:\n\tapiVersion         = 1.4.311\n\tvendorID           = 0x{vendor:04x}\n"
            f"\tdeviceID           = 0x{device:04x}\n\tdeviceType         = PHYSICAL_DEVICE_TYPE_{kind}\n"
            f"\tdeviceName         = {name}\n\tdriverName         = {driver}\n\tdriverInfo         = 25.1.4\n"
        )
    return text


def nvidia_smi(*cards: tuple[str, str, str]) -> str:
    """Each: name, memory, compute capability."""
    rows = [f"{name}, {memory}, {compute}, 570.133.20" for name, memory, compute in cards]
    return "\n".join(["name, memory.total [MiB], compute_cap, driver_version", *rows]) + "\n"


def amd_smi(device: int, gfx: str) -> str:
    return (
        "GPU: 0\n    ASIC:\n        MARKET_NAME: AMD Radeon Graphics\n        VENDOR_ID: 0x1002\n"
        f"        DEVICE_ID: 0x{device:04x}\n        TARGET_GRAPHICS_VERSION: {gfx}\n"
    )


def battery(status: str, percent: int, online: int) -> dict[str, str]:
    root = "/sys/class/power_supply"
    return {
        f"{root}/BAT0/type": "Battery\n",
        f"{root}/BAT0/status": f"{status}\n",
        f"{root}/BAT0/capacity": f"{percent}\n",
        f"{root}/ADP1/type": "Mains\n",
        f"{root}/ADP1/online": f"{online}\n",
        # A mouse has a battery as well.
        f"{root}/hidpp_battery_0/type": "Battery\n",
        f"{root}/hidpp_battery_0/scope": "Device\n",
        f"{root}/hidpp_battery_0/status": "Discharging\n",
    }

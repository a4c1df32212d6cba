"""`gpu smi` on made-up machines."""

from __future__ import annotations

import json

import pytest

from gpu.cli.main import main
from gpu.cli.smi import as_json, as_text
from gpu.transport.usage import User, usages
from unit.made_up import AMD_AT, BUS, NVIDIA_AT, MadeUp, card

AT = f"/sys/bus/pci/devices/{AMD_AT}"
RADEON = card(AMD_AT, 0x1002, "amdgpu") | {
    f"{AT}/product_name": "Radeon RX 7900 XTX\n",
    f"{AT}/mem_info_vram_total": f"{24 << 30}\n",
    f"{AT}/mem_info_vram_used": f"{3 << 30}\n",
    f"{AT}/gpu_busy_percent": "42\n",
    f"{AT}/pp_dpm_sclk": "0: 500Mhz \n1: 2304Mhz *\n2: 2482Mhz \n",
    f"{AT}/pp_dpm_mclk": "0: 96Mhz *\n1: 1249Mhz \n",
    f"{AT}/hwmon/hwmon3/temp1_input": "51000\n",
    f"{AT}/hwmon/hwmon3/temp2_input": "63500\n",
    f"{AT}/hwmon/hwmon3/temp1_crit": "100000\n",
    f"{AT}/hwmon/hwmon3/power1_average": "203000000\n",
}
NVIDIA = card(NVIDIA_AT, 0x10DE, "nvidia", 0x2684) | {
    f"/proc/driver/nvidia/gpus/{NVIDIA_AT}/information": "Model: \t\t NVIDIA H100 PCIe\n"
    "IRQ:   \t\t 16\nGPU UUID: \t GPU-0\nDevice Minor: \t 3\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.142  Rel\n",
}


def _file(client: int, vram: str, at: str = AMD_AT) -> str:
    return f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t{at}\n{vram}"


PROCESSES = {
    # Two descriptors of one client, and another client.
    "/proc/70/comm": "train\n",
    "/proc/70/fdinfo/3": _file(5, "drm-memory-vram:\t1024 KiB\n"),
    "/proc/70/fdinfo/4": _file(5, "drm-memory-vram:\t1024 KiB\n"),
    "/proc/70/fdinfo/9": _file(6, "drm-memory-vram:\t2 MiB\n"),
    "/proc/8/comm": "Xorg\n",
    "/proc/8/fdinfo/1": _file(1, ""),
    "/proc/9/comm": "cat\n",
    "/proc/9/fdinfo/0": "pos:\t0\n",
    "/proc/10/comm": "elsewhere\n",
    "/proc/10/fdinfo/0": _file(2, "", at="0000:99:00.0"),
    "/proc/11/comm": "infer\n",
    "/proc/11/maps": "7f00-7f01 rw-s 00000000 00:06 1  /dev/nvidia3\n7f02-7f03 r--p 0 0 0\n",
    "/proc/12/maps": "7f00-7f01 rw-s 00000000 00:06 1  /dev/nvidia30\n",
}
MACHINE = MadeUp(BUS, RADEON, NVIDIA, PROCESSES)


def test_a_gpu_of_amd() -> None:
    gpu = usages(MACHINE)[0]
    assert (gpu.address, gpu.vendor, gpu.driver) == (AMD_AT, "AMD", "amdgpu")
    assert (gpu.name, gpu.memory, gpu.memory_used) == ("Radeon RX 7900 XTX", 24 << 30, 3 << 30)
    assert (gpu.busy, gpu.shader_mhz, gpu.memory_mhz) == (42, 2304, 96)
    assert (gpu.celsius, gpu.watts) == (63.5, 203.0)
    assert gpu.users == (User(8, "Xorg", None), User(70, "train", 3 << 20))


def test_a_gpu_of_nvidia() -> None:
    gpu = usages(MACHINE)[1]
    assert (gpu.address, gpu.name, gpu.driver) == (NVIDIA_AT, "NVIDIA H100 PCIe", "nvidia 580.142")
    assert gpu.memory is gpu.celsius is None
    assert gpu.users == (User(11, "infer", None),)


def test_the_text() -> None:
    text = as_text(MACHINE)
    assert "  memory       3.0 GiB of 24.0 GiB\n" in text
    assert "  clocks       2304 MHz, memory 96 MHz\n  temperature  63.5 °C\n" in text
    assert "  used by      70 train, 3.0 MiB\n" in text
    assert "NVIDIA H100 PCIe  (NVIDIA, driver nvidia 580.142)\n  memory       -\n" in text


def test_what_is_not_told_is_not_made_up() -> None:
    gpus = json.loads(as_json(MadeUp(BUS, card(AMD_AT, 0x1002))))["gpus"]
    assert gpus[0].pop("users") == []
    known = {key: value for key, value in gpus[0].items() if value is not None}
    assert known == {"address": AMD_AT, "vendor": "AMD", "name": "1002:744c", "driver": ""}
    text = as_text(MadeUp(BUS, card(AMD_AT, 0x1002)))
    assert "driver none" in text and "used by      nobody that this user may look into" in text


def test_strange_texts_are_no_numbers() -> None:
    strange = {path: "\x00?\n" for path in RADEON if path.startswith(f"{AT}/") and "hwmon" in path}
    strange |= {f"{AT}/mem_info_vram_total": "", f"{AT}/pp_dpm_sclk": "0: 500Mhz\n"}
    (gpu,) = usages(MadeUp(BUS, RADEON, strange))
    assert gpu.memory is gpu.shader_mhz is gpu.celsius is gpu.watts is None


def test_no_gpu_points_at_the_doctor() -> None:
    assert "gpu doctor" in as_text(MadeUp(BUS))
    assert as_text(MadeUp()) == as_text(MadeUp(BUS))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smi"]) == 0
    assert capsys.readouterr().out
    assert main(["smi", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1

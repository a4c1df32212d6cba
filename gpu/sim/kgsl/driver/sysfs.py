"""Files of /sys/class/kgsl/kgsl-3d0 (adreno_sysfs.c, kgsl_pwrctrl.c, kgsl_snapshot.c)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from gpu.sim.kernel import SysError
from gpu.sim.kgsl.driver.device import Device
from gpu.sim.process import System

FOLDER: Final = "/sys/class/kgsl/kgsl-3d0"
_CLOCKS: Final = (710_000_000, 675_000_000, 520_000_000, 414_000_000, 257_000_000)
_POLICY: Final = 0xC2  # BIT(KGSL_FT_REPLAY, SKIPCMD, THROTTLE) of adreno.h
_HALT: Final = 1 << 1  # KGSL_FT_PAGEFAULT_GPUHALT_ENABLE


def add_files(world: System, device: Device) -> None:
    """Puts them into the machine's tree; what root may write is taken."""
    mhz = " ".join(str(hz // 1_000_000) for hz in _CLOCKS)
    fixed = {
        "gpu_model": f"Adreno{device.gpu.chip.revision}v1",
        "gpu_available_frequencies": " ".join(map(str, _CLOCKS)),
        "num_pwrlevels": str(len(_CLOCKS)),
        "max_gpuclk": str(_CLOCKS[0]),
        "max_clock_mhz": str(_CLOCKS[0] // 1_000_000),
        "min_clock_mhz": str(_CLOCKS[-1] // 1_000_000),
        "freq_table_mhz": mhz,
        "max_pwrlevel": "0",
        "min_pwrlevel": str(len(_CLOCKS) - 1),
        "idle_timer": "80",
        "temp": "41000",
        "ft_policy": f"0x{_POLICY:X}",
    }
    for name, text in fixed.items():
        world.tree.add(f"{FOLDER}/{name}", text + "\n")
    _add(world, "gpuclk", lambda: _clock(device))
    _add(world, "clock_mhz", lambda: _clock(device) // 1_000_000)
    _add(world, "reset_count", lambda: device.dispatcher.resets)
    _add(world, "snapshot/faultcount", lambda: device.dispatcher.resets)
    _switch(world, "ft_long_ib_detect", device.dispatcher, "times_out")
    _switch(world, "ft_pagefault_policy", device.dispatcher, "page_faults_halt", _HALT)
    if device.release.name == "2025":
        _switch(world, "perfcounter", device, "counts_performance")


def _clock(device: Device) -> int:
    """The highest while a context asks for it and commands run."""
    is_busy = any(ring.commands for ring in device.gpu.rings)
    return _CLOCKS[0] if is_busy and device.constrained_by else _CLOCKS[-1]


def _add(world: System, name: str, value: Callable[[], int]) -> None:
    def show() -> bytes:
        return f"{value()}\n".encode()

    world.tree.add(f"{FOLDER}/{name}", show)


def _switch(world: System, name: str, holder: object, attribute: str, on: int = 1) -> None:
    def take(data: bytes) -> None:
        try:
            value = int(data.decode().strip(), 0)
        except ValueError as error:
            raise SysError(errno.EINVAL, f"{data!r} is no number") from error
        setattr(holder, attribute, bool(value & on))

    _add(world, name, lambda: on if getattr(holder, attribute) else 0)
    world.written[f"{FOLDER}/{name}"] = take

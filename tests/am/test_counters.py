"""Performance counters of launches, counted by the model, against what the launches say."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pytest

from am.kernels import LAYOUTS, WRITTEN
from gpu.core.errors import DeviceHang, InvalidValue, Unsupported
from gpu.drivers.am.counters import AmCounting, events_of
from gpu.drivers.am.device import AmDevice
from gpu.drivers.am.encode.sdma import SdmaEncoder
from gpu.drivers.am.kfd.port import ComputeKind
from gpu.drivers.am.target import Target
from gpu.hcq.profile import Profiler
from gpu.hcq.registers import ReadRegister, WriteRegister

pytest.importorskip("llvmlite", reason="compiles kernels")

KNOWN = "SQ_WAVES SQ_ITEMS SQ_INSTS_VALU SQ_INSTS_SALU SQ_INSTS_SMEM SQC_LDS_BANK_CONFLICT"
GFX11 = Target((11, 0, 0), (6, 0, 0), shader_engines=6, arrays=2, units_per_array=8)


@contextmanager
def opened(compute: ComputeKind = "pm4", chip: str = "gfx1100") -> Iterator[AmDevice]:
    from am.machine_code import MachineTarget

    target = MachineTarget(14, compute, chip)
    try:
        with target.open_gpu(0) as device:
            yield device
    finally:
        target.close()


def counted(
    device: AmDevice, chip: str, names: str, groups: int, threads: int
) -> list[Mapping[str, int]]:
    """What is counted of two launches in a row."""
    from am.machine_code import code_object

    add = device.load(code_object("add", chip), "add", LAYOUTS["add"], written=WRITTEN)
    buffers = [device.allocator.alloc(4096) for _ in range(3)]
    profiler = Profiler(device, device.port.waiter.now_ns, device.counting(names.split()))
    args = add.arguments(*buffers, vals=(5,))
    for _ in range(2):
        launch = add.launch(args, (groups, 1, 1), (threads, 1, 1))
        profiler.submit("add", device.channel("compute"), [launch])
    return [record.counts for record in profiler.collect()]


@pytest.mark.parametrize("compute", ["pm4", "aql"])
@pytest.mark.parametrize("chip", ["gfx1100", "gfx1201"])
def test_launches_are_counted(chip: str, compute: ComputeKind) -> None:
    rng = random.Random(f"{chip} {compute}")
    groups, threads = rng.randint(1, 4), rng.choice((1, 32, 50, 96, 200))
    with opened(compute, chip) as device:
        first, second = counted(device, chip, KNOWN, groups, threads)
    assert first == second and list(first) == KNOWN.split()
    waves = groups * -(-threads // 32)
    assert (first["SQ_WAVES"], first["SQ_ITEMS"]) == (waves, groups * threads)
    assert first["SQC_LDS_BANK_CONFLICT"] == 0
    for kind in ("VALU", "SALU", "SMEM"):
        assert first[f"SQ_INSTS_{kind}"] >= waves, kind


@pytest.mark.parametrize("name", ["GL2C_HIT", "SQ_BUSY_CYCLES", "SQ_WAIT_INST_ANY", "SQ_INSTS_ALL"])
def test_the_model_refuses_times_and_caches_by_name(name: str) -> None:
    with pytest.raises(DeviceHang, match=f"selects {name}: "), opened() as device:
        counted(device, "gfx1100", f"SQ_WAVES {name}", 1, 32)


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"SQ_WAFES.* such as SQ_WAVES"):
        AmCounting(GFX11, ["SQ_WAFES"])
    events = [name for name, (block, _) in events_of(GFX11).items() if block == "SQ"]
    with pytest.raises(InvalidValue, match=f"{events[8]}: SQ counts 8 events at a time"):
        AmCounting(GFX11, events[:9])
    for version in ((10, 3, 0), (9, 4, 2)):
        with pytest.raises(Unsupported, match="known are those of GFX11 and GFX12"):
            AmCounting(GFX11._replace(version=version), ["SQ_WAVES"])
    with pytest.raises(Unsupported, match="register 0xd808 on a copy queue"):
        SdmaEncoder(GFX11).encode([WriteRegister(0xD808, 1)])


def test_counts_are_sums_over_the_gpu() -> None:
    """Each WGP is read once, and each half of a wide counter is."""
    rng = np.random.default_rng(14)
    names = ["SQ_WAVES", "GL2C_HIT", "GL2C_MISS"]
    counting = AmCounting(GFX11, names)
    reads = [each for each in counting.around(0).after if isinstance(each, ReadRegister)]
    wgps, channels = 6 * 2 * 4, 32
    assert [each.address for each in reads] == [4 * n for n in range(counting.size // 4)]
    assert len(reads) == wgps + 2 * 2 * channels
    narrow = rng.integers(0, 1 << 32, wgps)
    wide = rng.integers(0, 1 << 48, (2, channels))
    data = struct.pack(f"<{wgps}I{2 * channels}Q", *narrow.tolist(), *wide.ravel().tolist())
    found = counting.counts(data)
    assert found == dict(zip(names, [int(narrow.sum()), *map(int, wide.sum(1))], strict=True))

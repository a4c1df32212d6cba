"""The tree in sysfs, after kfdtest's KFDTopologyTest, and numbers worked out by hand."""

from __future__ import annotations

import ctypes
import errno

import pytest

from gpu.autogen import kfd
from gpu.core.errors import TransportError, Unsupported
from gpu.sim.amd.chips import CHIPS, find_chip
from gpu.sim.amd.kfd.topology import ROOT, context_sizes, crc16
from gpu.sim.amd.kfd.world import KfdWorld
from gpu.sim.process import SimOs
from gpu.transport.os import Os
from sim.raw_kfd import RawKfd, fails


def _properties(os: SimOs, path: str) -> dict[str, int]:
    lines = os.read_file(path).decode().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def _gpu_node(world: KfdWorld) -> dict[str, int]:
    return _properties(world.os, f"{ROOT}/nodes/1/properties")


@pytest.mark.parametrize("chip", CHIPS)
def test_basic(chip: str) -> None:
    world = KfdWorld(chip=chip)
    os: Os = world.os  # mypy: the model is an Os
    assert os.list_dir(f"{ROOT}/nodes") == ["0", "1"]
    assert os.read_file(f"{ROOT}/nodes/0/gpu_id") == b"0\n"
    assert os.read_file(f"{ROOT}/nodes/1/gpu_id").decode() == f"{world.gpus[0].gpu_id}\n"
    properties = _gpu_node(world)
    assert properties["vendor_id"] == 0x1002
    assert properties["gfx_target_version"] == CHIPS[chip].version
    assert os.exists(f"/dev/dri/renderD{properties['drm_render_minor']}")
    assert next(iter(properties)) == "cpu_cores_count"
    assert list(properties)[-1] == "max_engine_clk_ccompute"
    world.close()


def test_gfx1100_as_a_real_board_prints_it() -> None:
    world = KfdWorld(chip="gfx1100")
    properties = _gpu_node(world)
    expected = {"simd_count": 192, "array_count": 12, "cu_per_simd_array": 8, "simd_per_cu": 2}
    expected |= {"num_sdma_engines": 2, "num_sdma_queues_per_engine": 6, "debug_prop": 1495}
    expected |= {"gfx_target_version": 110000, "device_id": 29772, "num_xcc": 1}
    assert properties | expected == properties
    world.close()


def test_get_node_properties_invalid_node_num(world: KfdWorld) -> None:
    with pytest.raises(TransportError) as caught:
        world.os.read_file(f"{ROOT}/nodes/2/properties")
    assert caught.value.errno == errno.ENOENT
    assert not world.os.exists(f"{ROOT}/nodes/2")


def test_get_node_memory_properties(world: KfdWorld) -> None:
    bank = _properties(world.os, f"{ROOT}/nodes/1/mem_banks/0/properties")
    assert bank["heap_type"] == 1
    assert bank["size_in_bytes"] == 24 << 30
    assert bank["width"] == 384
    host = _properties(world.os, f"{ROOT}/nodes/0/mem_banks/0/properties")
    assert host["heap_type"] == 0


def test_gpuvm_aperture_validate(user: RawKfd) -> None:
    count = user.call("get_process_apertures_new").num_of_nodes
    assert count == 1
    apertures = (kfd.kfd_process_device_apertures * count)()
    at = ctypes.addressof(apertures)
    fields = {"kfd_process_device_apertures_ptr": at, "num_of_nodes": count}
    assert user.call("get_process_apertures_new", **fields).num_of_nodes == 1
    assert apertures[0].gpu_id == user.gpu_id
    assert apertures[0].gpuvm_base == 0x10000
    assert apertures[0].gpuvm_limit == 0x7FFFFFFFFFFF
    assert apertures[0].lds_base == 1 << 48
    with fails(errno.EINVAL):
        user.call("get_process_apertures_new", **(fields | {"num_of_nodes": 99}))
    with fails(errno.EFAULT):
        user.call("get_process_apertures_new", num_of_nodes=1)


def test_get_node_cache_properties(world: KfdWorld) -> None:
    caches = world.os.list_dir(f"{ROOT}/nodes/1/caches")
    assert len(caches) == _gpu_node(world)["caches_count"]
    text = world.os.read_file(f"{ROOT}/nodes/1/caches/0/properties").decode()
    *numbers, siblings = text.splitlines()
    assert dict(line.split() for line in numbers)["cache_line_size"] == "128"
    name, bits = siblings.split()
    assert name == "sibling_map"
    assert set(bits.split(",")) == {"0", "1"}


def test_get_node_io_link_properties(world: KfdWorld) -> None:
    there = _properties(world.os, f"{ROOT}/nodes/0/io_links/0/properties")
    back = _properties(world.os, f"{ROOT}/nodes/1/io_links/0/properties")
    assert (there["node_from"], there["node_to"], there["type"]) == (0, 1, 2)
    assert (back["node_from"], back["node_to"]) == (1, 0)


def test_ip_discovery(world: KfdWorld) -> None:
    folder = "/sys/class/drm/renderD128/device/ip_discovery/die/0/GC/0"
    assert world.os.read_file(f"{folder}/major") == b"11\n"
    assert world.os.read_file(f"{folder}/base_addr").splitlines()[0] == b"0x00001260"
    assert world.os.read_file(folder.replace("GC", "11") + "/hw_id") == b"11\n"


# As Linux's register headers are called, which belong to these graphics cores.
BLOCKS = {
    "gfx1030": {"NBIF": "3.3.0", "MMHUB": "2.1.0", "HDP": "5.0.3", "MP0": "11.0.7"},
    "gfx1031": {"GC": "10.3.2", "SDMA0": "5.2.2", "MMHUB": "2.1.1", "MP0": "11.0.11"},
    "gfx1032": {"GC": "10.3.4", "SDMA0": "5.2.4", "MMHUB": "2.1.2", "MP0": "11.0.12"},
    "gfx1033": {"GC": "10.3.1", "SDMA0": "5.2.1", "MMHUB": "2.3.0", "MP0": "11.5.0"},
    "gfx1034": {"GC": "10.3.5", "SDMA0": "5.2.5", "MP0": "11.0.13"},
    "gfx1035": {"GC": "10.3.3", "SDMA0": "5.2.3", "MMHUB": "2.4.0", "NBIF": "7.2.1"},
    "gfx1036": {"GC": "10.3.6", "SDMA0": "5.2.6", "MMHUB": "2.4.1", "MP0": "13.0.5"},
    "gfx1100": {"NBIF": "4.3.0", "OSSSYS": "6.0.0", "MP1": "13.0.0", "SDMA0": "6.0.0"},
    "gfx1101": {"GC": "11.0.3", "SDMA0": "6.0.3", "MP0": "13.0.10"},
    "gfx1102": {"GC": "11.0.2", "SDMA0": "6.0.2", "MP0": "13.0.7", "MMHUB": "3.0.2"},
    "gfx1103": {"GC": "11.0.1", "SDMA0": "6.0.1", "MP0": "13.0.4", "NBIF": "7.7.0"},
    "gfx1150": {"GC": "11.5.0", "SDMA0": "6.1.0", "NBIF": "7.11.0", "MMHUB": "3.3.0"},
    "gfx1151": {"GC": "11.5.1", "SDMA0": "6.1.1", "MP0": "14.0.1"},
    "gfx1152": {"GC": "11.5.2", "SDMA0": "6.1.2", "MP0": "14.0.4"},
    "gfx1153": {"GC": "11.5.3", "SDMA0": "6.1.3", "MP0": "14.0.5"},
    "gfx1200": {"GC": "12.0.0", "SDMA0": "7.0.0", "NBIF": "6.3.1", "MP0": "14.0.2"},
    "gfx1201": {"NBIF": "6.3.1", "MMHUB": "4.1.0", "OSSSYS": "7.0.0", "MP0": "14.0.3"},
    "gfx942": {"NBIF": "7.9.0", "MMHUB": "1.8.0", "HDP": "4.4.2", "MP1": "13.0.6", "GC": "9.4.3"},
    "gfx950": {"NBIF": "7.9.1", "MMHUB": "1.8.1", "SDMA0": "4.4.5", "GC": "9.5.0"},
}


@pytest.mark.parametrize("chip", CHIPS)
def test_blocks_of_each_chip(chip: str) -> None:
    world = KfdWorld(chip=chip)
    os = world.os
    die = "/sys/class/drm/renderD128/device/ip_discovery/die/0"
    names = {name for name in os.list_dir(die) if not name.isdecimal()} - {"num_ips"}
    assert names == {"GC", "SDMA0", "NBIF", "MMHUB", "OSSSYS", "HDP", "MP0", "MP1"}
    blocks = sum(len(os.list_dir(f"{die}/{name}")) for name in names)
    assert int(os.read_file(f"{die}/num_ips")) == blocks
    for name, version in BLOCKS[chip].items():
        parts = [os.read_file(f"{die}/{name}/0/{part}") for part in ("major", "minor", "revision")]
        assert ".".join(part.decode().strip() for part in parts) == version
        number = os.read_file(f"{die}/{name}/0/hw_id").decode().strip()
        assert os.read_file(f"{die}/{number}/0/base_addr").startswith(b"0x")
    world.close()


# Worked out by hand from kfd_queue.c: (control stack, save area, debug memory) of one XCC.
# gfx1100: 96 CUs, 3072 waves: 3072*12+48 -> 0xa000; 96*0x75000 more; 3072*32.
# gfx1030: 80 CUs, 2560 waves: 2560*12+48 -> 0x8000, cut to 0x7000; 80*0x55000; 2560*32.
# gfx1200: 32 CUs, 1024 waves: 1024*12+48 -> 0x4000; 32*0x75000; 1024*32.
# gfx1201: 64 CUs, 2048 waves: 2048*12+48 -> 0x7000; 64*0x75000; 2048*32.
# gfx1101: 60 CUs, 1920 waves: 1920*12+48 -> 0x6000; 60*0x75000; 1920*32.
# gfx1102: 32 CUs, 1024 waves: 1024*12+48 -> 0x4000; 32*0x55000, as it has fewer registers.
# gfx1103, gfx1150: 12 CUs, 384 waves -> 0x2000; 16 CUs, 512 waves -> 0x2000; with 0x55000 each.
# gfx1151: 40 CUs, 1280 waves: 1280*12+48 -> 0x4000; 40*0x75000; 1280*32.
# gfx1152, gfx1153: 8 CUs, 256 waves -> 0x1000; 4 CUs, 128 waves -> 0x1000; with 0x55000 each.
# gfx942:  38 CUs, min(38*40, 4*512) = 1520 waves: 1520*8+48 -> 0x3000; 38*0x95000; 1520*32.
# gfx1031 to 1036: 40, 32, 8, 16, 12, 2 CUs of 0x55000, 32 waves of 12 bytes on each, and 48 more.
# gfx950:  32 CUs, min(32*40, 4*512) = 1280 waves: 1280*8+48 -> 0x3000; 32*0xad000 with 160 KiB LDS.
CONTEXTS = {
    "gfx1031": (0x4000, 0x4000 + 40 * 0x55000, 40960),
    "gfx1032": (0x4000, 0x4000 + 32 * 0x55000, 32768),
    "gfx1033": (0x1000, 0x1000 + 8 * 0x55000, 8192),
    "gfx1034": (0x2000, 0x2000 + 16 * 0x55000, 16384),
    "gfx1035": (0x2000, 0x2000 + 12 * 0x55000, 12288),
    "gfx1036": (0x1000, 0x1000 + 2 * 0x55000, 2048),
    "gfx950": (0x3000, 0x3000 + 32 * 0xAD000, 40960),
    "gfx1100": (0xA000, 0xA000 + 96 * 0x75000, 98304),
    "gfx1030": (0x7000, 0x7000 + 80 * 0x55000, 81920),
    "gfx1200": (0x4000, 0x4000 + 32 * 0x75000, 32768),
    "gfx1201": (0x7000, 0x7000 + 64 * 0x75000, 65536),
    "gfx1101": (0x6000, 0x6000 + 60 * 0x75000, 61440),
    "gfx1102": (0x4000, 0x4000 + 32 * 0x55000, 32768),
    "gfx1103": (0x2000, 0x2000 + 12 * 0x55000, 12288),
    "gfx1150": (0x2000, 0x2000 + 16 * 0x55000, 16384),
    "gfx1151": (0x4000, 0x4000 + 40 * 0x75000, 40960),
    "gfx1152": (0x1000, 0x1000 + 8 * 0x55000, 8192),
    "gfx1153": (0x1000, 0x1000 + 4 * 0x55000, 4096),
    "gfx942": (0x3000, 0x3000 + 38 * 0x95000, 48640),
}


@pytest.mark.parametrize("chip", CHIPS)
def test_context_sizes(chip: str) -> None:
    sizes = context_sizes(CHIPS[chip])
    stack, save, debug = CONTEXTS[chip]
    assert (sizes.control_stack, sizes.save_area, sizes.debug) == (stack, save, debug)
    assert sizes.area == -(-(save + debug) * CHIPS[chip].xccs // 4096) * 4096


def test_crc16_is_the_kernels() -> None:
    assert crc16(b"123456789") == 0xBB3D  # the check value of CRC-16/ARC


def test_two_boards_differ() -> None:
    world = KfdWorld(chip=("gfx1100", "gfx1100"))
    first, second = world.gpus
    assert first.gpu_id != second.gpu_id
    assert world.os.exists("/dev/dri/renderD129")
    world.close()


def test_unknown_chip() -> None:
    with pytest.raises(Unsupported, match="gfx1100"):
        find_chip("gfx803")

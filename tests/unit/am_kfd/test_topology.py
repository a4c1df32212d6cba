"""KFD's tree in sysfs: what is read from it, and what is refused."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gpu.core.errors import (
    AccessDenied,
    DeviceError,
    FormatError,
    InvalidIndex,
    TransportError,
    Unsupported,
)
from gpu.drivers.am.kfd.cwsr import ContextSave, context_save
from gpu.drivers.am.kfd.topology import ROOT, GpuNode, choose, read_gpus, target_of
from gpu.transport.os import Argument, Ref

PROPERTIES = """\
simd_count 192
simd_per_cu 2
array_count 12
simd_arrays_per_engine 2
cu_per_simd_array 8
lds_size_in_kb 64
max_slots_scratch_cu 32
gfx_target_version 110000
vendor_id 4098
device_id 29772
location_id 768
domain 1
drm_render_minor 128
num_sdma_engines 2
num_sdma_queues_per_engine 6
num_cp_queues 8
"""


class Tree:
    """An `Os` of files alone."""

    def __init__(self, files: dict[str, str]):
        self.files = files
        self.denied = ""
        self.reading: Callable[[str], None] = lambda path: None

    def read_file(self, path: str) -> bytes:
        self.reading(path)
        if self.denied and path.startswith(self.denied):
            raise AccessDenied(path, "no")
        if path not in self.files:
            raise TransportError(f"reading {path}: no such file", errno.ENOENT)
        return self.files[path].encode("latin-1")

    def list_dir(self, path: str) -> list[str]:
        found = {name[len(path) + 1 :].split("/")[0] for name in self.files if self._in(name, path)}
        return sorted(found)

    def exists(self, path: str) -> bool:
        return path in self.files or any(self._in(name, path) for name in self.files)

    @staticmethod
    def _in(name: str, path: str) -> bool:
        return name.startswith(path + "/")

    def open(self, path: str, flags: int) -> int:
        raise NotImplementedError

    def close(self, fd: int) -> None:
        raise NotImplementedError

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        raise NotImplementedError

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        raise NotImplementedError

    def munmap(self, address: int, size: int) -> None:
        raise NotImplementedError

    def write_file(self, path: str, data: bytes) -> None:
        raise NotImplementedError


def _bank(kind: int, size: int) -> str:
    return f"heap_type {kind}\nsize_in_bytes {size}\nflags 0\n"


@pytest.fixture
def tree() -> Tree:
    node = f"{ROOT}/nodes/1"
    sdma = "/sys/class/drm/renderD128/device/ip_discovery/die/0/SDMA0/0"
    return Tree(
        {
            f"{ROOT}/generation_id": "2\n",
            f"{ROOT}/nodes/0/gpu_id": "0\n",
            f"{node}/gpu_id": "4711\n",
            f"{node}/properties": PROPERTIES,
            f"{node}/mem_banks/0/properties": _bank(1, 1 << 34),
            f"{node}/io_links/0/properties": "type 2\nnode_from 1\nnode_to 0\n",
            f"{node}/p2p_links/0/properties": "type 11\nnode_from 1\nnode_to 2\n",
            f"{sdma}/major": "6\n",
            f"{sdma}/minor": "0\n",
            f"{sdma}/revision": "1\n",
        }
    )


def test_what_is_read(tree: Tree) -> None:
    (gpu,) = read_gpus(tree)
    assert (gpu.gpu_id, gpu.node, gpu.version, gpu.vram) == (4711, 1, (11, 0, 0), 1 << 34)
    assert (gpu.compute_units, gpu.shader_engines, gpu.links) == (96, 6, (0, 2))
    assert gpu.pci_address == "0001:03:00.0" and gpu.is_visible
    assert (gpu.num_xcc, gpu.cwsr_size) == (1, None)
    target = target_of(tree, gpu)
    assert (target.sdma, target.compute_units, target.scratch_waves) == ((6, 0, 1), 96, 32)
    assert choose((gpu,), 0) is gpu
    with pytest.raises(InvalidIndex, match="there are 1"):
        choose((gpu,), -1)
    with pytest.raises(DeviceError, match="lists no GPU"):
        choose((), 0)


def test_hidden_memory(tree: Tree) -> None:
    tree.files[f"{ROOT}/nodes/1/mem_banks/0/properties"] = _bank(1, 1 << 28)
    tree.files[f"{ROOT}/nodes/1/mem_banks/1/properties"] = _bank(2, 7 << 28)
    tree.files[f"{ROOT}/nodes/1/mem_banks/2/properties"] = _bank(3, 1 << 16)  # LDS
    (gpu,) = read_gpus(tree)
    assert (gpu.vram, gpu.hidden_vram, gpu.is_visible) == (8 << 28, 7 << 28, False)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("simd_count 192", "simd_count many", "line 1: 'simd_count many'"),
        ("simd_count 192", "simd_count -1", "line 1"),
        ("simd_count 192", "simd_count", "line 1"),
        ("simd_per_cu 2", "simd_count 2", "line 2.*its second"),
        ("simd_per_cu 2\n", "", "has no simd_per_cu"),
        ("simd_per_cu 2", "simd_per_cu 0", "simd_per_cu is 0"),
        ("vendor_id 4098", "vendor_id 4318", "vendor_id 4318, not 4098"),
        ("domain 1", "domain 1\n\n", "line"),
        ("domain 1", "domain \xff", "no text"),
    ],
)
def test_what_is_malformed(tree: Tree, old: str, new: str, words: str) -> None:
    path = f"{ROOT}/nodes/1/properties"
    tree.files[path] = PROPERTIES.replace(old, new, 1)
    with pytest.raises(FormatError, match=words):
        read_gpus(tree)


def test_other_malformed_files(tree: Tree) -> None:
    tree.files[f"{ROOT}/nodes/one/gpu_id"] = "1"
    with pytest.raises(FormatError, match="'one': its folders are named by numbers"):
        read_gpus(tree)
    del tree.files[f"{ROOT}/nodes/one/gpu_id"]
    tree.files[f"{ROOT}/nodes/1/gpu_id"] = "0x12"
    with pytest.raises(FormatError, match="decimal number"):
        read_gpus(tree)
    tree.files[f"{ROOT}/nodes/1/gpu_id"] = "7"
    (gpu,) = read_gpus(tree)
    tree.files = {name: text for name, text in tree.files.items() if "SDMA0" not in name}
    with pytest.raises(FormatError, match="the kernel must be"):
        target_of(tree, gpu)


def test_unknown_chips(tree: Tree) -> None:
    (gpu,) = read_gpus(tree)
    with pytest.raises(Unsupported, match=r"13\.0\.0"):
        target_of(tree, replace(gpu, gfx_target_version=130_000))


def test_no_kfd() -> None:
    with pytest.raises(DeviceError, match="modprobe amdgpu"):
        read_gpus(Tree({"/sys/x": ""}))


def test_gpus_of_others_are_left_out(tree: Tree) -> None:
    """A container sees all folders, and may read those of its own GPUs."""
    tree.files |= {f"{ROOT}/nodes/2/gpu_id": "5\n", f"{ROOT}/nodes/2/properties": PROPERTIES}
    assert [gpu.node for gpu in read_gpus(tree)] == [1, 2]
    tree.denied = f"{ROOT}/nodes/1"
    assert [gpu.node for gpu in read_gpus(tree)] == [2]


def test_nodes_are_ordered_by_number(tree: Tree) -> None:
    for number in (10, 2):
        tree.files[f"{ROOT}/nodes/{number}/gpu_id"] = f"{number}\n"
        tree.files[f"{ROOT}/nodes/{number}/properties"] = PROPERTIES
    assert [gpu.node for gpu in read_gpus(tree)] == [1, 2, 10]


def test_a_gpu_in_the_processor_is_behind_others(tree: Tree) -> None:
    """It is first in KFD's list where the firmware lists it first; all are told with a name."""
    gpus = {1: 110_003, 2: 110_000, 3: 100_306, 4: 120_001}
    for number, version in gpus.items():
        node = f"{ROOT}/nodes/{number}"
        tree.files[f"{node}/gpu_id"] = f"{number}\n"
        tree.files[f"{node}/properties"] = PROPERTIES.replace("110000", f"{version}")
    found = read_gpus(tree)
    assert [gpu.node for gpu in found] == [2, 4, 1, 3]
    assert [gpu.is_integrated for gpu in found] == [False, False, True, True]
    names = r"DEV=AMD:0 is AMD gfx 11\.0\.0 at .*, DEV=AMD:2 is AMD gfx 11\.0\.3 at"
    with pytest.raises(InvalidIndex, match=f"AMD GPU 4: there are 4: {names}"):
        choose(found, 4)


@pytest.mark.parametrize(("changes", "settles"), [(2, True), (100, False)])
def test_a_tree_that_changes_while_it_is_read(tree: Tree, changes: int, settles: bool) -> None:
    left = [changes]

    def change(path: str) -> None:
        if path.endswith("/properties") and left[0]:
            left[0] -= 1
            tree.files[f"{ROOT}/generation_id"] = f"{100 + left[0]}\n"

    tree.reading = change
    if settles:
        assert len(read_gpus(tree)) == 1
    else:
        with pytest.raises(DeviceError, match="changed 3 times"):
            read_gpus(tree)


# By hand from kfd_queue.c of Linux 6.12: chip, units, dies, engines, stack, area, allocation.
_SIZES = [
    (110_000, 96, 1, 6, 0xA000, 0xA000 + 96 * 0x75000, 0x2C02000),
    (110_002, 32, 1, 2, 0x4000, 0x4000 + 32 * 0x55000, 0xAAC000),
    (100_300, 80, 1, 4, 0x7000, 0x7000 + 80 * 0x55000, 0x1AAB000),
    (120_001, 64, 1, 4, 0x7000, 0x7000 + 64 * 0x75000, 0x1D57000),
    (90_402, 304, 8, 32, 0x3000, 0x3000 + 38 * 0x95000, 0xB167000),
    (90_010, 104, 1, 8, 0x9000, 0x9000 + 104 * 0x95000, 0),
]


@pytest.mark.parametrize("version, units, dies, engines, stack, area, allocation", _SIZES)
def test_context_save(
    tree: Tree,
    version: int,
    units: int,
    dies: int,
    engines: int,
    stack: int,
    area: int,
    allocation: int,
) -> None:
    (gpu,) = read_gpus(tree)
    gpu = _sized(gpu, version, units, dies, engines)
    waves = units // dies * 32 if version >= 100_100 else min(units // dies * 40, engines * 512)
    allocation = allocation or -(-(area + -(-waves * 32 // 64) * 64) * dies // 4096) * 4096
    assert context_save(gpu) == ContextSave(stack, area, allocation)


def _sized(gpu: GpuNode, version: int, units: int, dies: int, engines: int) -> GpuNode:
    return replace(
        gpu,
        gfx_target_version=version,
        simd_count=2 * units,
        num_xcc=dies,
        array_count=2 * engines,
    )


def test_what_the_kernel_tells_counts(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    """A kernel with another rule is believed, and what differs is logged."""
    (gpu,) = read_gpus(tree)
    rule = context_save(gpu)
    told = context_save(replace(gpu, ctl_stack_size=rule.control_stack, cwsr_size=rule.area))
    assert told == rule and not caplog.records
    larger = context_save(replace(gpu, cwsr_size=rule.area + 4096))
    assert (larger.area, larger.allocation) == (rule.area + 4096, rule.allocation + 4096)
    assert "cwsr_size" in caplog.text

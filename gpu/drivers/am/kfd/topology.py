"""The GPUs that KFD has, from its tree in sysfs: parsed strictly, each number with its origin.

Sources: kfd_topology.c of Linux 6.12 (files, names and units of the properties, the generation
counter), amdgpu_discovery.c (the tree ``ip_discovery`` of a PCI device).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.core.errors import AccessDenied, DeviceError, FormatError, InvalidIndex, TransportError
from gpu.core.log import get_logger
from gpu.drivers.am.target import Target, Version, dotted, parse_gfx_version
from gpu.transport import amd as nodes
from gpu.transport.files import Files
from gpu.transport.missing import NO_KFD_GPU, no_node

ROOT: Final = nodes.TOPOLOGY
_AMD: Final = 0x1002
_DIGITS: Final = 20
_TRIES: Final = 3
# Kinds of memory banks: what the host sees of the GPU's memory, and what it does not (kfd_crat.h).
_PUBLIC_HEAP: Final = 1
_PRIVATE_HEAP: Final = 2
_GPU_LINK_TYPES: Final = (2, 11)  # PCI express, xGMI

# Linux 6.12: amdgpu_discovery.c has AMD_IS_APU by version, and kfd_device.c what KFD calls them.
_INTEGRATED: Final = {
    *((9, 0, 2), (9, 0, 12), (10, 1, 3), (10, 3, 3), (10, 3, 5), (10, 3, 6)),
    *((11, 0, 3), (11, 5, 0), (11, 5, 1), (11, 5, 2), (11, 5, 3)),
}
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GpuNode:
    """One GPU as KFD describes it; attributes that are not said otherwise are its properties.

    Attributes:
        node: number of its folder.
        gpu_id: by which calls name it.
        vram: bytes of its own memory.
        hidden_vram: how many of them the host cannot see, as its BAR is smaller.
        links: nodes that it is connected to, such as the host's and peers.
        ctl_stack_size: None where the kernel is too old to tell; likewise ``cwsr_size``.
    """

    node: int
    gpu_id: int
    vram: int
    hidden_vram: int
    links: tuple[int, ...]
    simd_count: int
    simd_per_cu: int
    array_count: int
    simd_arrays_per_engine: int
    cu_per_simd_array: int
    lds_size_in_kb: int
    max_slots_scratch_cu: int
    gfx_target_version: int
    location_id: int
    domain: int
    drm_render_minor: int
    num_sdma_engines: int
    num_sdma_queues_per_engine: int
    num_xcc: int
    cwsr_size: int | None
    ctl_stack_size: int | None

    @property
    def version(self) -> Version:
        """Of its graphics core."""
        return parse_gfx_version(self.gfx_target_version)

    @property
    def pci_address(self) -> str:
        """Where it is on the bus, as lspci writes it."""
        bus, device, function = self.location_id >> 8, self.location_id >> 3 & 31, self.location_id
        return f"{self.domain:04x}:{bus:02x}:{device:02x}.{function & 7}"

    @property
    def is_visible(self) -> bool:
        """Whether the host can see all of its memory."""
        return self.hidden_vram == 0

    @property
    def compute_units(self) -> int:
        """How many there are, in all XCCs."""
        return self.simd_count // self.simd_per_cu

    @property
    def shader_engines(self) -> int:
        """How many there are, in all XCCs."""
        return self.array_count // self.simd_arrays_per_engine

    @property
    def is_integrated(self) -> bool:
        """Whether it is in a processor, and has a part of the host's memory for its own."""
        return self.version in _INTEGRATED

    def __str__(self) -> str:
        return f"AMD gfx {dotted(self.version)} at {self.pci_address}"


def read_gpus(os: Files) -> tuple[GpuNode, ...]:
    """The GPUs that this process may use, in KFD's order, those in processors behind all others.

    Raises DeviceError where there is no KFD, FormatError for a file that is not as it should be,
    AccessDenied, TransportError.
    """
    if not os.exists(ROOT):
        raise DeviceError(str(no_node(os, ROOT)))
    for _ in range(_TRIES):
        # The kernel counts this up whenever a device comes or goes.
        generation = _read_number(os, f"{ROOT}/generation_id")
        found = _read_all(os)
        if _read_number(os, f"{ROOT}/generation_id") == generation:
            return tuple(sorted(found, key=lambda gpu: gpu.is_integrated))
    raise DeviceError(f"{ROOT} changed {_TRIES} times while it was read: try again")


def choose(gpus: tuple[GpuNode, ...], index: int) -> GpuNode:
    """A GPU by its place in the list. Raises DeviceError for an empty list, InvalidIndex."""
    if not gpus:
        raise DeviceError(str(NO_KFD_GPU))
    if not 0 <= index < len(gpus):
        names = ", ".join(f"DEV=AMD:{at} is {gpu}" for at, gpu in enumerate(gpus))
        raise InvalidIndex(f"AMD GPU {index}: there are {len(gpus)}: {names}")
    return gpus[index]


def target_of(os: Files, gpu: GpuNode) -> Target:
    """What the encoders have to know of a GPU.

    Raises Unsupported for a generation that they do not know, FormatError, TransportError.
    """
    found = Target(
        version=gpu.version,
        sdma=_sdma_version(os, gpu),
        shader_engines=gpu.shader_engines,
        compute_units=gpu.compute_units,
        scratch_waves=gpu.max_slots_scratch_cu,
        xccs=gpu.num_xcc,
        arrays=gpu.simd_arrays_per_engine,
        units_per_array=gpu.cu_per_simd_array,
    )
    _ = found.generation  # raises
    return found


def _read_all(os: Files) -> tuple[GpuNode, ...]:
    names = os.list_dir(f"{ROOT}/nodes")
    for name in names:
        if not name.isdecimal():
            raise FormatError(f"{ROOT}/nodes has {name!r}: its folders are named by numbers")
    found = []
    for number in sorted(map(int, names)):
        folder = f"{ROOT}/nodes/{number}"
        try:
            gpu_id = _read_number(os, f"{folder}/gpu_id")
            node = _read_node(os, number, gpu_id) if gpu_id else None
        except AccessDenied:  # a container's list of devices leaves it out
            _log.info("%s may not be read: the GPU is left out", folder)
            continue
        if node is not None:
            found.append(node)
    return tuple(found)


def _read_node(os: Files, number: int, gpu_id: int) -> GpuNode:
    folder = f"{ROOT}/nodes/{number}"
    told = _Properties(os, f"{folder}/properties")
    if told.number("vendor_id") != _AMD:
        raise FormatError(f"{told.path}: vendor_id {told.number('vendor_id')}, not {_AMD}")
    names = (
        *("simd_count", "simd_per_cu", "array_count", "simd_arrays_per_engine"),
        "cu_per_simd_array",
        *("lds_size_in_kb", "max_slots_scratch_cu", "gfx_target_version"),
        "drm_render_minor",
    )
    return GpuNode(
        node=number,
        gpu_id=gpu_id,
        vram=_banks(os, folder, (_PUBLIC_HEAP, _PRIVATE_HEAP)),
        hidden_vram=_banks(os, folder, (_PRIVATE_HEAP,)),
        links=_links(os, folder),
        location_id=told.number("location_id"),
        domain=told.number("domain"),
        num_sdma_engines=told.number("num_sdma_engines"),
        num_sdma_queues_per_engine=told.number("num_sdma_queues_per_engine"),
        num_xcc=told.optional("num_xcc") or 1,  # since Linux 6.5; before, none had more
        cwsr_size=told.optional("cwsr_size"),
        ctl_stack_size=told.optional("ctl_stack_size"),
        **{name: told.positive(name) for name in names},
    )


class _Properties:
    """A file of lines ``name number``. Raises FormatError for any other."""

    def __init__(self, os: Files, path: str):
        self.path = path
        self._values: dict[str, int] = {}
        for line, text in enumerate(_read_text(os, path).splitlines(), 1):
            name, _, value = text.partition(" ")
            if not name or not _is_number(value) or name in self._values:
                raise FormatError(
                    f"{path}, line {line}: {text!r} is no name with a number, or its second"
                )
            self._values[name] = int(value)

    def number(self, name: str) -> int:
        """A property; FormatError where it is missing."""
        if name not in self._values:
            raise FormatError(f"{self.path} has no {name}: the kernel is older than 5.18")
        return self._values[name]

    def positive(self, name: str) -> int:
        """A property that cannot be 0; FormatError where it is."""
        if not self.number(name):
            raise FormatError(f"{self.path}: {name} is 0")
        return self._values[name]

    def optional(self, name: str) -> int | None:
        """A property that older kernels do not have."""
        return self._values.get(name)


def _banks(os: Files, folder: str, heaps: tuple[int, ...]) -> int:
    """Bytes of the memory banks of some kinds."""
    banks = [_Properties(os, path) for path in _numbered(os, f"{folder}/mem_banks")]
    return sum(bank.number("size_in_bytes") for bank in banks if bank.number("heap_type") in heaps)


def _links(os: Files, folder: str) -> tuple[int, ...]:
    """Where links go; ``p2p_links``, which kernels have since 6.0, are those between GPUs."""
    paths = [*_numbered(os, f"{folder}/io_links"), *_numbered(os, f"{folder}/p2p_links")]
    links = [_Properties(os, path) for path in paths]
    return tuple(
        dict.fromkeys(
            link.number("node_to") for link in links if link.number("type") in _GPU_LINK_TYPES
        )
    )


def _numbered(os: Files, folder: str) -> list[str]:
    """The property files of a folder's numbered parts; none where it does not exist."""
    if not os.exists(folder):
        return []
    return [f"{folder}/{name}/properties" for name in os.list_dir(folder)]


def _sdma_version(os: Files, gpu: GpuNode) -> Version:
    """Of the first copy engine, as the chip's own table says."""
    folder = nodes.ip_block(gpu.drm_render_minor, "SDMA0")
    try:
        parts = [_read_number(os, f"{folder}/{part}") for part in ("major", "minor", "revision")]
    except TransportError as error:
        raise FormatError(
            f"{folder} does not tell the version of the copy engine of {gpu}: the kernel must be"
            " 5.18 or later, and the chip one with a discovery table"
        ) from error
    major, minor, revision = parts
    return major, minor, revision


def _read_number(os: Files, path: str) -> int:
    text = _read_text(os, path).strip()
    if not _is_number(text):
        raise FormatError(f"{path} holds {text[:40]!r}: a decimal number is expected")
    return int(text)


def _is_number(text: str) -> bool:
    """Whether it is one that the kernel writes, of 64 bits at most."""
    return text.isdecimal() and len(text) <= _DIGITS


def _read_text(os: Files, path: str) -> str:
    try:
        return os.read_file(path).decode("ascii")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is no text: {error}") from error

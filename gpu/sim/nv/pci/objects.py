"""RM's objects on the card: those of `gpu.sim.nv.rm`, asked by messages instead of a file.

A driver keeps for itself what kernel RM keeps from firmware: memory, mappings for the CPU, what
the chip is called. It places what a channel is made of, gives engines room for contexts, and owns
page tables. rpc.c, kernel_channel.c (kchannelSendChannelAllocRpc), kernel_graphics_context.c,
g_subdevice_nvoc.c (what is routed to firmware) of open-gpu-kernel-modules 570.144; nouveau's
gsp/rm/r535. Sizes of parameters must be exact: what firmware does with others nobody publishes (U).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from gpu.core.bits import bits
from gpu.sim.nv.chip.channel import USERD_SIZE, Group
from gpu.sim.nv.chip.chips import Chip
from gpu.sim.nv.chip.gpu import NvGpu
from gpu.sim.nv.chip.hardware import ENGINE_COPY0, ENGINE_GRAPHICS, NOTIFY_RC_ERROR
from gpu.sim.nv.chip.memory import Physical
from gpu.sim.nv.pci.mmu import Mmu, WalkedSpace
from gpu.sim.nv.rm import construct
from gpu.sim.nv.rm.branches import find_branch
from gpu.sim.nv.rm.classes import ROOT_CLASSES
from gpu.sim.nv.rm.commands import Call, Command
from gpu.sim.nv.rm.construct_channels import Places, make_channel_of, make_engine_object
from gpu.sim.nv.rm.control import COMMANDS, control
from gpu.sim.nv.rm.layout import Layout
from gpu.sim.nv.rm.manager import ResourceManager
from gpu.sim.nv.rm.objects import ChannelObject, Device, Resource, VaSpace, expect
from gpu.sim.nv.rm.request import Request
from gpu.sim.nv.rm.state import Caller, Place
from gpu.sim.nv.rm.status import RmError, Status, check
from gpu.sim.physical import Extent
from gpu.sim.record import DebugChannel
from gpu.sim.translate import GpuSpace, PageFault

BRANCH: Final = 570
_ROOT_BYTES: Final = 120  # NV0000_ALLOC_PARAMETERS
_OF_FIRMWARE: Final = frozenset(
    (
        *("client", "device", "subdevice", "vaspace", "group", "share", "channel"),
        *("compute", "copy", "debugger"),
    )
)
_ROUTED: Final = (
    *(0x20802A02, 0xA06C0101, 0xA06C0103, 0xA06F0103, 0xA06F0104),
    *(0x83DE0309, 0x83DE030C, 0x83DE0310, 0x83DE0328),
)
_SYSMEM, _FBMEM = 1, 2  # ADDR_*, mem_desc.h
_EXTERNAL_FLAGS: Final = 0x3  # NV0080_CTRL_DMA_SET_PAGE_DIRECTORY_FLAGS_APERTURE
_RAMFC_BYTES, _INSTANCE_BYTES = 0x200, 0x1000
_CHANNELS: Final = 2048

# Context buffers: NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ID_* by NV0080_CTRL_FIFO_*_ENGINE_ID_*, with
# sizes such as cards tell (U).
_MAIN, _PATCH = 0, 2
_BUFFERS: Final = {
    0x00: (0x200000, 0x1000),  # GRAPHICS
    0x10: (0x10000, 0x1000),  # PATCH
    0x11: (0x100000, 0x1000),  # BUNDLE_CB
    0x12: (0x80000, 0x1000),  # PAGEPOOL_GLOBAL
    0x13: (0x400000, 0x20000),  # ATTRIBUTE_CB
    0x14: (0x10000, 0x1000),  # RTV_CB_GLOBAL
    0x17: (0x40000, 0x1000),  # FECS_EVENT
    0x18: (0x80000, 0x1000),  # PRIV_ACCESS_MAP
}
_LEAST: Final = {_MAIN: 0x00, _PATCH: 0x10, 3: 0x11, 4: 0x12, 5: 0x13, 6: 0x14, 9: 0x17, 10: 0x18}
_LEAST_SIZES: Final = {number: _BUFFERS[engine][0] for number, engine in _LEAST.items()} | {
    11: _BUFFERS[0x18][0]
}
_NEEDED: Final = frozenset((_MAIN, _PATCH, 3, 4, 5, 6))
_PROMOTE_ENTRY: Final = struct.Struct("<QQQIHBB")
_MOST_PROMOTED: Final = 16
_CONTEXT_ENGINES, _GR_ENGINES, _GR_INFOS, _GPCS = 0x1A, 8, 0x3A, 12

_PROMOTE: Final = Layout(
    "NV2080_CTRL_GPU_PROMOTE_CTX_PARAMS",
    560,
    "engineType@0 hClient@4 ChID@8 hChanClient@12 hObject@16 hVirtMemory@20 virtAddress@24:8"
    " size@32:8 entryCount@40 entries@48:512",
)
_CONTEXTS: Final = Layout(
    "NV2080_CTRL_INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO_PARAMS",
    8 * _CONTEXT_ENGINES * _GR_ENGINES,
    f"list@0:{8 * _CONTEXT_ENGINES}",
)
_GR_INFO: Final = Layout(
    "NV2080_CTRL_INTERNAL_STATIC_KGR_GET_INFO_PARAMS",
    8 * _GR_INFOS * _GR_ENGINES,
    f"list@0:{8 * _GR_INFOS}",
)
_DEVICE_ENTRY: Final = 100  # NV2080_CTRL_FIFO_DEVICE_ENTRY
_DEVICE_ENTRIES: Final = 32
_DEVICES: Final = Layout(
    "NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS",
    12 + _DEVICE_ENTRY * _DEVICE_ENTRIES,
    f"baseIndex@0 numEntries@4 bMore@8:1 entries@12:{_DEVICE_ENTRY * _DEVICE_ENTRIES}",
)
_MASK_WORDS: Final = 74  # NV2080_CTRL_INTERNAL_STATIC_GR_FLOORSWEEPING_MASKS
_MASKS: Final = Layout(
    "NV2080_CTRL_INTERNAL_STATIC_KGR_GET_FLOORSWEEPING_MASKS_PARAMS",
    4 * _MASK_WORDS * _GR_ENGINES,
    f"masks@0:{4 * _MASK_WORDS}",
)
_METHOD_BUFFER: Final = Layout("NV2080_CTRL_CE_GET_FAULT_METHOD_BUFFER_SIZE_PARAMS", 4, "size@0")
METHOD_BUFFER_BYTES: Final = 0x5000
_CAPS: Final = Layout("NV2080_CTRL_CE_GET_CAPS_V2_PARAMS", 8, "engine@0 caps@4:2")
_CHANNEL_DESCRIPTORS: Final = {
    "instance": 144,
    "userd": 168,
    "ramfc": 192,
    "method buffer": 216,
    "notifier": 248,
}
_DESCRIPTOR: Final = struct.Struct("<QQII")  # NV_MEMORY_DESC_PARAMS
_PAGE_FIXED: Final = 1 << 21  # NVOS04_FLAGS_CHANNEL_USERD_INDEX_PAGE_FIXED


class OwnedVaSpace(VaSpace):
    """Addresses by page tables of the driver's own."""

    walked: WalkedSpace

    @property
    def seen(self) -> GpuSpace:
        """As engines see it."""
        return self.walked

    def released(self) -> None:
        """Nobody walks its tables any more."""
        self.walked.close()


class FirmwareRm(ResourceManager):
    """RM of one card, which is its only GPU.

    Attributes:
        on_error: is told of a group of channels that was torn down.
    """

    def __init__(self, gpu: NvGpu, mmu: Mmu, debug: DebugChannel):
        super().__init__([gpu], debug, False, find_branch(BRANCH))
        self._gpu = gpu
        self._mmu = mmu
        self.on_error: Callable[[Group], None] = lambda group: None
        places = Places(self._error, self._userd, self._number)
        self.makers = {
            **construct.MAKERS,
            "vaspace": self._make_vaspace,
            "channel": partial(make_channel_of, places=places),
            "compute": self._make_engine,
            "copy": self._make_engine,
        }
        self.commands = {number: COMMANDS[number] for number in _ROUTED} | {
            0x2080012B: Command(("subdevice",), _PROMOTE, self._promote),
            0x20800A26: Command(("subdevice",), _MASKS, _masks),
            0x20800A2A: Command(("subdevice",), _GR_INFO, _gr_info),
            0x20800A32: Command(("subdevice",), _CONTEXTS, _context_buffers),
            0x20801112: Command(("subdevice",), _DEVICES, _devices),
            0x20802A07: Command(("subdevice",), _CAPS, COMMANDS[0x20802A03].handler),
            0x20802A08: Command(("subdevice",), _METHOD_BUFFER, _method_buffer),
        }
        self._promoted: dict[ChannelObject, set[int]] = {}

    def reset(self) -> None:
        """Nothing is there any more."""
        for client in list(self.clients.values()):
            self.end(client)
        self._promoted.clear()

    def _deliver(self, gpu: NvGpu, index: int, info32: int) -> None:
        if index != NOTIFY_RC_ERROR:
            return
        for group in gpu.groups:
            if group.dead and group.enabled and group.engine == info32:
                group.enabled = False
                self.on_error(group)

    # Messages

    def new_object(self, ids: tuple[int, int, int, int], data: bytes) -> bytes:
        """GSP_RM_ALLOC of client, parent, handle and class: parameters as they come back.

        Raises RmError.
        """
        client, parent, handle, number = ids
        rule = self.rule(number)
        if rule.kind not in _OF_FIRMWARE:
            raise RmError(Status.NOT_SUPPORTED, f"class {number:#x} is kernel RM's own")
        layout = self.branch.layout(rule.params) if rule.params else None
        wanted = _ROOT_BYTES if number in ROOT_CLASSES else layout.size if layout else 0
        optional = not rule.required and number not in ROOT_CLASSES
        good = len(data) == wanted or (optional and not data)
        what = f"class {number:#x}: {len(data)} bytes of parameters, {wanted} wanted"
        check(good, Status.INVALID_PARAM_STRUCT, what)
        check(bool(handle), Status.INVALID_OBJECT_HANDLE, "firmware draws no handles")
        if number in ROOT_CLASSES:
            told = int.from_bytes(data[:4], "little")
            check(client == handle == told, Status.INVALID_ARGUMENT, "a client's own handle")
            parent = 0
        place = Place(client, parent, handle)
        _, back = self.allocate(self._caller, place, number, data or None)
        return data if back is None else back

    def ask(self, client: int, handle: int, number: int, data: bytes) -> bytes:
        """GSP_RM_CONTROL: parameters as they come back. Raises RmError."""
        return control(self, self._caller, client, handle, number, data, {}, self.commands)

    def give_back(self, client: int, handle: int) -> None:
        """FREE. Raises RmError."""
        self.client(self._caller, client).find(handle)
        self.free(self._caller, client, handle)

    def copy(self, ids: tuple[int, int, int], source: tuple[int, int]) -> None:
        """DUP_OBJECT. Raises RmError."""
        self.duplicate(self._caller, Place(*ids), source)

    def set_directory(self, client: int, device: int, params: tuple[int, ...]) -> None:
        """SET_PAGE_DIRECTORY: address, entries, flags, VA space, what must be 0. Raises RmError."""
        address, entries, flags, handle, channel, subdevice, pasid = params
        owner = self.client(self._caller, client)
        expect(owner.find(device), Device, Status.INVALID_OBJECT)
        space = owner.find(handle)
        if not isinstance(space, OwnedVaSpace) or not space.external:
            raise RmError(Status.INVALID_ARGUMENT, f"{space} has page tables of RM's")
        check(not channel and subdevice in (0, 1), Status.NOT_SUPPORTED, "one channel's tables")
        check(pasid in (0, 0xFFFFFFFF), Status.NOT_SUPPORTED, f"PASID {pasid:#x}")
        check(not flags & ~(_EXTERNAL_FLAGS | 1 << 3), Status.NOT_SUPPORTED, f"flags {flags:#x}")
        most = 4 if self._mmu.version == 2 else 2
        check(entries == most, Status.INVALID_ARGUMENT, f"{entries} entries of a root of {most}")
        check(not address % 4096, Status.INVALID_ADDRESS, f"a directory at {address:#x}")
        space.walked.root, space.walked.system = address, bool(flags & _EXTERNAL_FLAGS)
        space.walked.flush_tlb()
        space.uvm_owner = True

    def unset_directory(self, client: int, device: int, handle: int) -> None:
        """UNSET_PAGE_DIRECTORY. Raises RmError."""
        owner = self.client(self._caller, client)
        expect(owner.find(device), Device, Status.INVALID_OBJECT)
        space = owner.find(handle)
        if not isinstance(space, OwnedVaSpace) or not space.uvm_owner:
            raise RmError(Status.INVALID_STATE, f"{space} has no page tables of a driver's")
        busy = any(
            isinstance(each, ChannelObject) and each.client.objects.get(each.handle) is each
            for each in space.dependants
        )
        check(not busy, Status.STATE_IN_USE, f"channels run in {space}")
        space.uvm_owner, space.walked.root = False, None
        space.walked.flush_tlb()

    @property
    def _caller(self) -> Caller:
        return Caller(self, 1)

    # Makers

    def _make_vaspace(self, request: Request) -> Resource:
        made = construct.make_vaspace(request)
        assert isinstance(made, VaSpace)
        owned = OwnedVaSpace(
            "vaspace", *request.base, external=made.external, faulting=made.faulting
        )
        owned.walked = WalkedSpace(self._mmu)
        return owned

    def _make_engine(self, request: Request) -> Resource:
        parent = request.parent
        if isinstance(parent, ChannelObject) and parent.channel.needs_context:
            ready = parent.channel.bound
            check(ready, Status.INVALID_STATE, f"{parent} has no context: PROMOTE_CTX comes first")
        return make_engine_object(request)

    def _described(self, request: Request, name: str, least: int) -> tuple[int, int] | None:
        """Address and address space of a part of a channel; None for none. Raises RmError."""
        data, at = request.required.data, _CHANNEL_DESCRIPTORS[name]
        base, size, where, _ = _DESCRIPTOR.unpack_from(data, at)
        if not where and not size:
            return None
        good = where in (_SYSMEM, _FBMEM) and size >= least
        what = f"{name} of {size:#x} bytes in address space {where}: {least:#x} in 1 or 2 wanted"
        check(good, Status.INVALID_ARGUMENT, what)
        if where == _FBMEM:
            vram = self._mmu.chip.vram.size
            inside = base + size <= vram and base not in self._mmu.chip.wpr2
            check(inside, Status.INVALID_ADDRESS, f"{name} at {base:#x}, which is not free")
        return base, where

    def _physical(self, found: tuple[int, int], size: int) -> Physical:
        base, where = found
        region = self._mmu.region(where == _SYSMEM)
        return Physical(self._gpu, region, (Extent(base, size),), size, 4096, users=2)

    def _error(self, request: Request, group_errors: int) -> Physical | None:
        found = self._described(request, "notifier", 48)
        return self._physical(found, 48) if found else None

    def _userd(self, request: Request) -> tuple[Physical, int]:
        for name, least in (
            ("instance", _INSTANCE_BYTES),
            ("ramfc", _RAMFC_BYTES),
            ("method buffer", METHOD_BUFFER_BYTES),
        ):
            placed = self._described(request, name, least)
            check(placed is not None, Status.INVALID_ARGUMENT, f"a channel without its {name}")
            assert placed is not None
            aligned = name == "ramfc" or not placed[0] % 4096
            check(aligned, Status.INVALID_ADDRESS, f"{name} at {placed[0]:#x}")
        found = self._described(request, "userd", USERD_SIZE)
        if found is None or found[0] % USERD_SIZE:
            raise RmError(Status.INVALID_ADDRESS, f"USERD at {found}, multiples of 0x200 wanted")
        return self._physical(found, USERD_SIZE), 0

    def _number(self, request: Request, group: Group) -> int:
        flags = request.required["flags"]
        check(bool(flags & _PAGE_FIXED), Status.INVALID_ARGUMENT, "the driver draws numbers")
        number = bits(flags, 20, 12) * 8 + bits(flags, 10, 8)
        check(number < _CHANNELS, Status.NO_FREE_FIFOS, f"channel {number} of {_CHANNELS}")
        used = {c.number_on_runlist for c in self._gpu.channels if c.group.runlist == group.runlist}
        check(number not in used, Status.IN_USE, f"channel {number} is used on its runlist")
        return number

    # Commands

    def _promote(self, call: Call) -> None:
        params = call.params
        check(params["engineType"] == ENGINE_GRAPHICS, Status.INVALID_ARGUMENT, "its engine")
        owner = self.any_client(params["hChanClient"])
        channel = expect(owner.find(params["hObject"]), ChannelObject, Status.INVALID_OBJECT)
        graphics = channel.channel.group.runlist == 0
        check(graphics, Status.INVALID_ARGUMENT, f"{channel} is of no graphics engine")
        count, data = params["entryCount"], params.raw("entries")
        check(0 < count <= _MOST_PROMOTED, Status.INVALID_ARGUMENT, f"{count} entries")
        done = self._promoted.setdefault(channel, set())
        for index in range(count):
            entry = _PROMOTE_ENTRY.unpack_from(data, _PROMOTE_ENTRY.size * index)
            self._promote_one(channel, done, entry)
        if done >= _NEEDED:
            channel.channel.bound = True

    def _promote_one(self, channel: ChannelObject, done: set[int], entry: tuple[int, ...]) -> None:
        physical, virtual, size, attributes, number, initialize, unmapped = entry
        what = f"context buffer {number}"
        check(number in _LEAST_SIZES, Status.INVALID_ARGUMENT, f"{what}: there is none")
        least = _LEAST_SIZES[number]
        if initialize:
            good = size >= least and not physical % 4096
            check(
                good, Status.INVALID_ARGUMENT, f"{what}: {size:#x} of {least:#x} at {physical:#x}"
            )
            here = not attributes & 3 and physical + size <= self._mmu.chip.vram.size
            check(here, Status.INVALID_ADDRESS, f"{what} at {physical:#x} ({attributes:#x})")
        check(bool(initialize) or not unmapped, Status.INVALID_ARGUMENT, f"{what}: of no use")
        if unmapped:
            return
        try:
            for _ in channel.vaspace.seen.spans(virtual, least, write=True):
                pass
        except PageFault as fault:
            raise RmError(Status.INVALID_ADDRESS, f"{what}: {fault}") from fault
        done.add(number)


def _context_buffers(call: Call) -> None:
    data = bytearray(8 * _CONTEXT_ENGINES)
    for engine, (size, align) in _BUFFERS.items():
        struct.pack_into("<II", data, 8 * engine, size, align)
    call.params.put("list", bytes(data))


def _gr_info(call: Call) -> None:
    chip, data = call.gpu.chip, bytearray(8 * _GR_INFOS)
    known = {
        0x0C: chip.sm_version,
        0x0D: chip.warps,
        0x0E: 32,
        0x14: chip.litter_gpcs,
        0x17: chip.litter_tpcs,
        0x20: 2,
        0x2C: 64,
    }
    for index in range(_GR_INFOS):
        struct.pack_into("<II", data, 8 * index, index, known.get(index, 0))
    call.params.put("list", bytes(data))


def _masks(call: Call) -> None:
    tpcs, data = call.gpu.chip.tpcs, bytearray(4 * _MASK_WORDS)
    mask = (1 << len(tpcs)) - 1
    struct.pack_into("<I", data, 0, mask)
    for gpc, count in enumerate(tpcs):
        struct.pack_into("<I", data, 4 * (1 + gpc), (1 << count) - 1)
        struct.pack_into("<I", data, 4 * (1 + _GPCS + gpc), count)
    struct.pack_into("<I", data, 4 * (1 + 2 * _GPCS), mask)
    call.params.put("masks", bytes(data))


def _engines(chip: Chip) -> list[tuple[int, str]]:
    return [
        (ENGINE_GRAPHICS, "GR0"),
        *((ENGINE_COPY0 + u.index, f"CE{u.index}") for u in chip.copy_engines),
    ]


def _devices(call: Call) -> None:
    params, gpu = call.params, call.gpu
    check(not params["baseIndex"] % _DEVICE_ENTRIES, Status.INVALID_ARGUMENT, "baseIndex")
    found = _engines(gpu.chip)[params["baseIndex"] :]
    data = bytearray(_DEVICE_ENTRY * _DEVICE_ENTRIES)
    for number, (engine, name) in enumerate(found[:_DEVICE_ENTRIES]):
        at = number * _DEVICE_ENTRY
        struct.pack_into("<4I", data, at, number, number, engine, gpu.runlist(engine))
        text = name.encode()
        data[at + 84 : at + 84 + len(text)] = text
    params["numEntries"] = min(len(found), _DEVICE_ENTRIES)
    params["bMore"] = len(found) > _DEVICE_ENTRIES
    params.put("entries", bytes(data))


def _method_buffer(call: Call) -> None:
    call.params["size"] = METHOD_BUFFER_BYTES

"""Opening an NVIDIA GPU that no kernel driver has: boot, objects, memory, channels.

Above channels nothing differs from a GPU behind the kernel driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpu.autogen.nv import alloc, control, gsp, gspcalls
from gpu.autogen.nv import classes as ids
from gpu.core.crashfiles import CrashFolder
from gpu.core.errors import FirmwareError, GpuError
from gpu.core.firmware import load as load_firmware
from gpu.core.pci import PciAddress
from gpu.core.wait import Waiter
from gpu.drivers.bringup import Trail
from gpu.drivers.card import Load
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.all import QUEUE_STEPS, GpuChannels
from gpu.drivers.nv.channel.ground import GpuMemory, GpuObjects
from gpu.drivers.nv.channel.probes import QUESTIONS
from gpu.drivers.nv.pci.boot import BootCard, boot, close_card, take_card
from gpu.drivers.nv.pci.chip import MMIO_BAR
from gpu.drivers.nv.pci.ground import CardGround
from gpu.drivers.nv.pci.memory import CardMemory
from gpu.drivers.nv.pci.rpc import GspPort
from gpu.drivers.nv.pci.wiper import Wiper
from gpu.drivers.nv.rm.chip import GraphicsInfo
from gpu.drivers.nv.rm.classes import generation
from gpu.drivers.nv.rm.gpu import NvDevice, OpenReport
from gpu.drivers.nv.rm.object import RmClient, RmObject
from gpu.drivers.nv.rm.status import CallLog
from gpu.drivers.questions import Variants
from gpu.transport.world import World

USERMODE: Final = 0xBB_0000
USERMODE_SIZE: Final = 0x1_0000
_UUID_SIZE: Final = 16
_MOST_REGIONS: Final = 16
_COMPUTE: Final = {
    "ga10x": ids.AMPERE_COMPUTE_B,
    "ad10x": ids.ADA_COMPUTE_A,
    "gh100": ids.HOPPER_COMPUTE_A,
    "gb20x": ids.BLACKWELL_COMPUTE_B,
}
_GR_INFOS: Final = (
    control.NV2080_CTRL_GR_INFO_INDEX_SM_VERSION,
    control.NV2080_CTRL_GR_INFO_INDEX_MAX_WARPS_PER_SM,
    control.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS,
    control.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_TPC_PER_GPC,
    control.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_SM_PER_TPC,
)


@dataclass(frozen=True, slots=True, eq=False)
class CardSession:
    """Who speaks to RM on a card. See `gpu.drivers.nv.channel.ground.Session`."""

    client: RmClient
    log: CallLog
    waiter: Waiter
    version: str
    port: GspPort

    def attend(self) -> None:
        """Serves what firmware has told. Raises DeviceLost where it is not asked any more."""
        self.port.attend()

    def heard(self) -> list[str]:
        """Errors that firmware told of since this was last asked, in words."""
        return self.port.heard()

    def evidence(self) -> dict[str, bytes]:
        """Firmware's logs."""
        return self.port.evidence()


@dataclass(frozen=True, slots=True)
class CardPlace:
    """Where a card is."""

    pci_address: PciAddress


@dataclass(frozen=True, slots=True)
class StaticInfo:
    """What firmware tells of the card at once.

    Attributes:
        uuid: 16 bytes, its identity.
        free: video memory that firmware leaves to others.
    """

    uuid: bytes
    free: range

    @staticmethod
    def parse(data: bytes, size: int) -> StaticInfo:
        """Of a card with so much memory. Raises FirmwareError for what makes no sense."""
        at = gspcalls.GSP_STATIC_CONFIG_INFO_GID
        uuid = data[at : at + _UUID_SIZE]
        at = gspcalls.GSP_STATIC_CONFIG_INFO_REGIONS
        count = int.from_bytes(data[at : at + 4], "little")
        if count > _MOST_REGIONS:
            raise FirmwareError(f"GSP: {count} regions of video memory: at most {_MOST_REGIONS}")
        region = gspcalls.NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO
        listed = (region * count).from_buffer_copy(data, at + 8)
        free = [
            range(each.base, each.limit + 1)
            for each in listed
            if not each.reserved and not each.bProtected and each.base <= each.limit < size
        ]
        if not free:
            raise FirmwareError(f"GSP: none of {count} regions of video memory is free")
        return StaticInfo(uuid, max(free, key=len))


def read_static_info(port: GspPort, card: BootCard) -> StaticInfo:
    """What firmware tells of a card. Raises FirmwareError."""
    size = gspcalls.GSP_STATIC_CONFIG_INFO_SIZE
    function = gsp.NV_VGPU_MSG_FUNCTION_GET_GSP_STATIC_INFO
    return StaticInfo.parse(port.exchange(function, bytes(size), size), card.vram_size)


def read_units(subdevice: RmObject) -> GraphicsInfo:
    """How large the compute engine is. Raises as `RmObject.control`."""
    infos = subdevice.control(
        gspcalls.NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_INFO,
        gspcalls.NV2080_CTRL_INTERNAL_STATIC_KGR_GET_INFO_PARAMS(),
    ).infoList
    masks = subdevice.control(
        gspcalls.NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_FLOORSWEEPING_MASKS,
        gspcalls.NV2080_CTRL_INTERNAL_STATIC_KGR_GET_FLOORSWEEPING_MASKS_PARAMS(),
    ).floorsweepingMasks[0]
    tpcs = tuple(int(mask).bit_count() for mask in masks.tpcMask if mask)
    version, warps, gpcs, most, sms = (int(infos[index].data) for index in _GR_INFOS)
    return GraphicsInfo(version, warps, gpcs, most, sms, tpcs)


def open_card(
    world: World,
    index: int = 0,
    *,
    load: Load = load_firmware,
    force: Mapping[str, str] | None = None,
    crashes: CrashFolder | None = None,
) -> NvDevice:
    """Boots a card by its place on the bus, and opens it; on an error nothing stays open.

    A report of what fails goes to ``crashes``, with all that firmware has logged beside it.

    Raises as `gpu.drivers.nv.pci.boot.take_card` and `boot` do, RmError, OutOfMemory,
    FirmwareError.
    """
    with Undo() as undo:
        card = take_card(world, index, load)
        undo.add(close_card, card)
        try:
            for _ in boot(card):
                pass
            return _open_booted(card, Variants(QUESTIONS, force), undo)
        except GpuError as error:
            from gpu.drivers.autopsy import report_opening  # once something failed

            report_opening(crashes, card.name, error, card.evidence())
            raise


def _open_booted(card: BootCard, variants: Variants, undo: Undo) -> NvDevice:
    port, log = GspPort(card), CallLog()
    info = read_static_info(port, card)
    client = RmClient(port, log)
    undo.add(client.free)
    params = alloc.NV0080_ALLOC_PARAMETERS(hClientShare=client.handle)
    device = client.alloc(ids.NV01_DEVICE_0, params, name="device")
    subdevice = device.alloc(
        ids.NV20_SUBDEVICE_0, alloc.NV2080_ALLOC_PARAMETERS(), name="subdevice"
    )
    usermode = card.function.map(MMIO_BAR, USERMODE, USERMODE_SIZE)
    row = generation(_COMPUTE[card.chip.family])
    gpu = GpuObjects(device, subdevice, row, read_units(subdevice), usermode)
    memory = CardMemory(card, info.free)
    undo.add(memory.close)
    is_blackwell = card.chip.family == "gb20x"
    ground = CardGround(port, device, subdevice, memory, has_runlist_doorbell=is_blackwell)
    undo.add(ground.close)
    spaces = GpuMemory(info.uuid, ground.new_vaspace(), memory)
    memory.wiper = ground.wiper = Wiper(card, ground, gpu, memory, spaces.vaspace)
    queues = GpuChannels(log, gpu, spaces, ground, variants)
    undo.add(queues.close)
    opened = queues.open(Trail(QUEUE_STEPS, log))
    session = CardSession(client, log, card.waiter, gsp.VERSION, port)
    place, report = CardPlace(card.function.address), OpenReport((), tuple(variants.outcomes))
    return NvDevice(session, place, gpu, spaces, queues, opened, variants, report, undo.take())

"""The open sequence of one GPU, from its node to memory; channels come after that, in `all`.

Each function is a stretch of `DEVICE_STEPS`; what it opens goes onto the given stack, so that an
error, a stop or `close` undoes all of it in reverse.
"""

from __future__ import annotations

from typing import Final

from gpu.autogen.nv import alloc, control
from gpu.autogen.nv import classes as ids
from gpu.core.window import Window
from gpu.drivers.bringup import Step, Trail
from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.channel.ground import GpuMemory, GpuObjects
from gpu.drivers.nv.channel.probes import DOORBELL
from gpu.drivers.nv.nvk.facts import list_classes, read_graphics_info, read_uuid
from gpu.drivers.nv.nvk.kernel import Card, CardPort
from gpu.drivers.nv.nvk.memory import NvMemoryPort
from gpu.drivers.nv.nvk.pagetables import PageTables
from gpu.drivers.nv.nvk.session import NvSession
from gpu.drivers.nv.rm.classes import choose, usermode_class
from gpu.drivers.nv.rm.object import RmObject
from gpu.drivers.questions import Variants

USERMODE_SIZE: Final = 0x10000
VA_BASE: Final = 0x1000
VA_SIZE: Final = 0x1FFFFFB000000  # of the 49 bits; what tinygrad's ops_nv.py asks for

DEVICE_STEPS: Final = (
    Step("card file", "open the GPU's node and register it with the client"),
    Step("identity", "from the driver's list to the number that device objects take"),
    Step("device", "allocate the device"),
    Step("subdevice", "allocate the GPU within the device"),
    Step("classes", "list the classes and choose the generation"),
    Step("units", "read how many SMs there are, and of which version"),
    Step("doorbell", "allocate and map the page with doorbell and clock"),
    Step("address space", "allocate page tables that UVM will own"),
    Step("uuid", "read the name by which UVM knows the GPU"),
    Step("register gpu", "tell UVM to drive the GPU"),
    Step("register address space", "hand the page tables to UVM"),
)


def open_objects(
    session: NvSession, card: Card, variants: Variants, trail: Trail, undo: Undo
) -> tuple[GpuObjects, CardPort]:
    """Node, device objects, classes and the doorbell page."""
    with trail.step("card file"):
        port = CardPort(session.os, session.kernel.control_fd, card.minor, session.log)
        undo.add(port.close)
    with trail.step("identity"):
        identity = session.client.control(
            control.NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2,
            control.NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS(gpuId=card.gpu_id),
        )
    with trail.step("device"):
        device_params = alloc.NV0080_ALLOC_PARAMETERS(
            deviceId=identity.deviceInstance,
            hClientShare=session.client.handle,
            vaMode=alloc.NV_DEVICE_ALLOCATION_VAMODE_OPTIONAL_MULTIPLE_VASPACES,
        )
        device = session.client.alloc(ids.NV01_DEVICE_0, device_params, name="device")
        undo.add(device.free)
    with trail.step("subdevice"):
        subdevice_params = alloc.NV2080_ALLOC_PARAMETERS(subDeviceId=identity.subDeviceInstance)
        subdevice = device.alloc(ids.NV20_SUBDEVICE_0, subdevice_params, name="subdevice")
    with trail.step("classes"):
        listed = list_classes(device)
        row = choose(listed)
    with trail.step("units"):
        units = read_graphics_info(subdevice)
    with trail.step("doorbell"):
        usermode = _map_usermode(
            port, device, subdevice, usermode_class(row, listed), variants, undo
        )
    return GpuObjects(device, subdevice, row, units, usermode), port


def _map_usermode(
    card: CardPort,
    device: RmObject,
    subdevice: RmObject,
    class_id: int,
    variants: Variants,
    undo: Undo,
) -> Window:
    has_bar1 = class_id >= ids.HOPPER_USERMODE_A

    def attempt(bar: str) -> tuple[Window, Undo]:
        params = alloc.NV_HOPPER_USERMODE_A_PARAMS(bBar1Mapping=1) if bar == "BAR1" else None
        with Undo() as inner:
            page = subdevice.alloc(class_id, params, name="doorbell page")
            inner.add(page.free)
            mapping = card.map(device, page, USERMODE_SIZE, on_card=True)
            inner.add(card.unmap, mapping)
            return mapping.window, inner.take()

    bars = ("BAR0", "BAR1") if has_bar1 else ("BAR0",)
    window, opened = variants.attempt(DOORBELL, attempt, only=bars)
    undo.add(opened.close)
    return window


def new_vaspace(device: RmObject) -> RmObject:
    """Page tables that UVM will own."""
    flags = (
        alloc.NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED
        | alloc.NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING
    )
    params = alloc.NV_VASPACE_ALLOCATION_PARAMETERS(flags=flags, vaBase=VA_BASE, vaSize=VA_SIZE)
    return device.alloc(ids.FERMI_VASPACE_A, params, name="address space")


def open_memory(
    session: NvSession,
    card: Card,
    card_port: CardPort,
    gpu: GpuObjects,
    variants: Variants,
    trail: Trail,
    undo: Undo,
) -> tuple[GpuMemory, NvMemoryPort]:
    """The VA space and its registration with UVM."""
    with trail.step("address space"):
        vaspace = new_vaspace(gpu.device)
        undo.add(vaspace.free)
    with trail.step("uuid"):
        uuid = read_uuid(gpu.subdevice)
    with trail.step("register gpu"):
        session.uvm.register_gpu(uuid)
        undo.add(session.uvm.unregister_gpu, uuid)
    tables = PageTables(
        *(session.client, session.uvm, session.uvm_file, session.branch, uuid, card.gpu_id)
    )
    undo.add(tables.disconnect)
    with trail.step("register address space"):
        session.uvm.register_vaspace(uuid, vaspace)
        undo.add(session.uvm.unregister_vaspace, uuid)
    port = NvMemoryPort(gpu.device, card_port, tables, session.addresses, variants)
    undo.add(port.close)
    return GpuMemory(uuid, vaspace, port), port

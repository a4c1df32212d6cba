"""Illegal calls of RM and UVM through the driver's ports, and the status of each.

Each row does one thing wrong. Beside each group stands the file of open-gpu-kernel-modules 580.142
that decides on its status.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu.autogen.nv import alloc, control
from gpu.core import hostmem
from gpu.drivers.nv.nvk.branch import BRANCHES
from gpu.drivers.nv.rm.object import RmObject
from nv.ports import BASE, CHANNEL, MIB, PAGE, Opened

COMPUTE = 0xCBC0


Act = Callable[[Opened], object]
Rows = dict[str, tuple[str, Act]]

# src/nvidia/src/kernel/rmapi/alloc_free.c, resource_list.h, resserv/src/rs_client.c
TREE: Rows = {
    "a class that RM does not know": ("INVALID_CLASS", lambda o: o.device.alloc(0xBEEF, name="x")),
    "a class that the chip lacks": ("NOT_SUPPORTED", lambda o: o.subdevice.alloc(0xC761, name="x")),
    "a class without its parameters": (
        "INVALID_ARGUMENT",
        lambda o: o.device.alloc(0x40, name="x"),
    ),
    "an unknown parent": ("OBJECT_NOT_FOUND", lambda o: o.unknown(0x80).alloc(0x2080, name="x")),
    "a handle that is taken": (
        "INSERT_DUPLICATE_NAME",
        lambda o: o.device.alloc(0x2080, name="x", handle=o.device.handle),
    ),
    "the handle of the client": (
        "INVALID_OBJECT_PARENT",
        lambda o: o.device.alloc(0x2080, name="x", handle=o.client.handle),
    ),
    "a handle of the firmware's": (
        "INVALID_OBJECT_HANDLE",
        lambda o: o.device.alloc(0x2080, name="x", handle=0xC9F0_0001),
    ),
    "a group under a subdevice": (
        "INVALID_OBJECT_PARENT",
        lambda o: o.subdevice.alloc(
            0xA06C, alloc.NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS(engineType=1), name="x"
        ),
    ),
    "a share under a device": (
        "INVALID_OBJECT_PARENT",
        lambda o: o.device.alloc(0x9067, alloc.NV_CTXSHARE_ALLOCATION_PARAMETERS(), name="x"),
    ),
    "compute under a group": (
        "INVALID_OBJECT_PARENT",
        lambda o: o.group.alloc(COMPUTE, name="x"),
    ),
    "a channel under a subdevice": (
        "INVALID_OBJECT_PARENT",
        lambda o: o.make_channel(o.subdevice),
    ),
    "a usermode page under a device": (
        "INVALID_OBJECT_PARENT",
        lambda o: o.device.alloc(0xC661, name="x"),
    ),
}
# gpu/device.c, gpu/subdevice/subdevice.c, gpu/fifo/usermode_api.c,
# gpu/gr/kernel_sm_debugger_session.c
DEVICES: Rows = {
    "a device that is not there": (
        "INVALID_STATE",
        lambda o: o.client.alloc(0x80, alloc.NV0080_ALLOC_PARAMETERS(deviceId=5), name="x"),
    ),
    "a device number that cannot be": (
        "INVALID_ARGUMENT",
        lambda o: o.client.alloc(0x80, alloc.NV0080_ALLOC_PARAMETERS(deviceId=32), name="x"),
    ),
    "a second subdevice": (
        "INSUFFICIENT_RESOURCES",
        lambda o: o.device.alloc(0x2080, alloc.NV2080_ALLOC_PARAMETERS(), name="x"),
    ),
    "another subdevice": (
        "INVALID_CLASS",
        lambda o: o.device.alloc(0x2080, alloc.NV2080_ALLOC_PARAMETERS(subDeviceId=1), name="x"),
    ),
    "a privileged usermode page": (
        "INSUFFICIENT_PERMISSIONS",
        lambda o: o.subdevice.alloc(
            0xC661, alloc.NV_HOPPER_USERMODE_A_PARAMS(bBar1Mapping=1, bPriv=1), name="x"
        ),
    ),
    "a privileged usermode page over BAR0": (
        "INVALID_PARAMETER",
        lambda o: o.subdevice.alloc(0xC661, alloc.NV_HOPPER_USERMODE_A_PARAMS(bPriv=1), name="x"),
    ),
    "a debugger of no channel's object": (
        "INVALID_OBJECT",
        lambda o: o.device.alloc(
            0x83DE,
            alloc.NV83DE_ALLOC_PARAMETERS(
                hAppClient=o.client.handle, hClass3dObject=o.device.handle
            ),
            name="x",
        ),
    ),
}
# mem_mgr/standard_mem.c, video_mem.c, system_mem.c, gpu/mem_mgr/vaspace_api.c
MEMORY: Rows = {
    "memory of size 0": ("INVALID_ARGUMENT", lambda o: o.memory(size=0)),
    "memory of nobody": ("INVALID_OWNER", lambda o: o.memory(owner=0)),
    "internal flags": ("INVALID_ARGUMENT", lambda o: o.memory(internalflags=1)),
    "a range without its flag": ("INVALID_ARGUMENT", lambda o: o.memory(rangeLo=PAGE)),
    "video memory in the machine": ("INVALID_ARGUMENT", lambda o: o.memory(attr=1 << 25)),
    "machine memory in the card": ("INVALID_ARGUMENT", lambda o: o.memory(0x3E, attr=0)),
    "virtual video memory": ("INVALID_ARGUMENT", lambda o: o.memory(flags=1 << 19)),
    "video memory with a VA space": ("INVALID_ARGUMENT", lambda o: o.memory(hVASpace=1)),
    "more video memory than there is": ("NO_MEMORY", lambda o: o.memory(size=1 << 42)),
    "the VA space of BAR1": (
        "INVALID_ARGUMENT",
        lambda o: o.device.alloc(0x90F1, alloc.NV_VASPACE_ALLOCATION_PARAMETERS(index=1), name="x"),
    ),
}
# arch/nvalloc/unix/src/escape.c, rmapi/mapping_cpu.c, kernel-open/nvidia/nv-usermap.c
MAPPINGS: Rows = {
    "a mapping of what is no memory": (
        "NOT_SUPPORTED",
        lambda o: o.card.map(o.device, o.device, PAGE, on_card=True),
    ),
    "a mapping of what is not there": (
        "OBJECT_NOT_FOUND",
        lambda o: o.card.map(o.device, o.unknown(), PAGE, on_card=True),
    ),
    "a mapping under what is no device": (
        "INVALID_OBJECT_PARENT",
        lambda o: o.card.map(o.group, o.memory(), PAGE, on_card=True),
    ),
    "more than the memory": (
        "INVALID_LIMIT",
        lambda o: o.card.map(o.device, o.memory(), 2 * MIB, on_card=True),
    ),
    "video memory through a control file": (
        "INVALID_ARGUMENT",
        lambda o: o.card.map(o.device, o.memory(), PAGE, on_card=False),
    ),
    "machine memory through a card's file": (
        "INVALID_ARGUMENT",
        lambda o: o.card.map(o.device, o.memory(0x3E), PAGE, on_card=True),
    ),
    "memory of the process that is not there": (
        "INVALID_ADDRESS",
        lambda o: o.card.describe_host_memory(o.device, 0x1000, PAGE, name="x"),
    ),
    "memory of the process under the client": (
        "INVALID_OBJECT_PARENT",
        lambda o: o.card.describe_host_memory(o.client, host_page(), PAGE, name="x"),
    ),
}


def host_page() -> int:
    return hostmem.map_file(-1, 0, PAGE, hostmem.PROT_READ | hostmem.PROT_WRITE, 0x22, 0)


# gpu/fifo/kernel_channel_group_api.c, kernel_ctxshare.c, kernel_channel.c, channel_descendant.c
CHANNELS: Rows = {
    "a group of an engine that is not there": ("INVALID_ARGUMENT", lambda o: o.make_group(11)),
    "a share of what is no VA space": (
        "INVALID_CLASS",
        lambda o: o.group.alloc(
            0x9067, alloc.NV_CTXSHARE_ALLOCATION_PARAMETERS(hVASpace=o.device.handle), name="x"
        ),
    ),
    "a ring of 48 entries": ("INVALID_ARGUMENT", lambda o: o.make_channel(gpFifoEntries=48)),
    "a ring of no entries": ("INVALID_ARGUMENT", lambda o: o.make_channel(gpFifoEntries=0)),
    "a VA space beside a share": (
        "INVALID_ARGUMENT",
        lambda o: o.make_channel(hVASpace=o.vaspace.handle),
    ),
    "a share of another group": (
        "INVALID_OBJECT_PARENT",
        lambda o: o.make_channel(o.make_group(1)),
    ),
    "an engine of another runlist": (
        "INVALID_ARGUMENT",
        lambda o: o.make_channel(engineType=13),
    ),
    "errors to what is no memory": (
        "INVALID_STATE",
        lambda o: o.make_channel(hObjectError=o.device.handle),
    ),
    "USERD in what is no memory": (
        "OBJECT_NOT_FOUND",
        lambda o: o.make_channel(userd=o.device.handle),
    ),
    "USERD behind its memory": ("INVALID_ARGUMENT", lambda o: o.make_channel(offset=MIB)),
    "USERD askew": ("INVALID_ADDRESS", lambda o: o.make_channel(offset=0x100)),
    "compute on a channel of copies": (
        "INVALID_CLASS",
        lambda o: o.make_channel(o.make_group(13), hContextShare=0, engineType=13).alloc(
            COMPUTE, name="x"
        ),
    ),
}
# kernel-open/nvidia-uvm/uvm.c, uvm_va_space.c, uvm_map_external.c, uvm_va_range.c
UVM: Rows = {
    "a call before UVM_INITIALIZE": (
        "ILLEGAL_ACTION",
        lambda o: o.another_uvm().create_range(BASE, PAGE),
    ),
    "a GPU that is not there": ("GPU_UUID_NOT_FOUND", lambda o: o.uvm.register_gpu(bytes(16))),
    "a GPU twice": ("INVALID_DEVICE", lambda o: o.uvm.register_gpu(o.uuid)),
    "a GPU that was not registered": (
        "INVALID_DEVICE",
        lambda o: o.uvm.unregister_gpu(bytes(16)),
    ),
    "a VA space twice": (
        "INVALID_DEVICE",
        lambda o: o.uvm.register_vaspace(o.uuid, o.vaspace),
    ),
    "what is no VA space": (
        "INVALID_OBJECT",
        lambda o: o.uvm.register_vaspace(o.uuid, o.device),
    ),
    "a VA space that UVM may not own": (
        "INVALID_FLAGS",
        lambda o: o.uvm.register_vaspace(
            o.uuid,
            o.device.alloc(0x90F1, alloc.NV_VASPACE_ALLOCATION_PARAMETERS(), name="x"),
        ),
    ),
    "overlapping ranges": ("UVM_ADDRESS_IN_USE", lambda o: o.twice(o.ranged)),
    "freeing no range": (
        "INVALID_ADDRESS",
        lambda o: o.uvm.free_range(BRANCHES[580], BASE, MIB),
    ),
    "freeing half a range": (
        "INVALID_ADDRESS",
        lambda o: (o.ranged(), o.uvm.free_range(BRANCHES[580], BASE, MIB // 2)),
    ),
    "mapping where no range is": ("INVALID_ADDRESS", lambda o: o.map_at(o.memory())),
    "mapping beyond the range": (
        "INVALID_ADDRESS",
        lambda o: (o.ranged(MIB // 2), o.map_at(o.memory())),
    ),
    "mapping beyond the memory": (
        "INVALID_OFFSET",
        lambda o: (o.ranged(2 * MIB), o.map_at(o.memory(), size=2 * MIB)),
    ),
    "mapping what is not there": (
        "OBJECT_NOT_FOUND",
        lambda o: (o.ranged(), o.map_at(o.unknown())),
    ),
    "mapping what is no memory": (
        "INVALID_OBJECT_HANDLE",
        lambda o: (o.ranged(), o.map_at(o.device)),
    ),
    "a channel that is not there": (
        "INVALID_OBJECT_HANDLE",
        lambda o: o.uvm.register_channel(o.uuid, o.unknown(CHANNEL), BASE, 256 * MIB),
    ),
    "a channel without an object of graphics": (
        "INVALID_STATE",
        lambda o: o.uvm.register_channel(o.uuid, o.make_channel(), BASE, 256 * MIB),
    ),
    "a window that is too small": (
        "INVALID_ADDRESS",
        lambda o: o.uvm.register_channel(o.uuid, computing(o), BASE, 64 * MIB),
    ),
    "a channel twice": (
        "INVALID_CHANNEL",
        lambda o: registered_twice(o, computing(o)),
    ),
    "a channel that was not registered": (
        "INVALID_CHANNEL",
        lambda o: o.uvm.unregister_channel(BRANCHES[580], o.uuid, computing(o)),
    ),
}


def computing(opened: Opened) -> RmObject:
    channel = opened.make_channel()
    channel.alloc(COMPUTE, name="compute")
    return channel


def registered_twice(opened: Opened, channel: RmObject) -> None:
    for _ in range(2):
        opened.uvm.register_channel(opened.uuid, channel, BASE, 256 * MIB)


# gpu/fifo/kernel_channel_group_api.c, rmapi/control.c, resserv/src/rs_resource.c
class Three(alloc.NV_CTXSHARE_ALLOCATION_PARAMETERS):
    """Twelve bytes, which no command here takes."""


CONTROLS: Rows = {
    "scheduling before UVM has the context": (
        "INVALID_STATE",
        lambda o: (computing(o), o.group.control(0xA06C0101, schedule())),
    ),
    "parameters of another size": (
        "INVALID_ARGUMENT",
        lambda o: o.group.control(0xA06C0101, Three()),
    ),
    "parameters of another size to a class that has no number": (
        "INVALID_PARAM_STRUCT",
        lambda o: computing(o).control(0xA06F0104, Three()),
    ),
    "a command of another class": (
        "NOT_SUPPORTED",
        lambda o: o.device.control(0xA06C0101, schedule()),
    ),
    "a command to what is not there": (
        "OBJECT_NOT_FOUND",
        lambda o: o.unknown(0xA06C).control(0xA06C0101, schedule()),
    ),
}


def schedule() -> control.NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS:
    return control.NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS(bEnable=1)


CALLS: Rows = {**TREE, **DEVICES, **MEMORY, **MAPPINGS, **CHANNELS, **UVM, **CONTROLS}

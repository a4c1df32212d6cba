"""What the kernel's RM says about a GPU: its classes, UUID, units and copy engines.

Controls: src/common/sdk/nvidia/inc/ctrl/{ctrl0080,ctrl2080} of open-gpu-kernel-modules.
"""

from __future__ import annotations

import ctypes
from typing import Final

from gpu.autogen.nv import alloc, control
from gpu.autogen.nv.layout import offset_of
from gpu.core.errors import DeviceError, RmError, TransportError
from gpu.drivers.nv.channel.ce_select import FIRST_COPY, CopyEngine
from gpu.drivers.nv.nvk.uvm import UUID_SIZE
from gpu.drivers.nv.rm.chip import GraphicsInfo
from gpu.drivers.nv.rm.object import RmObject
from gpu.transport.os import Ref

_CLASS_LIST: Final = control.NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS
_GR_INFO: Final = control.NV2080_CTRL_GR_GET_INFO_PARAMS
_CLASS_SIZE: Final = 4
_MAX_CLASSES: Final = 4096

_INDEXES: Final = (
    control.NV2080_CTRL_GR_INFO_INDEX_SM_VERSION,
    control.NV2080_CTRL_GR_INFO_INDEX_MAX_WARPS_PER_SM,
    control.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS,
    control.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_TPC_PER_GPC,
    control.NV2080_CTRL_GR_INFO_INDEX_LITTER_NUM_SM_PER_TPC,
)


def list_classes(device: RmObject) -> tuple[int, ...]:
    """The classes of a device. Raises as `RmObject.control` does, DeviceError for an absurd list.

    Asked in the pointer form: the size of the other form differs between branches.
    """
    command = control.NV0080_CTRL_CMD_GPU_GET_CLASSLIST
    refs = (Ref(offset_of(_CLASS_LIST, "classList"), count_offset=0, item_size=_CLASS_SIZE),)
    count = device.control(command, _CLASS_LIST(), refs).numClasses
    if not 0 < count <= _MAX_CLASSES:
        raise DeviceError(f"{device} has {count} classes: 1 to {_MAX_CLASSES} make sense")
    found = (ctypes.c_uint32 * count)()
    params = _CLASS_LIST(numClasses=count, classList=ctypes.addressof(found))
    device.control(command, params, refs)
    return tuple(found)


def read_uuid(subdevice: RmObject) -> bytes:
    """The 16 bytes by which UVM knows a GPU. Raises as `RmObject.control` does."""
    params = subdevice.control(
        control.NV2080_CTRL_CMD_GPU_GET_GID_INFO,
        control.NV2080_CTRL_GPU_GET_GID_INFO_PARAMS(
            flags=control.NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY, length=UUID_SIZE
        ),
    )
    return bytes(params.data[:UUID_SIZE])


def read_graphics_info(subdevice: RmObject) -> GraphicsInfo:
    """The sizes of the compute engine. Raises as `RmObject.control` does."""
    infos = (control.NV2080_CTRL_GR_INFO * len(_INDEXES))()
    for info, index in zip(infos, _INDEXES, strict=True):
        info.index = index
    params = _GR_INFO(grInfoListSize=len(infos), grInfoList=ctypes.addressof(infos))
    pointer = Ref(offset_of(_GR_INFO, "grInfoList"), size=ctypes.sizeof(infos))
    subdevice.control(control.NV2080_CTRL_CMD_GR_GET_INFO, params, (pointer,))
    version, warps, gpcs, tpcs, sms = (int(info.data) for info in infos)
    enabled = _read_tpcs(subdevice)
    return GraphicsInfo(version, warps, gpcs, tpcs, sms, enabled)


def _read_tpcs(subdevice: RmObject) -> tuple[int, ...]:
    gpcs = subdevice.control(
        control.NV2080_CTRL_CMD_GR_GET_GPC_MASK, control.NV2080_CTRL_GR_GET_GPC_MASK_PARAMS()
    ).gpcMask
    counts = []
    for gpc in range(gpcs.bit_length()):
        if gpcs >> gpc & 1:
            params = control.NV2080_CTRL_GR_GET_TPC_MASK_PARAMS(gpcId=gpc)
            mask = subdevice.control(control.NV2080_CTRL_CMD_GR_GET_TPC_MASK, params).tpcMask
            counts.append(mask.bit_count())
    return tuple(counts)


def list_copy_engines(subdevice: RmObject) -> list[CopyEngine]:
    """The copy engines that channels can use; those that the kernel refuses to describe are absent.

    Asked one by one: the struct of the command for all has another size in each branch.
    """
    engines = []
    for engine_type in range(FIRST_COPY, FIRST_COPY + alloc.COPY_ENGINES):
        params = control.NV2080_CTRL_CE_GET_CAPS_V2_PARAMS(ceEngineType=engine_type)
        try:
            subdevice.control(control.NV2080_CTRL_CMD_CE_GET_CAPS_V2, params)
        except RmError:
            continue
        units = _units(subdevice, engine_type)
        engines.append(CopyEngine(engine_type, params.capsTbl[0], units))
    return engines


def _units(subdevice: RmObject, engine_type: int) -> int | None:
    params = control.NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS(ceEngineType=engine_type)
    try:
        subdevice.control(control.NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK, params)
    except (RmError, TransportError):  # gVisor lets it through for graphics containers alone
        return None
    return int(params.pceMask).bit_count()

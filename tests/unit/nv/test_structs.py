"""Struct layouts, sizes and numbers, against a table written down independently.

The table is what a debugger showed of the headers of driver 580.142, as ``name@offset[:size]``,
size 4 by default.
"""

from __future__ import annotations

import ctypes
import re

import pytest

from gpu.autogen.nv import alloc, classes, control, rm, status, uvm
from gpu.transport.ioctl import iowr

LAYOUTS = """
nv_ioctl_card_info_t = 72: valid@0:1, pci_info@4:12, gpu_id@16, interrupt_line@20:2,
  reg_address@24:8, reg_size@32:8, fb_address@40:8, fb_size@48:8, minor_number@56, dev_name@60:10
nv_ioctl_register_fd_t = 4: ctl_fd@0
nv_ioctl_nvos02_parameters_with_fd = 56: params@0:48, fd@48
nv_ioctl_nvos33_parameters_with_fd = 56: params@0:48, fd@48
NVOS00_PARAMETERS = 16: hRoot@0, hObjectParent@4, hObjectOld@8, status@12
NVOS02_PARAMETERS = 48: hRoot@0, hObjectParent@4, hObjectNew@8, hClass@12, flags@16, pMemory@24:8,
  limit@32:8, status@40
NVOS21_PARAMETERS = 32: hRoot@0, hObjectParent@4, hObjectNew@8, hClass@12, pAllocParms@16:8,
  paramsSize@24, status@28
NVOS64_PARAMETERS = 48: hRoot@0, hObjectParent@4, hObjectNew@8, hClass@12, pAllocParms@16:8,
  pRightsRequested@24:8, paramsSize@32, flags@36, status@40
NVOS33_PARAMETERS = 48: hClient@0, hDevice@4, hMemory@8, offset@16:8, length@24:8,
  pLinearAddress@32:8, status@40, flags@44
NVOS34_PARAMETERS = 32: hClient@0, hDevice@4, hMemory@8, pLinearAddress@16:8, status@24, flags@28
NVOS54_PARAMETERS = 32: hClient@0, hObject@4, cmd@8, flags@12, params@16:8, paramsSize@24, status@28
NvNotification = 16: timeStamp@0:8, info32@8, info16@12:2, status@14:2
NV_MEMORY_ALLOCATION_PARAMS = 128: owner@0, type@4, flags@8, width@12, height@16, pitch@20, attr@24,
  attr2@28, format@32, comprCovg@36, zcullCovg@40, rangeLo@48:8, rangeHi@56:8, size@64:8,
  alignment@72:8, offset@80:8, limit@88:8, address@96:8, ctagOffset@104, hVASpace@108,
  internalflags@112, tag@116, numaNode@120
NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS = 20: hObjectError@0, hObjectEccError@4, hVASpace@8,
  engineType@12, bIsCallingContextVgpuPlugin@16:1
NV_VASPACE_ALLOCATION_PARAMETERS = 56: index@0, flags@4, vaSize@8:8, vaStartInternal@16:8,
  vaLimitInternal@24:8, bigPageSize@32, vaBase@40:8, pasid@48
NV_CTXSHARE_ALLOCATION_PARAMETERS = 12: hVASpace@0, flags@4, subctxId@8
NV_HOPPER_USERMODE_A_PARAMS = 2: bBar1Mapping@0:1, bPriv@1:1
NV_MEMORY_DESC_PARAMS = 24: base@0:8, size@8:8, addressSpace@16, cacheAttrib@20
NV_CHANNEL_ALLOC_PARAMS = 368: hObjectError@0, hObjectBuffer@4, gpFifoOffset@8:8, gpFifoEntries@16,
  flags@20, hContextShare@24, hVASpace@28, hUserdMemory@32:32, userdOffset@64:64, engineType@128,
  cid@132, subDeviceId@136, hObjectEccError@140, instanceMem@144:24, userdMem@168:24,
  ramfcMem@192:24, mthdbufMem@216:24, hPhysChannelGroup@240, internalFlags@244,
  errorNotifierMem@248:24, eccErrorNotifierMem@272:24, ProcessID@296, SubProcessID@300,
  encryptIv@304:12, decryptIv@316:12, hmacNonce@328:32, tpcConfigID@360
NV0000_ALLOC_PARAMETERS = 120: hClient@0, processID@4, processName@8:100, pOsPidInfo@112:8
NV0080_ALLOC_PARAMETERS = 56: deviceId@0, hClientShare@4, hTargetClient@8, hTargetDevice@12,
  flags@16, vaSpaceSize@24:8, vaStartInternal@32:8, vaLimitInternal@40:8, vaMode@48
NV2080_ALLOC_PARAMETERS = 4: subDeviceId@0
NVB0B5_ALLOCATION_PARAMETERS = 8: version@0, engineType@4
NV83DE_ALLOC_PARAMETERS = 12: hDebuggerClient_Obsolete@0, hAppClient@4, hClass3dObject@8
NV0000_CTRL_SYSTEM_GET_BUILD_VERSION_PARAMS = 40: sizeOfStrings@0, pDriverVersionBuffer@8:8,
  pVersionBuffer@16:8, pTitleBuffer@24:8, changelistNumber@32, officialChangelistNumber@36
NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS = 32: gpuId@0, gpuFlags@4, deviceInstance@8,
  subDeviceInstance@12, sliStatus@16, boardId@20, gpuInstance@24, numaId@28
NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS = 16: numClasses@0, classList@8:8
NV2080_CTRL_GPU_GET_GID_INFO_PARAMS = 268: index@0, flags@4, length@8, data@12:256
NV2080_CTRL_GR_ROUTE_INFO = 16: flags@0, route@8:8
NV2080_CTRL_GR_INFO = 8: index@0, data@4
NV2080_CTRL_GR_GET_INFO_PARAMS = 32: grInfoListSize@0, grInfoList@8:8, grRouteInfo@16:16
NV2080_CTRL_GR_GET_GPC_MASK_PARAMS = 24: grRouteInfo@0:16, gpcMask@16
NV2080_CTRL_GR_GET_TPC_MASK_PARAMS = 24: grRouteInfo@0:16, gpcId@16, tpcMask@20
NV2080_CTRL_CE_GET_CAPS_V2_PARAMS = 8: ceEngineType@0, capsTbl@4:2
NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS = 8: ceEngineType@0, pceMask@4
NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS = 3: bEnable@0:1, bSkipSubmit@1:1, bSkipEnable@2:1
NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS_535 = 2: bEnable@0:1, bSkipSubmit@1:1
NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS = 4: workSubmitToken@0
NV83DE_CTRL_DEBUG_READ_ALL_SM_ERROR_STATES_PARAMS = 4824: hTargetChannel@0, numSMsToRead@4,
  smErrorStateArray@8:4800, mmuFaultInfo@4808, mmuFault@4812:8, startingSM@4820
NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_PARAMS = 72: mmuFaultInfoList@0:64, count@64
NV83DE_MMU_FAULT_INFO = 8: valid@0:1, faultInfo@4
NV83DE_CTRL_DEBUG_READ_MMU_FAULT_INFO_ENTRY = 16: faultAddress@0:8, faultType@8, accessType@12
NV83DE_SM_ERROR_STATE_REGISTERS = 48: hwwGlobalEsr@0, hwwWarpEsr@4, hwwWarpEsrPc@8,
  hwwGlobalEsrReportMask@12, hwwWarpEsrReportMask@16, hwwEsrAddr@24:8, hwwWarpEsrPc64@32:8,
  hwwCgaEsr@40, hwwCgaEsrReportMask@44
UVM_INITIALIZE_PARAMS = 16: flags@0:8, rmStatus@8
UVM_MM_INITIALIZE_PARAMS = 8: uvmFd@0, rmStatus@4
UVM_REGISTER_GPU_PARAMS = 40: gpu_uuid@0:16, numaEnabled@16:1, numaNodeId@20, rmCtrlFd@24,
  hClient@28, hSmcPartRef@32, rmStatus@36
UVM_UNREGISTER_GPU_PARAMS = 20: gpu_uuid@0:16, rmStatus@16
UVM_REGISTER_GPU_VASPACE_PARAMS = 32: gpuUuid@0:16, rmCtrlFd@16, hClient@20, hVaSpace@24,
  rmStatus@28
UVM_UNREGISTER_GPU_VASPACE_PARAMS = 20: gpuUuid@0:16, rmStatus@16
UVM_REGISTER_CHANNEL_PARAMS = 56: gpuUuid@0:16, rmCtrlFd@16, hClient@20, hChannel@24, base@32:8,
  length@40:8, rmStatus@48
UVM_UNREGISTER_CHANNEL_PARAMS_535 = 28: gpuUuid@0:16, hClient@16, hChannel@20, rmStatus@24
UVM_UNREGISTER_CHANNEL_PARAMS = 12: hClient@0, hChannel@4, rmStatus@8
UVM_CREATE_EXTERNAL_RANGE_PARAMS = 24: base@0:8, length@8:8, rmStatus@16
UvmGpuMappingAttributes = 36: gpuUuid@0:16, gpuMappingType@16, gpuCachingType@20, gpuFormatType@24,
  gpuElementBits@28, gpuCompressionType@32
UVM_MAP_EXTERNAL_ALLOCATION_PARAMS = 9264: base@0:8, length@8:8, offset@16:8,
  perGpuAttributes@24:9216, gpuAttributesCount@9240:8, rmCtrlFd@9248, hClient@9252, hMemory@9256,
  rmStatus@9260
UVM_MAP_EXTERNAL_ALLOCATION_PARAMS_535 = 1200: perGpuAttributes@24:1152, gpuAttributesCount@1176:8
UVM_FREE_PARAMS_535 = 24: base@0:8, length@8:8, rmStatus@16
UVM_FREE_PARAMS = 16: base@0:8, rmStatus@8
nv_pci_info_t = 12: domain@0, bus@4:1, slot@5:1, function@6:1, vendor_id@8:2, device_id@10:2
"""
ROWS = {
    name: (int(size), fields)
    for name, size, fields in re.findall(
        r"^(\w+) = (\d+): (.*)$", LAYOUTS.replace("\n  ", " "), re.M
    )
}
STRUCTS: dict[str, type[ctypes.Structure]] = {
    name: value
    for module in (rm, alloc, control, uvm)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, ctypes.Structure)
    if value is not ctypes.Structure
}


def test_every_struct_is_in_the_table_and_the_reverse() -> None:
    assert set(STRUCTS) == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_layout(name: str) -> None:
    size, fields = ROWS[name]
    struct = STRUCTS[name]
    assert ctypes.sizeof(struct) == size
    wanted = [re.fullmatch(r"(\w+)@(\d+)(?::(\d+))?", field) for field in fields.split(", ")]
    table = {m[1]: (int(m[2]), int(m[3] or 4)) for m in wanted if m}
    assert len(table) == len(wanted)
    found = {n: (getattr(struct, n).offset, getattr(struct, n).size) for n, *_ in struct._fields_}
    if not name.endswith("_535") or name in ("UVM_FREE_PARAMS_535",):
        assert list(found) == list(table)
    assert {n: found[n] for n in table} == table


@pytest.mark.parametrize(
    ("number", "struct", "request_number"),
    [
        (rm.NV_ESC_RM_ALLOC, rm.NVOS64_PARAMETERS, 0xC030462B),
        (rm.NV_ESC_RM_ALLOC, rm.NVOS21_PARAMETERS, 0xC020462B),
        (rm.NV_ESC_RM_CONTROL, rm.NVOS54_PARAMETERS, 0xC020462A),
        (rm.NV_ESC_RM_FREE, rm.NVOS00_PARAMETERS, 0xC0104629),
        (rm.NV_ESC_RM_MAP_MEMORY, rm.nv_ioctl_nvos33_parameters_with_fd, 0xC038464E),
        (rm.NV_ESC_RM_UNMAP_MEMORY, rm.NVOS34_PARAMETERS, 0xC020464F),
        (rm.NV_ESC_RM_ALLOC_MEMORY, rm.nv_ioctl_nvos02_parameters_with_fd, 0xC0384627),
        (rm.NV_ESC_REGISTER_FD, rm.nv_ioctl_register_fd_t, 0xC00446C9),
        (rm.NV_ESC_CARD_INFO, rm.nv_ioctl_card_info_t * 32, 0xC90046C8),
    ],
)
def test_requests(number: int, struct: type[ctypes.Structure], request_number: int) -> None:
    assert iowr(rm.NV_IOCTL_MAGIC, number, struct) == request_number


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "NV_OK"),
        (0x03, "NV_ERR_BUSY_RETRY"),
        (0x0F, "NV_ERR_GPU_IS_LOST"),
        (0x16, "NV_ERR_ILLEGAL_ACTION"),
        (0x1B, "NV_ERR_INSUFFICIENT_PERMISSIONS"),
        (0x1F, "NV_ERR_INVALID_ARGUMENT"),
        (0x29, "NV_ERR_INVALID_FLAGS"),
        (0x36, "NV_ERR_INVALID_OBJECT_PARENT"),
        (0x3A, "NV_ERR_INVALID_PARAM_STRUCT"),
        (0x40, "NV_ERR_INVALID_STATE"),
        (0x51, "NV_ERR_NO_MEMORY"),
        (0x5D, "NV_ERR_PAGE_TABLE_NOT_AVAIL"),
        (0x68, "NV_ERR_UVM_ADDRESS_IN_USE"),
        (0x8A, "NV_ERR_MC_FLA_OFFSET_TABLE_FULL"),
        (0xFFFF, "NV_ERR_GENERIC"),
        (0x10006, "NV_WARN_NOTHING_TO_DO"),
        (0x1234, "unknown"),
    ],
)
def test_status_names(number: int, name: str) -> None:
    assert status.status_name(number) == name


def test_named_statuses_are_those_of_the_table() -> None:
    constants = {n: v for n, v in vars(status).items() if n.startswith("NV_") and n != "NV_OK"}
    assert constants and all(status.status_name(v) == n for n, v in constants.items())


def test_classes_have_names() -> None:
    assert classes.class_name(0xCBC0) == "HOPPER_COMPUTE_A (0xcbc0)"
    assert classes.class_name(0x1234) == "class (0x1234)"
    assert control.control_name(0x2080014A) == "NV2080_CTRL_CMD_GPU_GET_GID_INFO (0x2080014a)"

"""Sizes and offsets of what GSP firmware 570.144 reads, against what a C compiler laid out.

The table is gcc's, for x86-64, of the headers of open-gpu-kernel-modules at tag 570.144, as
``name = size: member@offset``.
"""

from __future__ import annotations

import ctypes
import re

import pytest

from gpu.autogen.nv import gsp, ucode

_LAYOUTS = """
GspFwWprMeta = 256: magic@0, revision@8, sysmemAddrOfRadix3Elf@16, sizeOfRadix3Elf@24,
  sysmemAddrOfBootloader@32, sizeOfBootloader@40, bootloaderCodeOffset@48,
  bootloaderDataOffset@56, bootloaderManifestOffset@64, sysmemAddrOfSignature@72,
  sizeOfSignature@80, gspFwRsvdStart@88, nonWprHeapOffset@96, nonWprHeapSize@104,
  gspFwWprStart@112, gspFwHeapOffset@120, gspFwHeapSize@128, gspFwOffset@136, bootBinOffset@144,
  frtsOffset@152, frtsSize@160, gspFwWprEnd@168, fbSize@176, vgaWorkspaceOffset@184,
  vgaWorkspaceSize@192, bootCount@200, partitionRpcPadding@208,
  sysmemAddrOfCrashReportQueue@224, sizeOfCrashReportQueue@232, lsUcodeVersionPadding@236,
  gspFwHeapVfPartitionCount@240, flags@241, padding@242, pmuReservedSize@244, verified@248
GSP_FMC_INIT_PARAMS = 4: regkeys@0
GSP_ACR_BOOT_GSP_RM_PARAMS = 32: target@0, gspRmDescSize@4, gspRmDescOffset@8,
  wprCarveoutOffset@16, wprCarveoutSize@24, bIsGspRmBoot@28
GSP_RM_PARAMS = 16: target@0, bootArgsOffset@8
GSP_SPDM_PARAMS = 24: target@0, payloadBufferOffset@8, payloadBufferSize@16
GSP_FMC_BOOT_PARAMS = 80: initParams@0, bootGspRmParams@8, gspRmParams@40, gspSpdmParams@56
LibosMemoryRegionInitArgument = 32: id8@0, pa@8, size@16, kind@24, loc@25
MESSAGE_QUEUE_INIT_ARGUMENTS = 32: sharedMemPhysAddr@0, pageTableEntryCount@8,
  cmdQueueOffset@16, statQueueOffset@24
GSP_SR_INIT_ARGUMENTS = 12: oldLevel@0, flags@4, bInPMTransition@8
GSP_ARGUMENTS_CACHED = 72: messageQueueInitArguments@0, srInitArguments@32, gpuInstance@44,
  bDmemStack@48, profilerArgs@56
NVDM_PAYLOAD_COT = 860: version@0, size@2, gspFmcSysmemOffset@4, frtsSysmemOffset@12,
  frtsSysmemSize@20, frtsVidmemOffset@24, frtsVidmemSize@32, hash384@36, publicKey@84,
  signature@468, gspBootArgsSysmemOffset@852
NVDM_PAYLOAD_COMMAND_RESPONSE = 12: taskId@0, commandNvdmType@4, errorCode@8
msgqTxHeader = 32: version@0, size@4, msgSize@8, msgCount@12, writePtr@16, flags@20,
  rxHdrOff@24, entryOff@28
msgqRxHeader = 4: readPtr@0
GSP_MSG_QUEUE_ELEMENT = 80: authTagBuffer@0, aadBuffer@16, checkSum@32, seqNum@36, elemCount@40,
  rpc@48
rpc_unloading_guest_driver_v1F_07 = 8: bInPMTransition@0, bGc6Entering@1, newLevel@4
rpc_os_error_log_v17_00 = 272: exceptType@0, runlistId@4, chid@8, errString@12,
  preemptiveRemovalPreviousXid@268
rpc_run_cpu_sequencer_v17_00 = 40: bufferSizeDWord@0, cmdIndex@4, regSaveArea@8
PACKED_REGISTRY_ENTRY = 16: nameOffset@0, type@4, data@8, length@12
PACKED_REGISTRY_TABLE = 8: size@0, numEntries@4
BUSINFO = 10: deviceID@0, vendorID@2, subdeviceID@4, subvendorID@6, revisionID@8
DOD_METHOD_DATA = 72: status@0, acpiIdListLen@4, acpiIdList@8
JT_METHOD_DATA = 12: status@0, jtCaps@4, jtRevId@8, bSBIOSCaps@10
MUX_METHOD_DATA_ELEMENT = 12: acpiId@0, mode@4, status@8
MUX_METHOD_DATA = 580: tableLen@0, acpiIdMuxModeTable@4, acpiIdMuxPartTable@196,
  acpiIdMuxStateTable@388
CAPS_METHOD_DATA = 8: status@0, optimusCaps@4
ACPI_METHOD_DATA = 676: bValid@0, dodMethodData@4, jtMethodData@76, muxMethodData@88,
  capsMethodData@668
GSP_VF_INFO = 40: totalVFs@0, firstVFOffset@4, FirstVFBar0Address@8, FirstVFBar1Address@16,
  FirstVFBar2Address@24, b64bitBar0@32, b64bitBar1@33, b64bitBar2@34
GspSystemInfo = 928: gpuPhysAddr@0, gpuPhysFbAddr@8, gpuPhysInstAddr@16, gpuPhysIoAddr@24,
  nvDomainBusDeviceFunc@32, simAccessBufPhysAddr@40, notifyOpSharedSurfacePhysAddr@48,
  pcieAtomicsOpMask@56, consoleMemSize@64, maxUserVa@72, pciConfigMirrorBase@80,
  pciConfigMirrorSize@84, PCIDeviceID@88, PCISubDeviceID@92, PCIRevisionID@96,
  pcieAtomicsCplDeviceCapMask@100, oorArch@104, clPdbProperties@112, Chipset@120,
  bGpuBehindBridge@124, bFlrSupported@125, b64bBar0Supported@126, bMnocAvailable@127,
  chipsetL1ssEnable@128, bUpstreamL0sUnsupported@132, bUpstreamL1Unsupported@133,
  bUpstreamL1PorSupported@134, bUpstreamL1PorMobileOnly@135, bSystemHasMux@136,
  upstreamAddressValid@137, FHBBusInfo@138, chipsetIDInfo@148, acpiMethodData@160,
  hypervisorType@836, bIsPassthru@840, sysTimerOffsetNs@848, gspVFInfo@856, bIsPrimary@896,
  isGridBuild@897, gridBuildCsp@904, bPreserveVideoMemoryAllocations@908,
  bTdrEventSupported@909, bFeatureStretchVblankCapable@910,
  bEnableDynamicGranularityPageArrays@911, bClockBoostSupported@912, bRouteDispIntrsToCPU@913,
  hostPageSize@920
RM_RISCV_UCODE_DESC = 84: version@0, bootloaderOffset@4, bootloaderSize@8,
  bootloaderParamOffset@12, bootloaderParamSize@16, riscvElfOffset@20, riscvElfSize@24,
  appVersion@28, manifestOffset@32, manifestSize@36, monitorDataOffset@40, monitorDataSize@44,
  monitorCodeOffset@48, monitorCodeSize@52, bIsMonitorEnabled@56, swbromCodeOffset@60,
  swbromCodeSize@64, swbromDataOffset@68, swbromDataSize@72, fbReservedSize@76, bSignedAsCode@80
"""
_ENTRIES = re.findall(r"^(\w+) = (\d+): ((?:.|\n )+)", _LAYOUTS, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "size", "members"), _ENTRIES, ids=[entry[0] for entry in _ENTRIES]
)
def test_layout_is_the_compilers(name: str, size: str, members: str) -> None:
    """Each structure has the size, and each member the offset, that the compiler gave."""
    struct = getattr(gsp, name, None) or getattr(ucode, name)
    assert ctypes.sizeof(struct) == int(size)
    for member, offset in re.findall(r"(\w+)@(\d+)", members):
        assert getattr(struct, member).offset == int(offset), member


def test_all_structures_of_the_queues_and_the_boot_are_compared() -> None:
    """None is forgotten but those that no header of that tag names."""
    known = {entry[0] for entry in _ENTRIES} | {"GSP_PROFILER_ARGS", "rpc_message_header_v03_00"}
    found = {
        name
        for name, value in vars(gsp).items()
        if isinstance(value, type) and issubclass(value, ctypes.Structure)
    }
    assert found == known - {"RM_RISCV_UCODE_DESC"}


def test_the_message_header_is_eight_words() -> None:
    """As rpc_message_header_v03_00, whose union is one word."""
    assert ctypes.sizeof(gsp.rpc_message_header_v03_00) == 32
    assert gsp.GSP_MSG_QUEUE_ELEMENT.rpc.offset == gsp.GSP_MSG_QUEUE_ELEMENT_HDR_SIZE

"""Every module of autogen/ and where it comes from."""

from __future__ import annotations

from typing import Final

from .amd_names import (
    GC_NAMES,
    GC_NAMES_9,
    GC_NAMES_10,
    GC_NAMES_11,
    GC_NAMES_12,
    HDP_NAMES,
    MP_NAMES,
    NBIO_NAMES,
    NBIO_NAMES_2,
    NBIO_NAMES_APU,
    OSSSYS_NAMES,
    SDMA_4_NAMES,
    SDMA_PACKETS,
    SDMA_PACKETS_10,
    SMUIO_NAMES,
    VM_NAMES,
)
from .recipe import Adreno, Constants, Counters, CTypes, Package, Pm4, Recipe, Registers, Sdma

KERNEL: Final = "6.12.117-1~deb12u1"
UAPI: Final = Package(
    "linux-headers-6.12.117+deb12-common",
    KERNEL,
    "0c70107dda266a9d26dc119d80a71589202b17fbf4d4ddf544681c89e2002742",
    "usr/src/linux-headers-6.12.117+deb12-common/include/uapi",
)
SOURCE: Final = Package(
    "linux-source-6.12",
    KERNEL,
    "e849faf31ca3555757f3a8877cb01af92122f744f75d1f3102734651c4e14703",
    "linux-source-6.12/drivers/gpu/drm/amd",
    inner="usr/src/linux-source-6.12.tar.xz",
)
HSA: Final = Package(
    "libhsa-runtime-dev",
    "5.2.3-3",
    "7b5d021c2718818d597cd9439581757931ecdc8e346c1f5e7aab664793b53fb0",
    "usr/include/hsa",
)
OPENCL: Final = Package(
    "opencl-c-headers",
    "3.0~2023.02.06-1",
    "81fedfd0a14a0694c4f6097faea417e1d9afc0c80cb41aa9e7b65e2c51f5fc4b",
    "usr/include",
)
LLVM: Final = Package(
    "llvm-19-dev",
    "1:19.1.7-3~deb12u1",
    "05d3347ff02b6d55189f1e4ab5e946d3713677a04588a775100f218a349d02cf",
    "usr/include/llvm-19/llvm/Support",
)

MESA: Final = Package(
    "mesa",
    "25.0.7-2+deb13u1",
    "592272df3cf01e85e7db300c449df5061092574d099da275d19e97ef0510f8a6",
    "mesa-25.0.7/src/freedreno",
    suite="trixie",
    source="mesa_25.0.7.orig.tar.xz",
)

_EVERY_UAPI: Final = ("linux/", "asm-generic/", "drm/")

_INTERFACES: Final[tuple[Recipe, ...]] = (
    CTypes(
        module="kfd",
        about="AMD's compute driver /dev/kfd: calls, events, queues, memory flags.",
        package=UAPI,
        headers=("linux/kfd_ioctl.h",),
        include=(".",),
        extract=_EVERY_UAPI,
        # What linux/compiler_types.h, which is no part of the interface, would say.
        defines=("__user=",),
        structs=("kfd_(?!.*(dbg|criu)).*",),
        constants=(
            "AMDKFD_IOC_(?!DBG|CRIU).*",
            "KFD_IOCTL_(MAJOR|MINOR)_VERSION",
            "KFD_IOC_(?!DBG).*",
            "KFD_IOCTL_SVM_.*",
            "KFD_(MAX|MIN)_.*",
            "KFD_(SIGNAL_EVENT_LIMIT|INVALID_FD|HW_EXCEPTION_.*|MEM_ERR_.*)",
            "KFD_MMIO_REMAP_.*",
            "KFD_SMI_EVENT_(?!NONE).*",
            "KFD_RUNTIME_ENABLE_MODE_.*",
        ),
    ),
    CTypes(
        module="amdgpu_drm",
        about="AMD's render nodes /dev/dri/renderD*: version, information, memory objects.",
        package=UAPI,
        headers=("drm/drm.h", "drm/amdgpu_drm.h"),
        include=(".",),
        extract=_EVERY_UAPI,
        defines=("__user=",),
        structs=(
            "drm_(version|gem_close|prime_handle)",
            "drm_amdgpu_(gem_.*|info.*|memory_info|heap_info|query_fw|ctx.*)",
        ),
        constants=(
            "DRM_IOCTL_(VERSION|GEM_CLOSE|PRIME_.*)",
            "DRM_IOCTL_AMDGPU_(INFO|GEM_.*|CTX)",
            "DRM_COMMAND_BASE",
            "AMDGPU_(INFO|GEM|VM|CTX|HW_IP|IDS|FAMILY|VRAM_TYPE)_.*",
        ),
    ),
    CTypes(
        module="vfio",
        about="VFIO: PCI devices in the hands of a process.",
        package=UAPI,
        headers=("linux/vfio.h",),
        include=(".",),
        extract=_EVERY_UAPI,
        defines=("__user=",),
        structs=(
            "vfio_(group_status|device_info|region_info|irq_info|irq_set|pci_hot_reset.*)",
            "vfio_pci_dependent_device",
            "vfio_device_(bind_iommufd|attach_iommufd_pt|detach_iommufd_pt)",
            "vfio_iommu_type1_(info|dma_map|dma_unmap)",
        ),
        constants=(
            "VFIO_(API_VERSION|CHECK_EXTENSION|TYPE1(v2)?_IOMMU|NOIOMMU_IOMMU|TYPE|BASE)",
            "VFIO_(GET|SET|GROUP|DEVICE|IRQ|REGION_INFO_FLAG)_(?!FEATURE|STATE|API).*",
            "VFIO_PCI_.*",
            "VFIO_IOMMU_(GET_INFO|MAP_DMA|UNMAP_DMA)",
            "VFIO_(IOMMU_INFO|DMA_MAP|DMA_UNMAP)_FLAG_.*",
        ),
    ),
    CTypes(
        module="iommufd",
        about="IOMMUFD: address spaces of devices, which VFIO devices attach to.",
        package=UAPI,
        headers=("linux/iommufd.h",),
        include=(".",),
        extract=_EVERY_UAPI,
        structs=(
            "iommu_(destroy|hw_info|iova_range|option)",
            "iommu_ioas_(alloc|iova_ranges|map|copy|unmap)",
        ),
        constants=(
            "IOMMU_(DESTROY|OPTION|GET_HW_INFO)",
            "IOMMU_IOAS_(ALLOC|IOVA_RANGES|MAP|COPY|UNMAP|MAP_.*)",
            "IOMMU_OPTION_.*",
        ),
    ),
    CTypes(
        module="hsa",
        about="HSA queues, signals and the packets of AQL, as AMD's hardware reads them.",
        package=HSA,
        headers=("hsa.h", "amd_hsa_common.h", "amd_hsa_queue.h", "amd_hsa_signal.h"),
        include=(".",),
        # 64-bit pointers, whatever the compiler says of its target.
        defines=("HSA_LARGE_MODEL=1",),
        structs=(
            "hsa_(queue|signal|kernel_dispatch_packet|barrier_and_packet|barrier_or_packet)_t",
            "hsa_agent_dispatch_packet_t",
            "amd_(queue|signal)_t",
        ),
        constants=(
            "HSA_(PACKET_TYPE|PACKET_HEADER|FENCE_SCOPE|QUEUE_TYPE|QUEUE_FEATURE)_.*",
            "HSA_KERNEL_DISPATCH_PACKET_SETUP_.*",
            "AMD_(QUEUE_PROPERTIES|SIGNAL_KIND)_.*",
        ),
    ),
    CTypes(
        module="amdhsa",
        about="The kernel descriptor of AMD code objects, and the bit fields in it.",
        package=LLVM,
        headers=("AMDHSAKernelDescriptor.h",),
        include=(),
        language="c++",
        structs=("kernel_descriptor_t",),
        constants=(),
        bits=r"  (COMPUTE_PGM_RSRC\w+|KERNEL_CODE_PROPERTY|KERNARG_PRELOAD_SPEC)"
        r"\((\w+), (\d+), (\d+)\)",
    ),
    CTypes(
        module="kgsl",
        about="Qualcomm's graphics driver /dev/kgsl-3d0: calls, memory, contexts, faults.",
        package=MESA,
        headers=("vulkan/msm_kgsl.h",),
        include=(),
        defines=("__user=", "__kernel_size_t=__SIZE_TYPE__"),
        structs=("kgsl_.*",),
        constants=("IOCTL_KGSL_.*", "KGSL_.*"),
    ),
    Constants(
        module="opencl",
        about="OpenCL 3.0: error codes, what can be asked of devices, flags of memory and queues.",
        package=OPENCL,
        headers=("CL/cl.h", "CL/cl_ext.h"),
        names=(
            "CL_(SUCCESS|TRUE|FALSE)",
            # Error codes.
            "CL_(INVALID|OUT_OF|MISALIGNED|EXEC_STATUS_ERROR|IMAGE_FORMAT)_.*",
            "CL_.*_(FAILURE|NOT_FOUND|NOT_FOUND_KHR|NOT_AVAILABLE|NOT_SUPPORTED|UNAVAILABLE)",
            "CL_(COMPILE|LINK|DEVICE_PARTITION)_.*FAILED",
            "CL_MEM_COPY_OVERLAP",
            "CL_PLATFORM_(VERSION|NAME|VENDOR)",
            "CL_DEVICE_TYPE_.*",
            "CL_DEVICE_(TYPE|NAME|VENDOR|VERSION|EXTENSIONS)",
            "CL_DEVICE_(MAX_COMPUTE_UNITS|MAX_MEM_ALLOC_SIZE|MAX_WORK_GROUP_SIZE)",
            "CL_DEVICE_LOCAL_MEM_(SIZE|TYPE)",
            "CL_LOCAL",
            "CL_DEVICE_(GLOBAL_MEM_SIZE|HOST_UNIFIED_MEMORY|ENDIAN_LITTLE)",
            "CL_DEVICE_(COMPILER_AVAILABLE|MEM_BASE_ADDR_ALIGN)",
            "CL_DEVICE_(SINGLE|DOUBLE)_FP_CONFIG",
            "CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT",
            "CL_DRIVER_VERSION",
            "CL_FP_.*",
            "CL_DEVICE_(IMAGE_SUPPORT|IMAGE2D_MAX_(WIDTH|HEIGHT))",
            "CL_DEVICE_IMAGE_(PITCH|BASE_ADDRESS)_ALIGNMENT",
            "CL_DEVICE_QUEUE_ON_HOST_PROPERTIES",
            "CL_MEM_(READ_WRITE|USE_HOST_PTR|TYPE|SIZE|CONTEXT)",
            "CL_MEM_OBJECT_(BUFFER|IMAGE2D)",
            "CL_IMAGE_(FORMAT|WIDTH|HEIGHT)",
            "CL_(RGBA|HALF_FLOAT|FLOAT)",
            "CL_BUFFER_CREATE_TYPE_REGION",
            "CL_QUEUE_(PROFILING_ENABLE|OUT_OF_ORDER_EXEC_MODE_ENABLE)",
            "CL_PROGRAM_(BINARIES|BINARY_SIZES|BUILD_LOG)",
            "CL_PROFILING_COMMAND_(QUEUED|START|END)",
        ),
    ),
)


# The kernel's own names of types, which its headers for inside do not include.
_KERNEL_TYPES: Final = (
    *(
        f"{sign}int{bits}_t=__{sign.upper()}INT{bits}_TYPE__"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    ),
    *(f"u{bits}=__UINT{bits}_TYPE__" for bits in (8, 16, 32, 64)),
    "bool=_Bool",
)


def _firmware() -> tuple[Recipe, ...]:
    """What a card's own tables, its firmware files and its security processor look like."""
    return (
        CTypes(
            module="amd/discovery",
            about="The table in which a chip of AMD's says what blocks it has, and where.",
            package=SOURCE,
            headers=("include/discovery.h",),
            include=(".",),
            defines=(*_KERNEL_TYPES, "__packed=", "DECLARE_FLEX_ARRAY(type,name)=type(name)"),
            structs=(
                "table_info|binary_header|die_info|ip_discovery_header|die_header",
                "gpu_info_header|gc_info_v[12]_0",
                "harvest_info_header|harvest_info",
            ),
            constants=(".*_SIGNATURE", "GC_TABLE_ID"),
        ),
        CTypes(
            module="amd/amdgpu_ucode",
            about="Headers of AMD's firmware files.",
            package=SOURCE,
            headers=("amdgpu/amdgpu_ucode.h",),
            include=("amdgpu",),
            extract=("amdgpu/amdgpu_socbb.h",),
            # What the driver's own part of the header needs; any structure does for its lock.
            defines=(*_KERNEL_TYPES, "mutex=common_firmware_header", "__printf(a,b)="),
            structs=(
                "common_firmware_header|smc_firmware_header_v1_0|psp_fw_bin_desc",
                "(psp|gfx)_firmware_header_v2_0|psp_firmware_header_v2_1",
                "rlc_firmware_header_v2_[1-4]|imu_firmware_header_v1_0",
                "sdma_firmware_header_v[23]_0",
            ),
            constants=("PSP_FW_TYPE_.*",),
        ),
        CTypes(
            module="amd/psp_gfx_if",
            about="Commands of AMD's security processor: its ring, and what it is asked there.",
            package=SOURCE,
            headers=("amdgpu/psp_gfx_if.h",),
            include=("amdgpu",),
            defines=_KERNEL_TYPES,
            structs=("psp_gfx_(cmd_resp|rb_frame)",),
            constants=("GFX_(CTRL_)?CMD_ID_.*", "GFX_FLAG_.*", "GFX_FW_TYPE_.*", "TEE_.*"),
        ),
        *(
            CTypes(
                module=f"amd/v{major}_structs",
                about=f"What a compute queue of GFX{major} keeps in memory (MQD).",
                package=SOURCE,
                headers=(f"include/v{major}_structs.h",),
                include=("include",),
                defines=_KERNEL_TYPES,
                structs=(f"v{major}_compute_mqd",),
                constants=(),
            )
            for major in (11, 12)
        ),
    )


def _packets() -> tuple[Recipe, ...]:
    return (
        Pm4(
            module="amd/pm4_gfx9",
            about="PM4 packets of GFX9 (CDNA among them).",
            package=SOURCE,
            headers=("amdgpu/soc15d.h", "include/vega10_enum.h"),
        ),
        Pm4(
            module="amd/pm4_gfx10",
            about="PM4 packets of GFX10 and later.",
            package=SOURCE,
            headers=("amdgpu/nvd.h", "include/soc21_enum.h"),
        ),
        *(
            Sdma(
                module=f"amd/sdma_packets_v{version}",
                about=f"Packets of the copy engine, {about}.",
                package=SOURCE,
                headers=(f"amdgpu/{header}_pkt_open.h",),
                packets=packets,
            )
            # Which driver uses which header: the includes of amdgpu/sdma_v*.c.
            for version, header, packets, about in (
                (4, "vega10_sdma", SDMA_PACKETS, "version 4 (GFX9)"),
                (5, "navi10_sdma", SDMA_PACKETS_10, "version 5 (GFX10)"),
                (6, "sdma_v6_0_0", SDMA_PACKETS_10, "versions 6 and 7 (GFX11, GFX12)"),
            )
        ),
        *(
            Counters(
                module=f"amd/counters_{header}",
                about=f"What performance counters of {generation} count, as rocprof calls it.",
                package=SOURCE,
                headers=(f"include/{header}_enum.h",),
                blocks=("SQ", "GL2C"),
            )
            for header, generation in (("soc21", "GFX11"), ("soc24", "GFX12"))
        ),
    )


# block, its folder in include/asic_reg, version, registers
_BLOCKS: Final = (
    ("gc", "gc", "9_4_3", (*GC_NAMES, *VM_NAMES, *GC_NAMES_9)),
    ("gc", "gc", "10_3_0", (*GC_NAMES, *VM_NAMES, *GC_NAMES_10)),
    ("gc", "gc", "11_0_0", (*GC_NAMES, *VM_NAMES, *GC_NAMES_11)),
    ("gc", "gc", "11_0_3", (*GC_NAMES, *VM_NAMES, *GC_NAMES_11)),
    ("gc", "gc", "12_0_0", (*GC_NAMES, *VM_NAMES, *GC_NAMES_12)),
    ("sdma", "sdma", "4_4_2", SDMA_4_NAMES),
    ("mmhub", "mmhub", "1_8_0", VM_NAMES),
    ("mmhub", "mmhub", "3_0_0", VM_NAMES),
    ("mmhub", "mmhub", "3_0_2", VM_NAMES),
    ("mmhub", "mmhub", "4_1_0", VM_NAMES),
    ("nbio", "nbio", "2_3", NBIO_NAMES_2),
    ("nbio", "nbio", "4_3_0", NBIO_NAMES),
    ("nbio", "nbio", "7_7_0", NBIO_NAMES_APU),
    ("nbio", "nbio", "7_9_0", NBIO_NAMES),
    ("nbio", "nbio", "7_11_0", NBIO_NAMES_APU),
    ("nbif", "nbif", "6_3_1", NBIO_NAMES),
    ("hdp", "hdp", "4_4_2", HDP_NAMES),
    ("hdp", "hdp", "5_0_0", HDP_NAMES),
    ("hdp", "hdp", "6_0_0", HDP_NAMES),
    ("hdp", "hdp", "7_0_0", HDP_NAMES),
    ("osssys", "oss", "4_4_2", OSSSYS_NAMES),
    ("osssys", "oss", "6_0_0", OSSSYS_NAMES),
    ("osssys", "oss", "7_0_0", OSSSYS_NAMES),
    ("smuio", "smuio", "13_0_6", SMUIO_NAMES),
    ("smuio", "smuio", "14_0_2", SMUIO_NAMES),
    ("mp", "mp", "13_0_0", MP_NAMES),
    ("mp", "mp", "13_0_6", MP_NAMES),
    ("mp", "mp", "14_0_2", MP_NAMES),
)
_INCOMPLETE: Final = {
    "mmhub_4_1_0": (
        "MMVM_L2_CNTL5__UTCL2_ATC_INVREQ_REPEATER_FGCG_OFF",
        "MMVM_L2_CNTL5__UTCL2_ONE_OUTSTANDING_ATC_INVREQ",
    )
}


def _registers(block: str, folder: str, version: str, names: tuple[str, ...]) -> Registers:
    stem = f"{block}_{version}"
    return Registers(
        module=f"amd/{stem}",
        about=f"Registers of {block.upper()} {version.replace('_', '.')}.",
        package=SOURCE,
        headers=tuple(
            f"include/asic_reg/{folder}/{stem}_{kind}.h" for kind in ("offset", "sh_mask")
        ),
        names=names,
        incomplete=_INCOMPLETE.get(stem, ()),
    )


_ADRENO: Final = Adreno(
    module="adreno_a6xx",
    about="Registers and packets of Adreno 6xx GPUs.",
    package=MESA,
    headers=(
        "registers/freedreno_copyright.xml",
        "registers/adreno/adreno_common.xml",
        "registers/adreno/adreno_pm4.xml",
        "registers/adreno/a6xx.xml",
    ),
    generation=6,
    domain="A6XX",
    opcodes="adreno_pm4_type3_packets",
    names=(r"(?!.*PERFCTR.*\[).*",),  # of counters there are hundreds, which no command sets
)

RECIPES: Final[tuple[Recipe, ...]] = (
    *_INTERFACES,
    _ADRENO,
    *_firmware(),
    *_packets(),
    *(_registers(*block) for block in _BLOCKS),
)

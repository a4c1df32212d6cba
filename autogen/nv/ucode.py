"""Containers of NVIDIA's firmware: files of linux-firmware, and ucode within a VBIOS.

By hand. From open-gpu-kernel-modules at tag 570.144: src/nvidia/arch/nvalloc/common/inc/
rmRiscvUcode.h, src/nvidia/src/kernel/gpu/gsp/{kernel_gsp_fwsec.c,kernel_gsp_booter.c}; and from
Linux's nouveau, include/nvfw/{fw.h,hs.h,flcn.h}.
"""

import ctypes
from typing import Final

from gpu.autogen.nv.layout import layout, u8, u16, u32

NVFW_BIN_MAGIC: Final = 0x10DE


@layout
class nvfw_bin_hdr(ctypes.Structure):
    """Of a file: offsets and sizes of its header, and of its data."""

    bin_magic: u32
    bin_ver: u32
    bin_size: u32
    header_offset: u32
    data_offset: u32
    data_size: u32


@layout
class RM_RISCV_UCODE_DESC(ctypes.Structure):
    """Of a RISC-V image: where its parts are."""

    version: u32
    bootloaderOffset: u32
    bootloaderSize: u32
    bootloaderParamOffset: u32
    bootloaderParamSize: u32
    riscvElfOffset: u32
    riscvElfSize: u32
    appVersion: u32
    manifestOffset: u32
    manifestSize: u32
    monitorDataOffset: u32
    monitorDataSize: u32
    monitorCodeOffset: u32
    monitorCodeSize: u32
    bIsMonitorEnabled: u32
    swbromCodeOffset: u32
    swbromCodeSize: u32
    swbromDataOffset: u32
    swbromDataSize: u32
    fbReservedSize: u32
    bSignedAsCode: u32


@layout
class nvfw_hs_header_v2(ctypes.Structure):
    """Of a file for a secure Falcon; each offset within the file is of what is meant."""

    sig_prod_offset: u32
    sig_prod_size: u32
    patch_loc: u32
    patch_sig: u32
    meta_data_offset: u32
    meta_data_size: u32
    num_sig: u32
    header_offset: u32
    header_size: u32


@layout
class nvfw_hs_load_header_v2(ctypes.Structure):
    """Which parts of the data are code and data; of each application a pair of words follows."""

    os_code_offset: u32
    os_code_size: u32
    os_data_offset: u32
    os_data_size: u32
    num_apps: u32


@layout
class nvfw_hs_load_header_v2_app(ctypes.Structure):
    """An application of `nvfw_hs_load_header_v2`."""

    offset: u32
    size: u32


@layout
class FALCON_UCODE_DESC_V3(ctypes.Structure):
    """Of ucode within a VBIOS; signatures of 384 bytes follow."""

    vDesc: u32
    StoredSize: u32
    PKCDataOffset: u32
    InterfaceOffset: u32
    IMEMPhysBase: u32
    IMEMLoadSize: u32
    IMEMVirtBase: u32
    DMEMPhysBase: u32
    DMEMLoadSize: u32
    EngineIdMask: u16
    UcodeId: u8
    SignatureCount: u8
    SignatureVersions: u16
    Reserved: u16


BCRT30_RSA3K_SIG_SIZE: Final = 384

"""Which of AMD's registers and packets the tables of autogen/amd/ hold, as patterns.

The headers name some 20,000 registers per chip. Kept is what a driver needs to bring a chip up
without the kernel's help, to run compute queues on it and to read what went wrong.
"""

from __future__ import annotations

from typing import Final

# A hub of the GPU's virtual memory; on GFX9 without GC or MM in front.
_HUB: Final = "(GC|MM)?"
VM_NAMES: Final = (
    f"{_HUB}VM_CONTEXT0_.*",
    f"{_HUB}VM_INVALIDATE_ENG\\d+_(SEM|REQ|ACK|ADDR_RANGE_(LO|HI)32)",
    f"{_HUB}VM_L2_CNTL\\d?",
    f"{_HUB}VM_L2_PROTECTION_FAULT_.*",
    f"{_HUB}VM_L2_CONTEXT(1_IDENTITY_APERTURE|_IDENTITY_PHYSICAL_OFFSET)_.*",
    f"{_HUB}VM_L2_BANK_SELECT_RESERVED_CID2?",
    f"{_HUB}MC_VM_(FB_LOCATION_(BASE|TOP)|FB_OFFSET|AGP_(BASE|BOT|TOP)|MX_L1_TLB_CNTL)",
    f"{_HUB}MC_VM_SYSTEM_APERTURE_.*",
)

# Common to all graphics cores.
GC_NAMES: Final = (
    # What a dispatch sets.
    "COMPUTE_.*",
    # A hardware queue and its descriptor in memory.
    "CP_(HQD|MQD)_.*",
    "CP_MEC_DOORBELL_RANGE_(LOWER|UPPER)",
    "SPI_COMPUTE_QUEUE_RESET",
    # State, reset, and which part of the chip an access goes to.
    "CP_STAT",
    "CP_CPC_(STATUS|BUSY_STAT|STALLED_STAT1)",
    "GRBM_(CNTL|STATUS|STATUS2|SOFT_RESET|GFX_CNTL|GFX_INDEX)",
    "SCRATCH_REG[0-7]",
    # Memory apertures of the shader cores.
    "SH_MEM_(CONFIG|BASES)",
    # The controller that loads firmware and power states.
    "RLC_(CNTL|SRM_CNTL|SPM_MC_CNTL|SAFE_MODE)",
)
GC_NAMES_9: Final = ("CP_MEC_CNTL", "CP_COHER_CNTL", "TCP_CNTL")
_RS64: Final = ("CP_MEC_RS64_CNTL", "CP_MEC_RS64_PRGRM_CNTR_START(_HI)?")
_BOOT: Final = ("RLC_RLCS_BOOTLOAD_STATUS",)
_SDMA: Final = "SDMA[01]_(CNTL|STATUS_REG|UTCL1_CNTL|UTCL1_PAGE|WATCHDOG_CNTL)"
GC_NAMES_10: Final = (
    "CP_MEC_CNTL",
    _SDMA.replace("|WATCHDOG_CNTL", ""),
    "SDMA[01]_F32_CNTL",
    "SDMA[01]_GFX_.*",
    *_BOOT,
)
# Performance counters of the shader cores and of L2.
_COUNTERS: Final = (
    "CP_PERFMON_CNTL(_1)?",
    "SQ_PERFCOUNTER\\d+_(LO|SELECT)",
    "SQ_PERFCOUNTER_CTRL2?",
    "GL2C_PERFCOUNTER\\d_(LO|HI|SELECT)",
)
GC_NAMES_11: Final = (
    *_RS64,
    *_BOOT,
    *_COUNTERS,
    "TCP_CNTL",
    _SDMA,
    "SDMA[01]_F32_CNTL",
    "SDMA[01]_QUEUE0_.*",
)
GC_NAMES_12: Final = (
    *_RS64,
    *_BOOT,
    *_COUNTERS,
    "TCP_CNTL",
    _SDMA,
    "SDMA[01]_MCU_CNTL",
    "SDMA[01]_QUEUE0_.*",
    # The driver starts these two as well, unlike on GFX11.
    "CP_(PFP|ME)_PRGRM_CNTR_START(_HI)?",
    "CP_ME_CNTL",
)
SDMA_4_NAMES: Final = (
    "SDMA_(CNTL|F32_CNTL|STATUS_REG|UTCL1_CNTL|UTCL1_PAGE|UTCL1_TIMEOUT|GFX_.*)",
)

# The bridge to the bus. Which of BX0 and BX1, and so of PF0 and PF1, is the GPU's own differs
# between versions.
_BRIDGE: Final = (
    "BIF_BX[01]_(REMAP_HDP_MEM_FLUSH_CNTL|PCIE_(INDEX|DATA)2|PCIE_INDEX2_HI)",
    "BIF_BX_PF[01]_GPU_HDP_FLUSH_(REQ|DONE)",
)
_OWN: Final = "RCC_(DOORBELL_APER_EN|CONFIG_MEMSIZE)"
NBIO_NAMES_2: Final = (
    "REMAP_HDP_MEM_FLUSH_CNTL",
    "PCIE_(INDEX|DATA)2",
    "BIF_BX_PF_GPU_HDP_FLUSH_(REQ|DONE)",
    f"RCC_DEV0_EPF0_{_OWN}",
)
NBIO_NAMES: Final = (
    *_BRIDGE,
    f"RCC_DEV0_EPF0_{_OWN}",
    "RCC_DEV0_EPF2_STRAP2",
    "(GDC_S2A0_)?S2A_DOORBELL_ENTRY_\\d+_CTRL",
    "BIF_BX_PF[01]_RSMU_(INDEX|DATA)",
)
# Of processors with graphics inside.
NBIO_NAMES_APU: Final = (*_BRIDGE, f"RCC_DEV0_EPF0_0_{_OWN}")

# The path of the host's writes to the GPU's memory.
HDP_NAMES: Final = (
    "HDP_(MISC_CNTL|HOST_PATH_CNTL)",
    "HDP_NONSURFACE_(BASE|BASE_HI|INFO)",
    "HDP_MEM_POWER_(CTRL|LS)",
    "HDP_CLK_CNTL",
)
# Interrupts.
OSSSYS_NAMES: Final = (
    "IH_RB_(CNTL|BASE|BASE_HI|RPTR|WPTR|WPTR_ADDR_LO|WPTR_ADDR_HI)(_RING1)?",
    "IH_DOORBELL_RPTR(_RING1)?",
    "IH_(CNTL|CNTL2|STATUS|CHICKEN|INT_FLOOD_CNTL|STORM_CLIENT_LIST_CNTL|MSI_STORM_CTRL)",
)
# Mailboxes of the security processor (MP0, later MPASP) and of power management (MP1).
MP_NAMES: Final = ("(MP0|MP1|MPASP)_SMN_C2PMSG_(3[2-9]|[4-9]\\d)",)
# The clock of time stamps.
SMUIO_NAMES: Final = ("GOLDEN_TSC_COUNT_(UPPER|LOWER)",)

# Every packet that a compute driver may send.
SDMA_PACKETS: Final = (
    "COPY_LINEAR",
    "COPY_BROADCAST_LINEAR",
    "WRITE_UNTILED",
    "PTEPDE_(COPY|RMW)",
    "WRITE_INCR",
    "INDIRECT",
    "FENCE",
    "SRBM_WRITE",
    "COND_EXE",
    "CONSTANT_FILL",
    "POLL_REGMEM",
    "POLL_(REG_WRITE_MEM|MEM_VERIFY)",
    "ATOMIC",
    "TIMESTAMP_(SET|GET|GET_GLOBAL)",
    "TRAP",
    "NOP",
)
SDMA_PACKETS_10: Final = (*SDMA_PACKETS, "GCR_REQ", "GPUVM_INV")

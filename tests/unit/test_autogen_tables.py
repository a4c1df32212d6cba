"""The generated tables of AMD's registers and packets.

What they are compared with was written by hand, from what drivers for these chips use.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

AMD: Final = Path(__file__).resolve().parents[2] / "autogen/amd"


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"gpu.autogen.amd.{name}")


# register: offset/segment in GC 11.0.0 and in 12.0.0; - where the chip lacks it
GC_REGISTERS: Final = """
GCVM_CONTEXT0_CNTL 1688/0 1624/0
GCVM_CONTEXT0_PAGE_TABLE_BASE_ADDR_LO32 16f3/0 168f/0
GCVM_INVALIDATE_ENG0_ADDR_RANGE_LO32 16cf/0 166b/0
GCVM_INVALIDATE_ENG17_REQ 16bc/0 1658/0
GCVM_L2_CNTL5 15da/0 15e3/0
GCMC_VM_FB_LOCATION_BASE 1678/0 1614/0
GCVM_L2_PROTECTION_FAULT_STATUS 15c8/0 -
GCVM_L2_PROTECTION_FAULT_STATUS_LO32 - 15d0/0
CP_STAT f40/0 f40/0
RLC_RLCS_BOOTLOAD_STATUS 4e82/1 4e7c/1
RLC_SAFE_MODE 980/1 980/1
GRBM_GFX_CNTL 900/1 900/1
SH_MEM_CONFIG 9e4/1 9e4/1
TCP_CNTL 19a2/1 19a2/1
CP_MEC_RS64_CNTL 2904/1 2904/1
CP_MQD_BASE_ADDR 1fa9/0 1fa9/0
CP_HQD_ACTIVE 1fab/0 1fab/0
CP_HQD_PQ_DOORBELL_CONTROL 1fb8/0 1fb8/0
CP_HQD_PQ_WPTR_HI 1fe0/0 1fe0/0
SPI_COMPUTE_QUEUE_RESET 1f73/0 1f73/0
SCRATCH_REG7 2047/1 2047/1
SDMA0_QUEUE0_RB_CNTL 80/0 80/0
SDMA0_QUEUE0_DOORBELL_OFFSET ab/0 91/0
SDMA0_F32_CNTL 589a/1 -
SDMA0_MCU_CNTL - 588e/1
COMPUTE_DISPATCH_INITIATOR 1ba0/0 1ba0/0
COMPUTE_START_X 1ba4/0 1ba4/0
COMPUTE_PGM_LO 1bac/0 1bac/0
COMPUTE_DISPATCH_SCRATCH_BASE_LO 1bb0/0 1bb0/0
COMPUTE_PGM_RSRC1 1bb2/0 1bb2/0
COMPUTE_TMPRING_SIZE 1bb8/0 1bb8/0
COMPUTE_PGM_RSRC3 1bc8/0 1bc8/0
COMPUTE_USER_DATA_0 1be0/0 1be0/0
"""
OTHER_REGISTERS: Final = """
mmhub_3_0_0 MMMC_VM_FB_LOCATION_BASE 8ec/0
mmhub_3_0_0 MMVM_INVALIDATE_ENG17_SEM 762/0
mmhub_4_1_0 MMVM_INVALIDATE_ENG17_ACK 5aa/0
mmhub_4_1_0 MMVM_L2_BANK_SELECT_RESERVED_CID2 500/0
osssys_6_0_0 IH_RB_CNTL 80/0
osssys_6_0_0 IH_MSI_STORM_CTRL f1/0
mp_13_0_0 MP0_SMN_C2PMSG_81 91/0
mp_13_0_0 MP1_SMN_C2PMSG_90 29a/0
mp_14_0_2 MPASP_SMN_C2PMSG_35 63/0
mp_14_0_2 MP1_SMN_C2PMSG_90 9a/1
nbio_4_3_0 RCC_DEV0_EPF0_RCC_CONFIG_MEMSIZE c3/2
"""


def _registers() -> Iterator[tuple[str, str, str]]:
    for line in GC_REGISTERS.strip().split("\n"):
        name, *places = line.split()
        yield from (
            (block, name, place)
            for block, place in zip(("gc_11_0_0", "gc_12_0_0"), places, strict=True)
        )
    for line in OTHER_REGISTERS.strip().split("\n"):
        block, name, place = line.split()
        yield block, name, place


def test_registers_are_where_drivers_find_them() -> None:
    for block, name, place in _registers():
        register = _module(f"{block}").REGISTERS.get(name)
        if place == "-":
            assert register is None, f"{block} {name}"
        else:
            offset, segment = place.split("/")
            assert register[:2] == (int(segment), int(offset, 16)), f"{block} {name}"


def test_fields_of_registers() -> None:
    gfx11 = _module("gc_11_0_0").REGISTERS
    assert gfx11["COMPUTE_PGM_RSRC1"][2]["FLOAT_MODE"] == (12, 8)
    assert gfx11["COMPUTE_PGM_RSRC2"][2]["LDS_SIZE"] == (15, 9)
    assert gfx11["COMPUTE_DISPATCH_INITIATOR"][2]["CS_W32_EN"] == (15, 1)
    assert gfx11["COMPUTE_TMPRING_SIZE"][2] == {"WAVES": (0, 12), "WAVESIZE": (12, 15)}
    assert gfx11["CP_HQD_PQ_DOORBELL_CONTROL"][2]["DOORBELL_OFFSET"] == (2, 26)
    assert gfx11["GCVM_L2_PROTECTION_FAULT_STATUS"][2]["VMID"] == (20, 4)
    gfx9 = _module("gc_9_4_3").REGISTERS
    assert gfx9["COMPUTE_PGM_RSRC1"][:2] == (0, 0xE12)


REGISTER_TABLES: Final = sorted(
    path.stem for path in AMD.glob("*.py") if "\nREGISTERS: dict" in path.read_text()
)


@pytest.mark.parametrize("name", REGISTER_TABLES)
def test_fields_lie_in_32_bits_and_do_not_overlap(name: str) -> None:
    for register, (segment, offset, fields) in _module(name).REGISTERS.items():
        used = 0
        for field, (low, width) in fields.items():
            bits = (1 << width) - 1 << low
            assert width > 0 and not bits >> 32, f"{register}.{field}"
            assert not used & bits, f"{register}.{field} overlaps"
            used |= bits
        assert segment >= 0 and 0 <= offset < 1 << 32, register


# opcode@number
OPCODES: Final = """
NOP@10 SET_BASE@11 DISPATCH_DIRECT@15 DISPATCH_INDIRECT@16 ATOMIC_MEM@1e PRED_EXEC@23
WRITE_DATA@37 WAIT_REG_MEM@3c INDIRECT_BUFFER@3f COPY_DATA@40 EVENT_WRITE@46
RELEASE_MEM@49 DMA_DATA@50 ACQUIRE_MEM@58 SET_SH_REG@76 SET_SH_REG_OFFSET@77
SET_UCONFIG_REG@79 WAIT_REG_MEM64@93
"""


def test_pm4_packets() -> None:
    pm4 = _module("pm4_gfx10")
    for name, opcode in re.findall(r"(\w+)@(\w+)", OPCODES):
        assert getattr(pm4, f"PACKET3_{name}") == int(opcode, 16)
    assert pm4.VALUES["SET_SH_REG"] == {"START": 0x2C00, "END": 0x3000}
    assert pm4.VALUES["INDIRECT_BUFFER"]["VALID"] == 1 << 23
    assert pm4.VALUES["RELEASE_MEM"]["GCR_GL2_WB"] == 1 << 21
    assert pm4.FIELDS["RELEASE_MEM"]["DATA_SEL"] == 29
    assert pm4.FIELDS["ACQUIRE_MEM"]["GCR_CNTL_SEQ"] == 16
    events = {"CS_PARTIAL_FLUSH": 7, "CACHE_FLUSH_AND_INV_TS_EVENT": 0x14, "CS_DONE": 0x2F}
    assert events.items() <= pm4.EVENTS.items()
    gfx9 = _module("pm4_gfx9")
    assert gfx9.VALUES["RELEASE_MEM"]["EOP_TC_WB_ACTION_EN"] == 1 << 15
    assert events.items() <= gfx9.EVENTS.items()


def test_packets_of_the_copy_engine() -> None:
    numbers = {"COPY": 1, "WRITE": 2, "INDIRECT": 4, "FENCE": 5, "TRAP": 6, "POLL_REGMEM": 8}
    for version, count_width in ((4, 22), (5, 22), (6, 30)):
        sdma = _module(f"sdma_packets_v{version}")
        assert {name: getattr(sdma, f"SDMA_OP_{name}") for name in numbers} == numbers
        assert sdma.PACKETS["COPY_LINEAR"]["COUNT.count"] == (1, 0, count_width)
        assert sdma.PACKETS["COPY_LINEAR"]["DST_ADDR_HI.dst_addr_63_32"] == (6, 0, 32)
        assert sdma.PACKETS["POLL_REGMEM"]["HEADER.hdp_flush"] == (0, 26, 1)
        assert sdma.PACKETS["POLL_REGMEM"]["DW5.retry_count"] == (5, 16, 12)
        assert sdma.PACKETS["FENCE"]["DATA.data"] == (3, 0, 32)
    assert _module("sdma_packets_v6").PACKETS["FENCE"]["HEADER.mtype"] == (0, 16, 3)
    assert _module("sdma_packets_v6").GCR_CONTROL["GL2_RANGE"] == (11, 2)

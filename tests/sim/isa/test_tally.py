"""What waves count of themselves: instructions by kind, and conflicts of the banks of LDS."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from gpu.sim.isa.tally import KINDS, new_tally
from sim.isa.asm import END, V, op
from sim.isa.bare import run_asm

BANKS, LDS = 32, 16 << 10
LOAD = (
    op("s_load_b64", sdata=10, sbase=0)
    + op("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)
    + op("global_load_b32", vdst=2, addr=1, saddr=10)
)
"""A dword for each work-item, into v2."""


@pytest.fixture(autouse=True)
def needs_llvm(need: Callable[[str], None]) -> None:
    need("llvmlite")


def counted(text: bytes, lanes: int, args: list[npt.NDArray[np.uint32]]) -> dict[str, int]:
    """What one group of ``lanes`` work-items counts."""
    tally = new_tally()
    run_asm(
        *(text, (1, 1, 1), (lanes, 1, 1), args),
        lds=LDS,
        dispatch=lambda usual: replace(usual, tally=tally.ctypes.data),
    )
    return {kind: int(count) for kind, count in zip(KINDS, tally, strict=True)}


def conflicts(addresses: npt.NDArray[np.uint32], dwords: int) -> int:
    """Cycles beyond the first of each part of a wave that LDS serves at a time."""
    part, cycles = {1: 32, 2: 16, 4: 8}[dwords], 0
    for start in range(0, len(addresses), part):
        firsts = {int(each) // 4 for each in addresses[start : start + part]}
        banks = [(first + n) % BANKS for first in firsts for n in range(dwords)]
        cycles += max((banks.count(bank) for bank in set(banks)), default=1) - 1
    return cycles


@pytest.mark.parametrize("dwords", [1, 2, 4])
def test_conflicts_of_banks(dwords: int) -> None:
    rng = np.random.default_rng([dwords, 5])
    for lanes in (1, 17, 32, 64, 90):
        places = rng.integers(0, rng.choice((4, 64, LDS // (4 * dwords))), lanes)
        addresses = (places * 4 * dwords).astype(np.uint32)
        text = LOAD + op(f"ds_load_b{32 * dwords}", vdst=4, addr=2) + END
        found = counted(text, lanes, [addresses])
        waves = [addresses[at : at + 32] for at in range(0, lanes, 32)]
        assert found["lds_conflicts"] == sum(conflicts(wave, dwords) for wave in waves)
        assert (found["lds"], found["valu"], found["smem"]) == (len(waves),) * 3
        assert found["others"] == 2 * len(waves)  # the load of global memory, the end


def test_loops_count_each_time() -> None:
    times = random.Random(3).randint(2, 60)
    text = op("s_mov_b32", sdst=4, ssrc0=128) + op("v_mov_b32", vdst=1, src0=128)
    loop = op("v_add_nc_u32", vdst=1, src0=V, vsrc1=1)
    loop += op("s_add_u32", sdst=4, ssrc0=4, ssrc1=129)
    loop += op("s_cmp_lg_u32", ssrc0=4, ssrc1=128 + times)
    back = op("s_cbranch_scc1", simm16=-(len(loop) // 4 + 1) & 0xFFFF)
    text += loop + back + END
    found = counted(text, 32, [])
    assert (found["valu"], found["salu"]) == (1 + times, 1 + 2 * times)
    assert found["others"] == times + 1

"""The entry for machine code of others."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from gpu.core.errors import InvalidValue, Unsupported
from gpu.sim.asm import Range, run_asm
from gpu.sim.isa.faults import WaveFault
from sim.isa.asm import END, op

# out[work-item] = workgroup id, whose register depends on how many user SGPRs there are.
LOAD = op("s_load_b64", sdata=10, sbase=0) + op("v_lshlrev_b32", vdst=1, src0=130, vsrc1=0)


def code(register: int) -> bytes:
    value = op("v_mov_b32", vdst=2, src0=register)
    return LOAD + value + op("global_store_b32", addr=1, data=2, saddr=10) + END


@pytest.mark.parametrize(("rsrc2", "register"), [(0x80, 2), (0x80 | 5 << 1, 5)])
def test_code_and_arguments_by_address(rsrc2: int, register: int) -> None:
    out = np.zeros(32, np.uint32)
    text, args = code(register), np.array([out.ctypes.data], np.uint64)
    placed = ctypes.create_string_buffer(text, len(text))
    where = ctypes.addressof(placed)
    run_asm(where, len(text), (3, 1, 1), (32, 1, 1), args.ctypes.data, rsrc2=rsrc2)
    assert set(out) <= {0, 1, 2} and len(set(out)) == 1


def test_only_what_is_in_ranges_may_be_accessed() -> None:
    out = np.zeros(32, np.uint32)
    text, args = code(2), np.array([out.ctypes.data], np.uint64).tobytes()
    allowed = Range(out.ctypes.data, out.nbytes)
    run_asm(text, len(text), (2, 1, 1), (32, 1, 1), args, ranges=[allowed])
    for refused in (allowed._replace(size=124), allowed._replace(writable=False)):
        with pytest.raises(WaveFault, match="write of 4 bytes"):
            run_asm(text, len(text), (1, 1, 1), (32, 1, 1), args, ranges=[refused])


def test_what_cannot_be_run() -> None:
    with pytest.raises(Unsupported, match="gfx1100"):
        run_asm(END, 4, (1, 1, 1), (32, 1, 1), b"", chip="gfx90a")
    with pytest.raises(InvalidValue, match="8 bytes of code"):
        run_asm(END, 8, (1, 1, 1), (32, 1, 1), b"")

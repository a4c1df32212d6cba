"""Code that does not wait sees poison, and code that waits long enough does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sim.ir3.asm import (
    P0,
    SS,
    SY,
    THREAD,
    alu,
    branch,
    compare,
    const,
    flow,
    imm,
    load,
    move,
    move_const,
    move_imm,
    nops,
    results,
    special,
    store,
    widen,
)

POISON = 0xA5A5A5A5
THREADS = np.arange(64, dtype=np.uint32)


@pytest.fixture(autouse=True)
def needs_llvm(need: Callable[[str], None]) -> None:
    need("llvmlite")


def waits(cycles: int) -> list[int]:
    return [nops(cycles)] if cycles else []


@pytest.mark.parametrize(("cycles", "is_there"), [(0, False), (2, False), (3, True)])
def test_alu_results_are_there_for_the_fourth(cycles: int, is_there: bool) -> None:
    first = alu("add.u", 8, THREAD, imm(1))
    got = results(first, *waits(cycles), alu("add.u", 4, 8, imm(1)))
    assert list(got) == list(THREADS + 2 if is_there else np.full(64, POISON + 1))
    if cycles:
        waiting = alu("add.u", 8, THREAD, imm(1), nop=cycles)
        assert list(results(waiting, alu("add.u", 4, 8, imm(1)))) == list(got)


@pytest.mark.parametrize(("cycles", "is_there"), [(3, False), (5, False), (6, True)])
def test_halves_of_whole_registers_are_there_later(cycles: int, is_there: bool) -> None:
    got = results(alu("add.u", 8, THREAD, imm(1)), nops(cycles), widen(4, 16))
    assert list(got) == list(THREADS + 1 if is_there else np.full(64, POISON & 0xFFFF))


@pytest.mark.parametrize(("cycles", "is_there"), [(3, False), (6, True)])
def test_predicates_and_addresses_are_there_later(cycles: int, is_there: bool) -> None:
    code = [
        *(move_imm(4, 1), compare(P0, THREAD, imm(9)), *waits(cycles)),
        *(flow(13, 1), move_imm(4, 2), flow(15, 1)),
    ]
    got = results(*code)
    assert (list(got) == [2] * 9 + [1] * 55) == is_there


@pytest.mark.parametrize("flag", [0, SY, SS])
def test_special_functions_are_there_behind_ss(flag: int) -> None:
    one = np.float32(1).view(np.uint32)
    code = [move_imm(8, int(one)), nops(6), special(0, 8, 8), nops(6), nops(6), nops(6, flag)]
    got = results(*code, alu("and.b", 4, 8, imm(-1)))
    assert list(got) == [int(one) if flag == SS else POISON] * 64


@pytest.mark.parametrize("opcode", [0, 1], ids=["ldg", "ldl"])
@pytest.mark.parametrize("flag", [0, SY, SS])
def test_memory_is_there_behind_its_own_wait(opcode: int, flag: int) -> None:
    first, right = (40, SY) if opcode == 0 else (44, SS)
    put = [store(3 if opcode == 0 else 4, first, THREAD), nops(6, SS)]
    code = [*put, load(opcode, 8, first), nops(6, flag), alu("add.u", 4, 8, imm(1))]
    got = results(*code)
    assert list(got) == list(THREADS + 1 if flag == right else np.full(64, POISON + 1))


def test_what_a_store_reads_must_not_be_written_before() -> None:
    kept = [move(8, THREAD), nops(6), store(4, 44, 8)]
    for flag in (0, SY, SS):
        got = results(*kept, nops(6, flag), move_imm(8, 3), nops(3), move(4, 8))
        assert list(got) == [3 if flag == SS else POISON] * 64


def test_a_result_that_is_on_its_way_must_not_be_written_before() -> None:
    for flag in (0, SS):
        code = [special(0, 8, THREAD), nops(6, flag), move_imm(8, 3), nops(6), move(4, 8)]
        assert list(results(*code)) == [3 if flag else POISON] * 64


def test_hazards_come_by_all_ways() -> None:
    """A loop whose end leaves too little for its begin, and a branch around the wait."""
    around = [
        *(compare(P0, THREAD, imm(2)), nops(6), alu("add.u", 8, THREAD, imm(1))),
        *(branch(2), nops(3), move(4, 8, flags=1 << 59)),
    ]
    assert list(results(*around, branches=2)) == [POISON] * 64
    around[4] = nops(3)
    around[3:5] = [nops(3), branch(1)]
    assert list(results(*around, branches=2)) == list(THREADS + 1)


def test_repetitions_count_as_cycles() -> None:
    """Each writes a cycle after the one before, and reads one later."""
    code = [alu("add.u", 8, THREAD, imm(1), repeat=3), move(4, 8), nops(6)]
    assert list(results(*code)) == list(THREADS + 1)
    code[1] = move(4, 9)
    assert list(results(*code)) == [POISON] * 64
    own = alu("add.u", 9, 8, imm(1), 1 << 43, repeat=1)  # (rpt1)add.u r2.y, (r)r2.x, 1
    assert list(results(move(8, THREAD), nops(6), own, nops(6), move(4, 10))) == [POISON + 1] * 64


def test_constants_are_there_behind_ss() -> None:
    def code(flag: int) -> list[int]:
        stc = 6 << 61 | 28 << 54 | 3 << 49 | 1 << 23 | 2 << 32 | 1 << 24 | 8 << 1
        return [move_imm(8, 11), nops(6), stc, nops(6, flag), alu("add.u", 4, const(2), imm(0))]

    assert list(results(*code(SS))) == [11] * 64
    assert list(results(*code(0))) == [POISON] * 64


@pytest.mark.parametrize(("chip", "has_scalar"), [("a630", False), ("a660", True)])
def test_registers_of_the_wave_are_there_behind_ss(chip: str, has_scalar: bool) -> None:
    """But to the scalar ALU, where there is one, if it reads them as they were written."""
    shared, further = 192, 193
    first, second = alu("add.u", shared, const(2), imm(1)), alu("add.u", further, shared, imm(1))
    for code, is_there in (
        ([first, nops(6), move(4, shared)], False),
        ([first, nops(1, SS), move(4, shared)], True),
        ([first, second, nops(1, SS), move(4, further)], has_scalar),
        ([first, nops(1, SS), second, nops(1, SS), move(4, further)], True),
    ):
        wanted = 7 if second in code else 6
        poisoned = POISON + 1 if second in code else POISON
        assert list(results(*code, chip=chip)) == [wanted if is_there else poisoned] * 64
    halves = [first, nops(1, SS), widen(4, shared + 1)]  # hr48.y is the upper half of r48.x
    assert list(results(*halves, chip=chip)) == [0] * 64


def test_nothing_is_wrong_with_what_waits() -> None:
    assert list(results(move_const(4, 2))) == [5] * 64

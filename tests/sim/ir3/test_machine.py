"""Waves of ir3: how lanes part ways and meet, memory, barriers, faults."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpu.core.errors import DeviceHang, InvalidValue, Unsupported
from gpu.sim.isa.faults import IllegalInstruction, WaveFault
from gpu.sim.isa.ir3.dispatch import Buffer, Dispatch
from sim.ir3.asm import (
    BARRIER,
    END,
    JP,
    OUT,
    P0,
    SS,
    STARTED,
    SY,
    THREAD,
    alu,
    atomic_add,
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
    store,
    subtract,
    words,
)
from sim.ir3.machine import Machine
from sim.ir3.running import CODE, Memory

LANES = pytest.mark.parametrize("lanes", [64, 128])


@pytest.fixture(autouse=True)
def needs_llvm(need: Callable[[str], None]) -> None:
    need("llvmlite")


LOOPS = (
    *(alu("and.b", 8, THREAD, imm(7)), move_imm(4, 0), nops(6)),
    *(compare(P0, 8, imm(1)) | JP, nops(6), branch(5)),
    *(alu("add.u", 4, 4, imm(3)), alu("add.u", 8, 8, imm(-1)), nops(3), flow(2, 0, -6)),
    nops(1, JP),
)
"""Each thread adds 3 as often as its number modulo 8 says."""


@LANES
@pytest.mark.parametrize("threads", [1, 63, 64, 65, 256])
def test_loops_of_many_lengths(lanes: int, threads: int) -> None:
    got = results(*LOOPS, lanes=lanes, threads=threads, branches=1)
    assert list(got) == [3 * (n % 8) for n in range(threads)]


@LANES
def test_either_way(lanes: int) -> None:
    """if: 1, 2 or, of every fourth thread, both."""
    code = [
        *(move_imm(4, 0), alu("and.b", 8, THREAD, imm(3), nop=3), compare(P0, 8, imm(2), nop=3)),
        *(nops(3), branch(4, inverted=True), alu("add.u", 4, 4, imm(1), nop=3), nops(1)),
        *(flow(2, 0, 3), alu("add.u", 4, 4, imm(2), JP, nop=3), nops(1), nops(1, JP)),
    ]
    got = results(*code, lanes=lanes, threads=lanes, branches=1)
    assert list(got) == [1 if n % 4 < 2 else 2 for n in range(lanes)]
    with pytest.raises(IllegalInstruction, match="BRANCHSTACK"):
        results(*code, lanes=lanes, threads=lanes)
    code[-1] = alu("add.u", 4, 4, imm(0))
    with pytest.raises(IllegalInstruction, match=r"slot 14: add\.u.*\(jp\)"):
        results(*code, nops(3), lanes=lanes, threads=lanes, branches=1)


@LANES
def test_predication_takes_all_lanes_along(lanes: int) -> None:
    code = [
        *(move_imm(4, 1), compare(P0, THREAD, imm(9), nop=3), nops(3), flow(13, 1)),
        *(move_imm(4, 2), flow(14, 1), alu("add.u", 4, 4, imm(4)), flow(15, 1)),
    ]
    got = results(*code, lanes=lanes, threads=lanes)
    assert list(got) == [2 if n < 9 else 5 for n in range(lanes)]


@LANES
def test_one_lane_runs_the_preamble(lanes: int) -> None:
    """shps, getone, a constant that is written, shpe: all see it."""
    stc = 6 << 61 | 28 << 54 | 3 << 49 | 1 << 23 | 3 << 32 | 1 << 24 | 8 << 1
    code = [
        *(flow(7, 1, 6), flow(5, 1, 5), alu("add.u", 8, THREAD, imm(20)), nops(6)),
        *(stc, flow(8, 1, flags=SY | SS), move_const(4, 3) | JP),
    ]
    got = results(*code, lanes=lanes, threads=lanes, branches=1)
    assert list(got) == [20] * lanes


def test_constants_are_written_behind_a_number() -> None:
    """mova1 a1.x, 2; stc c[a1.x+1]."""
    address = 1 << 61 | 2 << 53 | 2 << 50 | 2 << 46 | 0xF5 << 32
    stc = 6 << 61 | 28 << 54 | 3 << 49 | 1 << 40 | 1 << 23 | 1 << 32 | 1 << 24 | 8 << 1
    code = [move_imm(8, 9), address | 2, nops(6), stc, nops(1, SS), move_const(4, 3)]
    assert list(results(*code)) == [9] * 64
    with pytest.raises(IllegalInstruction, match="computed"):
        results(flow(2, 0, 2), address | 2, stc)


def test_waves_meet_at_barriers() -> None:
    """Each thread reads what one of another wave has written."""
    code = [
        *(alu("add.u", 8, THREAD, imm(100)), nops(6), store(4, 44, 8), nops(6, SS), BARRIER),
        *(alu("shl.b", 12, THREAD, imm(2), nop=3), subtract(12, imm(508), 12), nops(6)),
        *(load(1, 4, 12), nops(6, SS)),
    ]
    for threads in (64, 128):
        code[6] = subtract(12, imm(4 * threads - 4), 12)
        got = results(*code, threads=threads)
        assert list(got) == [100 + threads - 1 - n for n in range(threads)]


@LANES
def test_atomics_count_every_lane(lanes: int) -> None:
    """Each gets what was there before: a permutation; in memory of the group and of all."""
    zero = [move_imm(8, 0), move_imm(12, 1), nops(6), store(4, 8, 8), nops(6, SS)]
    got = results(*zero, atomic_add(4, 8, 12, False), lanes=lanes, threads=lanes)
    assert sorted(got) == list(range(lanes))
    place = [move_const(8, 0), move_const(9, 1), move_imm(12, 1), nops(6)]
    added = [*place, atomic_add(4, 8, 12, True), nops(6, SY)]
    got = results(*added, lanes=lanes, threads=lanes)
    assert max(got) == lanes - 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ([5 << 61], r"slot 4: 0xa0.* is no instruction"),
        ([flow(4, 0)], "ret has no semantics"),
        ([move(4, 64)], r"r16\.x is used, a thread has 16 registers"),
        ([move_const(4, 4)], r"c1\.x is used, there are 1 constants"),
        ([flow(2, 0, 1000)], "the code ends without"),
        ([flow(13, 1), BARRIER], "a barrier while instructions are predicated"),
        ([alu("add.u", 4, 8, 1 << 11)], "addresses of registers"),
    ],
    ids=("hostile", "opcode", "register", "constant", "end", "predicated", "relative"),
)
def test_what_is_not_there_stops_who_reaches_it(code: list[int], said: str) -> None:
    with pytest.raises(IllegalInstruction, match=said) as caught:
        results(*code)
    assert caught.value.pc >= CODE + 8 * STARTED
    around = [flow(2, 0, 1 + len(code)), *code, move(4, THREAD)]
    assert list(results(*around)) == list(range(64))


def test_a_fault_says_who_where_and_what() -> None:
    code = [alu("shl.b", 9, THREAD, imm(3), nop=3), move_imm(8, 64), nops(6), load(0, 4, 8)]
    with pytest.raises(WaveFault, match=r"read of 4 bytes at 0x40 by lane 0.*ldg\.u32") as caught:
        results(*code)
    found = caught.value
    assert (found.pc, found.lane, found.address) == (CODE + 8 * (STARTED + 3), 0, 64)
    assert found.access == "read"
    with pytest.raises(WaveFault, match=r"write of 4 bytes at 0x200 by lane 0") as caught:
        results(move_imm(8, 512), nops(6), store(4, 8, 8))
    assert caught.value.access == "write"


def test_private_memory_is_each_thread_s_own() -> None:
    code = [move_imm(8, 4), nops(6), store(5, 8, THREAD), nops(6, SS), load(2, 4, 8)]
    assert list(results(*code, private_bytes=512)) == list(range(64))
    with pytest.raises(WaveFault):
        results(*code, private_bytes=4)
    with pytest.raises(InvalidValue, match="private memory"):
        results(*code, private_bytes=512, private_address=1 << 40, private_size=64)


def test_an_endless_loop_is_told() -> None:
    with pytest.raises(DeviceHang, match="slot 4: jump"):
        results(flow(2, 0, 0))


def test_code_that_has_changed_is_decoded_anew() -> None:
    code = words(move_imm(4, 1), END)
    memory = Memory(code)
    machine = Machine(memory)
    dispatch = Dispatch(CODE, len(code), (1, 1, 1), (1, 1, 1), full=2)
    machine.run(dispatch)
    before = machine.start(dispatch).program
    assert machine.start(dispatch).program is before
    memory._code[0] = 2
    assert machine.start(dispatch).program is not before


def test_groups_find_their_numbers() -> None:
    """In r48.x on, or in registers of their own; threads have numbers of three axes."""
    groups, block = (3, 2, 2), (4, 2, 3)
    rows = np.zeros((12, 24), np.uint32)
    for group_at, first in ((192, 192), (24, 24)):
        code = [
            *(move(8, first), move(9, first + 1), move(10, first + 2), nops(6)),
            # 100 x + 10 y + z of the group, and the same of the thread in upper halves
            *(_mad(4, 8, 3, 9), nops(3), _mad(4, 4, 3, 10), nops(3)),
            *(_mad(12, 0, 3, 1), nops(3), _mad(12, 12, 3, 2), nops(3)),
            *(alu("shl.b", 12, 12, imm(16), nop=3), alu("add.u", 4, 4, 12, nop=3)),
            # Where: (group * 24 + thread) * 4, from ids again
            *(_mad(16, 10, 4, 9), nops(3), _mad(16, 16, 5, 8), nops(3)),
            *(_mad(20, 2, 4, 1), nops(3), _mad(20, 20, 6, 0), nops(3)),
            *(_mad(16, 16, 7, 20), nops(3), alu("shl.b", 16, 16, imm(2), nop=3)),
            *(alu("add.u", OUT, 16, const(0), nop=3), move_const(OUT + 1, 1), nops(6)),
            *(store(3, OUT, 4), END),
        ]
        program = words(*code)
        memory = Memory(program)
        rows[:] = 0
        address = memory.buffer(rows.reshape(-1).view(np.uint8))
        held = [address % (1 << 32), address >> 32, 0, 10, 2, 3, 4, 24]
        constants = np.array(held, np.uint32).tobytes()
        dispatch = Dispatch(
            *(CODE, len(program), groups, block, 64, constants),
            full=16, group_at=group_at, thread_at=0,
        )  # fmt: skip
        Machine(memory, seed=group_at).run(dispatch)
        for group in range(12):
            x, y, z = group % 3, group // 3 % 2, group // 6
            for thread in range(24):
                a, b, c = thread % 4, thread // 4 % 2, thread // 8
                want = 100 * x + 10 * y + z + (100 * a + 10 * b + c << 16)
                assert rows[group, thread] == want, (group, thread)


def _mad(dst: int, a: int, factor: int, more: int) -> int:
    """mad.u24 of two registers and a constant between them: its first source."""
    return 3 << 61 | 4 << 55 | dst << 32 | 1 << 12 | factor | a << 47 | more << 16


def test_dispatches_that_cannot_be() -> None:
    one = (1, 1, 1)
    for wrong, said in (
        ({"block": (33, 32, 1)}, "1056 threads"),
        ({"lanes": 32}, "waves of 32"),
        ({"constants": b"1"}, "constants"),
        ({"full": 49}, "49 registers"),
        ({"code": CODE + 4}, "bytes of code"),
        ({"thread_at": 40, "full": 4}, "ids in r10"),
    ):
        fields = {"code": CODE, "size": 8, "groups": one, "block": one, **wrong}
        with pytest.raises(InvalidValue, match=said):
            Machine(Memory(words(END))).start(Dispatch(**fields))  # type: ignore[arg-type]
    for wrong in ({"merged": False}, {"ubos": (Buffer(0, 16),)}):
        with pytest.raises(Unsupported):
            Dispatch(CODE, 8, one, one, **wrong)  # type: ignore[arg-type]

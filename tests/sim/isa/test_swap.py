"""V_SWAP_B16, whose operands say by bit 7 of their number which half of a register they are."""

from __future__ import annotations

import pytest

from sim.isa.asm import V, evaluate, words

HIGH = 0x80
FIRST, SECOND = 0xAAAABBBB, 0x11112222  # v30, v10


@pytest.mark.parametrize(
    ("vdst", "src0", "first", "second"),
    [
        (30, 10, 0xAAAA2222, 0x1111BBBB),
        (30 | HIGH, 10, 0x2222BBBB, 0x1111AAAA),
        (30, 10 | HIGH, 0xAAAA1111, 0xBBBB2222),
        (30 | HIGH, 10 | HIGH, 0x1111BBBB, 0xAAAA2222),
        (30, 30 | HIGH, 0xBBBBAAAA, SECOND),
    ],
)
def test_halves_change_places(vdst: int, src0: int, first: int, second: int) -> None:
    for register, want in ((30, first), (10, second)):
        got = evaluate(
            "v_swap_b16",
            words([SECOND]),
            start=words([FIRST]),
            vdst=vdst,
            src0=V + src0,
            observe=V + register,
        )
        assert {hex(value) for value in got} == {hex(want)}

"""SIMD video instructions against the pseudo-code of "PTX ISA", section 9.7.19."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from gpu.sim.isa.ptx.bare import BareModule
from gpu.sim.isa.ptx.syntax import PtxError
from sim.ptx.ops import HEAD, Form, check

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vavrg": lambda x, y: (x + y + (x + y >= 0)) >> 1,
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": min,
    "vmax": max,
}
KINDS = ("s32", "u32")


def parts(a: int, b: int, selector: str, kind: str, count: int) -> list[int]:
    """extractAndSignExt: part 0 first."""
    bits = 32 // count
    both = b << 32 | a
    found = [both >> bits * int(number) & (1 << bits) - 1 for number in reversed(selector)]
    return [x - (1 << bits) if kind == "s32" and x >> bits - 1 else x for x in found]


def result(t: list[int], c: int, count: int, mask: set[int], kind: str, mode: str) -> int:
    """The secondary accumulation, or the merge with `c`."""
    bits = 32 // count
    low = (1 << bits) - 1
    if mode == ".sat":
        first, last = (-(1 << bits - 1), low >> 1) if kind == "s32" else (0, low)
        t = [max(first, min(last, x)) for x in t]
    if mode == ".add":
        return c + sum(x for i, x in enumerate(t) if i in mask) & 0xFFFFFFFF
    return sum((t[i] & low if i in mask else c >> bits * i & low) << bits * i for i in range(count))


def selectors(rng: random.Random, count: int) -> tuple[str, str, str, str, str, set[int]]:
    """Texts behind d, a and b, and what they mean; now and then none."""
    letter = "h" if count == 2 else "b"
    first = "".join(str(i) for i in reversed(range(count)))
    second = "".join(str(count + i) for i in reversed(range(count)))
    mask, texts = set(range(count)), ["", "", ""]
    if rng.random() < 0.6:
        first = "".join(str(rng.randrange(2 * count)) for _ in range(count))
        texts[1] = f".{letter}{first}"
    if rng.random() < 0.6:
        second = "".join(str(rng.randrange(2 * count)) for _ in range(count))
        texts[2] = f".{letter}{second}"
    if rng.random() < 0.6:
        mask = set(rng.sample(range(count), rng.randint(1, count)))
        texts[0] = f".{letter}" + "".join(str(i) for i in sorted(mask, reverse=True))
    return texts[0], texts[1], texts[2], first, second, mask


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", OPERATIONS)
def test_arithmetic(name: str, count: int) -> None:
    rng, forms = random.Random(f"{name}{count}"), []
    for kind, left, right, mode in itertools.product(KINDS, KINDS, KINDS, ("", ".sat", ".add")):
        for _ in range(3):
            d, a, b, first, second, mask = selectors(rng, count)

            def wanted(
                x: int, y: int, z: int,
                how: tuple[str, str, str, str] = (kind, left, right, mode),
                where: tuple[str, str, set[int]] = (first, second, mask),
            ) -> int:  # fmt: skip
                pairs = zip(
                    parts(x, y, where[0], how[1], count),
                    parts(x, y, where[1], how[2], count),
                    strict=True,
                )
                t = [OPERATIONS[name](p, q) for p, q in pairs]
                return result(t, z, count, where[2], how[0], how[3])

            opcode = f"{name}{count}.{kind}.{left}.{right}{mode}"
            forms.append(
                Form(f"{opcode} {{d}}{d}, {{a}}{a}, {{b}}{b}, {{c}};", 32, (32,) * 3, wanted)
            )
    check(forms)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("test", COMPARE)
def test_comparisons(test: str, count: int) -> None:
    rng, forms = random.Random(f"{test}{count}"), []
    for left, right, mode in itertools.product(KINDS, KINDS, ("", ".add")):
        d, a, b, first, second, mask = selectors(rng, count)

        def wanted(
            x: int, y: int, z: int,
            how: tuple[str, str, str] = (left, right, mode),
            where: tuple[str, str, set[int]] = (first, second, mask),
        ) -> int:  # fmt: skip
            pairs = zip(
                parts(x, y, where[0], how[0], count),
                parts(x, y, where[1], how[1], count),
                strict=True,
            )
            t = [int(COMPARE[test](p, q)) for p, q in pairs]
            return result(t, z, count, where[2], "u32", how[2])

        opcode = f"vset{count}.{left}.{right}.{test}{mode}"
        forms.append(Form(f"{opcode} {{d}}{d}, {{a}}{a}, {{b}}{b}, {{c}};", 32, (32,) * 3, wanted))
    check(forms)


@pytest.mark.parametrize(
    "text",
    [
        "vabsdiff4.u32.u32.u32.sat.add %r1, %r2, %r3, %r4;",
        "vabsdiff4.u32.u32 %r1, %r2, %r3, %r4;",
        "vabsdiff4.u32.u32.u64 %r1, %r2, %r3, %r4;",
        "vabsdiff4.u32.u32.u32 %r1, %r2.b01, %r3, %r4;",
        "vabsdiff4.u32.u32.u32 %r1, %r2.h10, %r3, %r4;",
        "vabsdiff4.u32.u32.u32 %r1.b01, %r2, %r3, %r4;",
        "vabsdiff2.u32.u32.u32 %r1.h2, %r2, %r3, %r4;",
        "vset4.u32.u32 %r1, %r2, %r3, %r4;",
        "vset4.u32.u32.eq.sat %r1, %r2, %r3, %r4;",
        "add.u32 %r1, %r2.b0, %r3;",
    ],
)
def test_forms_that_there_are_not(text: str) -> None:
    kernel = f"{HEAD}.entry k() {{ .reg .b32 %r<9>; {text} ret; }}"
    with pytest.raises(PtxError):
        BareModule(kernel).program("k")

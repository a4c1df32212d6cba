"""Runs single instructions on many values, to be compared with a definition in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.sim.isa.ptx.bare import BareModule

HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"
LANES = 128
_SLOTS = "abcef"


class Form(NamedTuple):
    """One form of an instruction.

    Attributes:
        text: with ``{d}`` for the result and ``{a}``, ``{b}``, ... for the sources.
        result, sources: bits of the registers; 1 is a predicate.
        wanted: the result of a lane's sources; numbers are unsigned.
    """

    text: str
    result: int
    sources: tuple[int, ...]
    wanted: Callable[..., int]


Words = npt.NDArray[np.uint64]


def signed(value: int, bits: int) -> int:
    """An unsigned number as a signed one."""
    return value - (1 << bits) if value >> (bits - 1) else value


def integers(rng: np.random.Generator, bits: int) -> Words:
    """Random numbers, small and extreme ones among them."""
    top = 1 << bits
    special = [0, 1, 2, 7, 31, 32, 33, 63, 64, top - 1, top - 2, top >> 1, (top >> 1) - 1]
    values = [int(v) % top for v in rng.integers(0, 2**64, LANES, dtype=np.uint64)]
    for lane in range(LANES):
        if rng.random() < 0.4:
            values[lane] = special[int(rng.integers(len(special)))] % top
    return np.array(values, np.uint64)


def _kernel(name: str, form: Form) -> str:
    lines = []
    for slot, bits in zip(_SLOTS, form.sources, strict=False):
        number = _SLOTS.index(slot)
        lines.append(f"ld.global.u64 %rd9, [%rd2+{8 * LANES * number}];")
        if bits == 1:
            lines.append(f"setp.ne.u64 %p{number}, %rd9, 0;")
        elif bits == 64:
            lines.append(f"mov.b64 %rd{10 + number}, %rd9;")
        else:
            lines.append(f"cvt.u{bits}.u64 %{_letter(bits)}{number}, %rd9;")
    names = {s: _register(b, _SLOTS.index(s)) for s, b in zip(_SLOTS, form.sources, strict=False)}
    text = form.text.format(d=_register(form.result, 8), **names)
    result = {
        1: "selp.u64 %rd8, 1, 0, %p8;",
        16: "cvt.u64.u16 %rd8, %h8;",
        32: "cvt.u64.u32 %rd8, %r8;",
        64: "mov.u64 %rd8, %rd18;",
    }[form.result]
    return f"""
.entry {name}(.param .u64 in, .param .u64 out) {{
  .reg .pred %p<10>; .reg .b16 %h<10>; .reg .b32 %r<30>; .reg .b64 %rd<30>;
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd3, [out];
  mov.u32 %r20, %tid.x; mul.wide.u32 %rd4, %r20, 8;
  add.u64 %rd2, %rd1, %rd4; add.u64 %rd5, %rd3, %rd4;
  {" ".join(lines)}
  {text}
  {result}
  st.global.u64 [%rd5], %rd8;
  ret; }}"""


def _letter(bits: int) -> str:
    return {1: "p", 16: "h", 32: "r"}[bits]


def _register(bits: int, number: int) -> str:
    return f"%rd{10 + number}" if bits == 64 else f"%{_letter(bits)}{number}"


def check(
    forms: Sequence[Form],
    make: Callable[[np.random.Generator, Form], Sequence[Words]] | None = None,
    same: Callable[[int, int], bool] | None = None,
) -> None:
    """Runs all forms on 128 lanes, and compares.

    `make` gives the sources of a form, by default random integers. `same` compares (got, wanted),
    by default all bits of the result.
    """
    text = HEAD + "".join(_kernel(f"k{number}", form) for number, form in enumerate(forms))
    module = BareModule(text)
    wrong = []
    for number, form in enumerate(forms):
        rng = np.random.default_rng(number)
        sources = make(rng, form) if make else [integers(rng, bits) for bits in form.sources]
        given: npt.NDArray[Any] = np.zeros((5, LANES), np.uint64)
        given[: len(sources)] = sources
        out = np.zeros(LANES, np.uint64)
        module.run(f"k{number}", (2, 1, 1), (LANES, 1, 1), given, out)
        for lane in range(LANES):
            values = [int(row[lane]) for row in sources]
            got, want = int(out[lane]), form.wanted(*values)
            want = want if same else want & ((1 << form.result) - 1)
            if not (same(got, want) if same else got == want):
                shown = ", ".join(map(hex, values))
                wrong.append(f"{form.text} of {shown}: {got:#x}, wanted {want:#x}")
                break
    assert not wrong, "\n".join(wrong)

"""Neighbours in memory by NAK: accesses of 16 bytes, whatever the elements."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from gpu.compiler.ir.kernel.text import parse_kernel
from gpu.compiler.ir.linear import Program
from gpu.compiler.ir.linear.text import parse_linear
from gpu.compiler.render.nir.nak import NAKRenderer
from gpu.compiler.toolchain.nak import NakCompiler
from gpu.compiler.toolchain.nakbinary import NakBinary
from gpu.core.errors import Unsupported
from unit.nak.machine import run_nir
from unit.test_neighbours import LARGE, add
from unit.test_turning import NUMPY, lowered, turned

TARGET = NAKRenderer("sm_90").target
TYPES = {**NUMPY, "i64": np.int64, "b1": np.bool_}
COPY = """kernel k(out: {t}[{n}] global, x: {t}[{m}] global)
  loop i serial {n}
    out[i] = x[i + {first}] if {most} - i >= 0
"""


def copied(t: str, first: int = 0, most: int = LARGE - 1) -> Program:
    """``out[i] = x[i + first]`` for i up to `most`."""
    text = COPY.format(t=t, n=LARGE, m=LARGE + first, first=first, most=most)
    return lowered(parse_kernel(text), TARGET)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("t", TYPES)
def test_all_accesses_are_of_16_bytes(arch: str, t: str, need: Callable[[str], None]) -> None:
    need("tinymesa")
    source = NAKRenderer(arch).render(copied(t))
    text = NakBinary.unpack(NakCompiler(arch).compile(source)).assembly
    found = re.findall(r"\b((?:ld|st)\.global[\w.]*)", text)
    assert {one[:2] for one in found} == {"ld", "st"}
    assert all(one.endswith(".b128") for one in found), found


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("first", [0, 1, 2])
def test_copies(t: str, first: int) -> None:
    x = np.random.default_rng(first).integers(0, 100, LARGE + first).astype(TYPES[t])
    out = np.zeros(LARGE, TYPES[t])
    run_nir([copied(t, first)], [[out, x]])
    np.testing.assert_array_equal(out, x[first:])


def test_copies_up_to_a_place() -> None:
    x, out = np.arange(LARGE, dtype=np.float16), np.zeros(LARGE, np.float16)
    run_nir([copied("f16", 0, LARGE - 17)], [[out, x]])
    np.testing.assert_array_equal(out[:-16], x[:-16])
    assert not out[-16:].any()


def test_sums_of_neighbours() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, LARGE)).astype(np.float32)
    out = np.zeros(LARGE, np.float32)
    run_nir([lowered(add(LARGE), TARGET)], [[out, x, y]])
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("t", NUMPY)
def test_transpositions(t: str) -> None:
    m, n = 520, 544
    x = np.random.default_rng(m).integers(0, 100, m * n).astype(NUMPY[t])
    out = np.zeros_like(x)
    run_nir([lowered(turned(m, n, t), TARGET)], [[out, x, x]])
    np.testing.assert_array_equal(out.reshape(m, n), x.reshape(n, m).T)


MASKED = """program k(out: {t}[64] written, x: {t}[64])
  %0 = param {t} out
  %1 = param {t} x
  %2 = const i64 4
  %3 = const i64 10
  %4 = loop grid 0..16
    %5 = mul i64 %4, %2
    %6 = lt b1 %4, %3
    %7 = splat b1x4 %6
    %8 = load {t}x4 %1, %5, %7
    %9 = extract {t} %8 (0)
    %10 = extract {t} %8 (1)
    %11 = extract {t} %8 (2)
    %12 = extract {t} %8 (3)
    %13 = pack {t}x4 %12, %11, %10, %9
    store %0, %5, %13
  %14 = end %4
"""


@pytest.mark.parametrize("t", ["u8", "f16", "f32", "i64"])
def test_a_masked_vector_is_of_zeros(t: str) -> None:
    x, out = np.arange(1, 65).astype(TYPES[t]), np.ones(64, TYPES[t])
    run_nir([parse_linear(MASKED.format(t=t))], [[out, x]])
    want = x.reshape(16, 4)[:, ::-1].copy()
    want[10:] = 0
    np.testing.assert_array_equal(out, want.reshape(-1))


def test_vectors_of_addresses_are_refused() -> None:
    text = MASKED.format(t="f32").replace("%8 = load f32x4 %1, %5", "%8 = load f32x4 %1, %50")
    text = text.replace("    %7 =", "    %50 = ramp i64x4 %5 (2)\n    %7 =")
    with pytest.raises(Unsupported, match="is a vector"):
        NAKRenderer("sm_90").render(parse_linear(text))

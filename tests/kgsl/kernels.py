"""Kernels of the conformance suite as NIR, compiled by Mesa's ir3 where that is installed."""

from __future__ import annotations

from functools import cache

from gpu.compiler.toolchain.ir3 import Ir3Compiler
from gpu.core.ir3binary import Ir3Binary
from gpu.hcq.args import ArgumentLayout

LAYOUTS = {
    "add": ArgumentLayout(3, ["I"]),
    "fill": ArgumentLayout(1, ["i", "I"]),
}
_LOOP = """\
  %{0} = load_const 32 (0)
  %{1} = reg 32
  store_reg %{1}, %{0}
  loop
    %{2} = load_reg 32 %{1}
    %{3} = uge 1 %{2}, %{n}
    if %{3}
      break
    endif
    %{4} = load_const 32 (2)
    %{5} = ishl 32 %{2}, %{4}
    %{6} = u2u64 64 %{5}
"""
_NEXT = """\
    %{0} = load_const 32 (1)
    %{1} = iadd 32 %{i}, %{0}
    store_reg %{turn}, %{1}
  endloop
end
"""


def _loop(first: int, count: int) -> str:
    """A loop over so many words; its values are numbered from ``first`` on."""
    return _LOOP.format(*range(first, first + 7), n=count)


def _end(first: int, loop: int) -> str:
    return _NEXT.format(first, first + 1, i=loop + 2, turn=loop + 1)


SOURCES = {
    "add": """\
nir add block 1 shared 0 scratch 0 parameters 32
  %0 = param 64 (0)
  %1 = param 64 (8)
  %2 = param 64 (16)
  %3 = param 32 (24)
"""
    + _loop(4, 3)
    + """\
    %11 = iadd 64 %1, %10
    %12 = load_global 32 %11 (4, 0)
    %13 = iadd 64 %2, %10
    %14 = load_global 32 %13 (4, 0)
    %15 = iadd 32 %12, %14
    %16 = iadd 64 %0, %10
    store_global %15, %16 (4)
"""
    + _end(17, 4),
    "fill": """\
nir fill block 1 shared 0 scratch 0 parameters 16
  %0 = param 64 (0)
  %1 = param 32 (8)
  %2 = param 32 (12)
"""
    + _loop(3, 2)
    + """\
    %10 = iadd 64 %0, %9
    store_global %1, %10 (4)
"""
    + _end(11, 3),
}


@cache
def kernel(name: str, chip: str) -> Ir3Binary:
    """A kernel for a chip. Raises Unsupported where Mesa's compilers are not installed."""
    return Ir3Binary.unpack(Ir3Compiler(chip).compile(SOURCES[name]))

"""Random programs run on this machine: what a simulated GPU must agree with, bit for bit.

    programs = [make_program(seed, avoid) for seed in range(16)]
    text = kernel_module(programs, dialect)       # for the GPU: kernels k0, k1, ...
    host = Host(programs)
    given = inputs(seed)
    words, sums = host.run(0, given)              # what k0 leaves in `out` and `sums`

A GPU runs them as `GROUPS` workgroups of `LANES` work-items, with the addresses of the inputs, of
`given.out()` and `given.sums()`, and `given.scalar`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.core.objload import load_object
from gpu.sim.isa.native import compile_module
from sim.irprograms.memory import LANES, SITE_WORDS, SITES
from sim.irprograms.modules import POINTERS, SHARED_BYTES, host_module, state_bytes
from sim.irprograms.program import OUTPUTS, Program

GROUPS: Final = 2
Words = npt.NDArray[np.int64]
_N: Final = GROUPS * LANES
_MATH: Final = ("ldexp", "ldexpf", "round", "roundf", "fmin", "fminf", "fmax", "fmaxf")


class Inputs(NamedTuple):
    """What a program reads; each array has an element for each lane of the grid."""

    words: Words
    doubles: npt.NDArray[np.float64]
    floats: npt.NDArray[np.float32]
    scalar: int

    def out(self) -> Words:
        """Room for the results of all lanes."""
        return np.zeros(_N * OUTPUTS, np.int64)

    def sums(self) -> Words:
        """Where lanes meet by atomics."""
        return self.words[: SITES * SITE_WORDS].copy()


def inputs(seed: int) -> Inputs:
    """Integers, doubles and floats, with zeros, infinities, NaN and denormals among them."""
    rng = np.random.default_rng(seed)
    words = rng.integers(-(2**63), 2**63, _N, dtype=np.int64)
    words = np.where(rng.random(_N) < 0.3, words >> 48, words)
    doubles, floats = (_floats(rng, kind, tiny) for kind, tiny in (("f8", 5e-324), ("f4", 1e-45)))
    return Inputs(words, doubles, floats, int(words[7]))


def _floats(rng: np.random.Generator, kind: str, tiny: float) -> npt.NDArray[Any]:
    scale = rng.choice([1.0, 100.0, 1e5, 1e-5, 1e30, 1e-30], _N)
    values: npt.NDArray[Any] = (rng.standard_normal(_N) * scale).astype(kind)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, tiny, -tiny, 1, -1, 0.5], kind)
    where = rng.random(_N) < 0.1
    values[where] = rng.choice(special, int(where.sum()))
    return values


class Host:
    """Programs compiled for this machine."""

    def __init__(self, programs: Sequence[Program]):
        """Raises CompileError for what LLVM does not take."""
        self._programs = programs
        self._code = load_object(compile_module(host_module(programs)), _library_functions())

    def run(self, number: int, given: Inputs) -> tuple[Words, Words]:
        """What program `number` of them leaves in ``out`` and ``sums``."""
        program, out, sums = self._programs[number], given.out(), given.sums()
        state = np.zeros(state_bytes(program), np.uint8)
        shared = np.zeros(max(1, len(program.shared)) * SHARED_BYTES, np.uint8)
        arrays = (given.words, given.doubles, given.floats, out, sums)
        pointers = [array.ctypes.data for array in arrays]
        kinds = [ctypes.c_void_p] * len(POINTERS) + [ctypes.c_int64, ctypes.c_void_p]
        phase_type = ctypes.CFUNCTYPE(None, *kinds, ctypes.c_void_p, ctypes.c_int32)
        phases = [
            phase_type(self._code.address(f"h{number}.{place}"))
            for place in range(len(program.phases))
        ]
        for group in range(GROUPS):
            for phase in phases:
                phase(*pointers, given.scalar, state.ctypes.data, shared.ctypes.data, group)
        return out, sums


@cache
def _library_functions() -> dict[str, int]:
    """Addresses of the C library's functions that LLVM calls."""
    library = ctypes.CDLL("libm.so.6")
    found = {}
    for name in _MATH:
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert address is not None
        found[name] = address
    return found


def difference(expected: tuple[Words, Words], out: Words, sums: Words) -> str | None:
    """The first place where results of a GPU differ from the host's, or None."""
    for name, wanted, got in (("out", expected[0], out), ("sums", expected[1], sums)):
        wrong = np.flatnonzero(wanted != got)
        if len(wrong):
            place = int(wrong[0])
            where = f"lane {place // OUTPUTS}, output {place % OUTPUTS}"
            return (
                f"{where if name == 'out' else f'sum {place}'} ({len(wrong)} words differ):"
                f" host {int(wanted[place]) & (1 << 64) - 1:#x},"
                f" GPU {int(got[place]) & (1 << 64) - 1:#x}"
            )
    return None

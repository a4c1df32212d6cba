"""Runs programs of NIR in numpy, all threads of all blocks at once: what Mesa should make of them.

Independent of what prints them, from Mesa's own definitions (src/compiler/nir/nir_opcodes.py). What
NIR leaves open is answered with rubbish: shift counts are taken modulo the width, conversions out
of range give any number, and frcp and frsq are wrong by two units in the last place at random.
Arithmetic of Adreno GPUs, which takes and gives subnormals as zeros, is wrong by more there, and
ffma rounds twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpu.compiler.ir.linear import Program
from gpu.compiler.nir_text import NirInst, NirProgram, parse_nir
from gpu.compiler.render.nir.ir3 import IR3Renderer
from gpu.compiler.render.nir.nak import NAKRenderer
from unit.linear_kernels import printed

Array = np.ndarray[Any, Any]
ARCH, CHIP = "sm_90", "a630"
_APART = 1 << 24  # between buffers, more than each has
_FIRST = 0x7_0000_0000


def run_nir(
    programs: Sequence[Program], arrays: Sequence[Sequence[Array]], vals: tuple[int, ...] = ()
) -> None:
    """Runs linear programs on arrays, one for each parameter, through NIR."""
    _run(NAKRenderer(ARCH), programs, arrays, vals)


def run_adreno(
    programs: Sequence[Program], arrays: Sequence[Sequence[Array]], vals: tuple[int, ...] = ()
) -> None:
    """The same with Adreno's arithmetic."""
    _run(IR3Renderer(CHIP), programs, arrays, vals)


def _run(
    renderer: NAKRenderer | IR3Renderer,
    programs: Sequence[Program],
    arrays: Sequence[Sequence[Array]],
    vals: tuple[int, ...],
) -> None:
    arithmetic = FUSED if isinstance(renderer, NAKRenderer) else FLUSHED
    for program, given in zip(programs, arrays, strict=True):
        nir = parse_nir(printed(renderer, program))
        data = renderer.launch_data(program)
        buffers = [array.view() for array in given]
        if data["workspace"]:
            buffers.append(np.zeros(data["workspace"], np.uint8))
        assert data["block"] == nir.block and data["values"] == len(vals)
        memory = Memory()
        words = [memory.add(buffer) for buffer in buffers] + [v % (1 << 64) for v in vals]
        parameters = np.array(words, np.uint64).tobytes()
        Machine(nir, data["groups"], parameters, memory, arithmetic).run()


class Memory:
    """Buffers at made-up addresses, far apart."""

    def __init__(self) -> None:
        self.buffers: list[Array] = []

    def add(self, array: Array) -> int:
        """Maps an array; its address."""
        assert array.flags.c_contiguous and array.nbytes < _APART
        self.buffers.append(array.reshape(-1).view(np.uint8))
        return _FIRST + _APART * (len(self.buffers) - 1)

    def places(self, address: Array, size: int) -> tuple[Array, Array]:
        """The buffer and the first byte in it of each access; AssertionError for one outside."""
        number, at = np.divmod(address.astype(np.int64) - _FIRST, _APART)
        for each in np.unique(number):
            assert 0 <= each < len(self.buffers), f"no buffer at {address[number == each][0]:#x}"
            last = at[number == each].max() + size
            assert last <= self.buffers[each].size, f"{last} bytes of buffer {each}"
        return number, at

    def load(self, address: Array, size: int) -> Array:
        """Bytes, one row for each address."""
        number, at = self.places(address, size)
        loaded = np.empty((len(address), size), np.uint8)
        for each in np.unique(number):
            rows = number == each
            loaded[rows] = self.buffers[each][at[rows, None] + np.arange(size)]
        return loaded

    def store(self, address: Array, data: Array) -> None:
        """Writes one row of bytes at each address."""
        number, at = self.places(address, data.shape[1])
        for each in np.unique(number):
            rows = number == each
            self.buffers[each][at[rows, None] + np.arange(data.shape[1])] = data[rows]


class Machine:
    """The threads of a launch; each value is an array with an element for each of them."""

    def __init__(
        self,
        program: NirProgram,
        blocks: int,
        parameters: bytes,
        memory: Memory,
        arithmetic: Arithmetic | None = None,
    ):
        assert len(parameters) == program.parameters
        self.arithmetic = arithmetic or FUSED
        self.program, self.parameters, self.memory = program, parameters, memory
        self.threads = blocks * program.block
        number = np.arange(self.threads, dtype=np.uint32)
        self.block, self.thread = np.divmod(number, np.uint32(program.block))
        self.near = {
            "shared": np.full((blocks, program.shared), 0xEE, np.uint8),
            "scratch": np.full((self.threads, program.scratch), 0xEE, np.uint8),
        }
        self.rows = {"shared": self.block, "scratch": number}
        self.values: list[Array] = []
        self.numbers: dict[int, int] = {}
        self.closing: dict[int, tuple[int, int]] = {}
        self.rng = np.random.default_rng(0)
        count = 0
        for at, inst in enumerate(program.body):
            self.numbers[at] = count
            count += bool(inst.bits)
        self.values = [np.empty(0, np.uint8)] * count

    def run(self) -> None:
        """All of the program."""
        with np.errstate(all="ignore"):
            active = np.ones(self.threads, np.bool_)
            assert self._run(0, len(self.program.body), active).all()

    def _run(self, first: int, stop: int, active: Array) -> Array:
        """Runs instructions where threads are active; those that did not break, at the end."""
        at = first
        while at < stop:
            inst = self.program.body[at]
            match inst.op:
                case "if":
                    middle, end = self._close(at)
                    condition = self.values[inst.args[0]]
                    left = self._run(at + 1, middle, active & condition)
                    other = active & ~condition
                    if middle != end:
                        other = self._run(middle + 1, end, other)
                    active, at = left | other, end
                case "loop":
                    _, end = self._close(at)
                    inside = active
                    while inside.any():
                        inside = self._run(at + 1, end, inside)
                    at = end
                case "break":
                    return np.zeros_like(active)
                case "barrier":
                    for block in np.unique(self.block[active]):
                        assert active[self.block == block].all(), "some threads do not arrive"
                case _:
                    self._do(at, inst, active)
            at += 1
        return active

    def _close(self, opened: int) -> tuple[int, int]:
        """Where the `else` of an `if` is, or else its end, and the end."""
        if opened not in self.closing:
            self.closing[opened] = self._find_close(opened)
        return self.closing[opened]

    def _find_close(self, opened: int) -> tuple[int, int]:
        depth, middle = 0, None
        for at in range(opened, len(self.program.body)):
            op = self.program.body[at].op
            depth += op in ("if", "loop")
            if op == "else" and depth == 1:
                middle = at
            if op in ("endif", "endloop"):
                depth -= 1
                if not depth:
                    return at if middle is None else middle, at
        raise AssertionError("nothing closes it")

    def _do(self, at: int, inst: NirInst, active: Array) -> None:
        args = [self.values[arg] for arg in inst.args]
        if inst.op == "store_reg":
            register = self.values[inst.args[0]]
            register[active] = args[1][active]
        elif inst.op.startswith("store_"):
            rows = _bytes(args[0][active])
            self._store(inst, args[1][active], rows, active)
        else:
            self.values[self.numbers[at]] = self._value(inst, args, active)

    def _value(self, inst: NirInst, args: list[Array], active: Array) -> Array:
        kind = _unsigned(inst.bits)
        match inst.op:
            case "load_const":
                return np.full(self.threads, inst.attr[0], kind)
            case "param":
                (word,) = np.frombuffer(self.parameters, kind, 1, inst.attr[0])
                return np.full(self.threads, word, kind)
            case "workgroup_id":
                return self.block
            case "local_invocation_id":
                return self.thread
            case "reg":
                return self.rng.integers(0, 2, self.threads).astype(kind)
            case "load_reg":
                return args[0].copy()
        if inst.op == "shuffle_xor":
            return self._exchange(args[0], args[1], active)
        if inst.op.startswith("load_"):
            loaded = np.zeros(self.threads, kind)
            loaded[active] = self._load(inst, args[0][active], active).view(kind)[:, 0]
            return loaded
        return np.ascontiguousarray(alu(inst, args, self.rng, self.arithmetic)).view(kind)

    def _exchange(self, value: Array, distance: Array, active: Array) -> Array:
        other = self.thread ^ distance
        assert (other // 32 == self.thread // 32).all(), "partners are of one warp"
        assert (other[active] < self.program.block).all(), "no thread is without a partner"
        places = (self.block * np.uint32(self.program.block) + other) % np.uint32(self.threads)
        assert active[places][active].all(), "a partner does not take part"
        return value[places]

    def _load(self, inst: NirInst, address: Array, active: Array) -> Array:
        size = inst.bits // 8
        assert not (address % inst.attr[0]).any(), f"{inst} is not aligned"
        space = inst.op.removeprefix("load_")
        if space == "global":
            return self.memory.load(address, size)
        rows, columns = self._near(space, address, size, active)
        return np.ascontiguousarray(self.near[space][rows, columns])

    def _store(self, inst: NirInst, address: Array, data: Array, active: Array) -> None:
        assert not (address % inst.attr[0]).any(), f"{inst} is not aligned"
        space = inst.op.removeprefix("store_")
        if space == "global":
            self.memory.store(address, data)
            return
        rows, columns = self._near(space, address, data.shape[1], active)
        self.near[space][rows, columns] = data

    def _near(self, space: str, at: Array, size: int, active: Array) -> tuple[Array, Array]:
        columns = at.astype(np.int64)[:, None] + np.arange(size)
        assert columns.size == 0 or columns.max() < self.near[space].shape[1], f"outside {space}"
        return self.rows[space][active][:, None], columns


def _unsigned(bits: int) -> type:
    return {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[bits]


def _bytes(values: Array) -> Array:
    return values.view(np.uint8).reshape(len(values), values.dtype.itemsize)


class Arithmetic(NamedTuple):
    """What machines differ in: how far estimates are off, and what floats become on the way."""

    off: int  # units in the last place
    fma: Callable[[Array, Array, Array], Array]
    kept: Callable[[Array], Array]


def alu(
    inst: NirInst, args: list[Array], rng: np.random.Generator, arithmetic: Arithmetic
) -> Array:
    """One operation on all elements."""
    name = inst.op
    if name == "bcsel":
        return np.where(*args)
    if conversion := re.fullmatch(r"([biuf])2([iuf])(\d+)(?:_rtne)?", name):
        source, target, bits = conversion.groups()
        x = arithmetic.kept(_floats(args[0])) if source == "f" else args[0]
        result = _convert(x, source, target, bits, rng)
        return arithmetic.kept(result) if target == "f" else result
    if name == "ufind_msb":
        lengths = [int(value).bit_length() - 1 for value in args[0]]
        return np.array(lengths, np.int32)
    if name in ("frcp", "frsq"):
        return _estimate(name, arithmetic.kept(_floats(args[0])), rng, arithmetic.off)
    if name in _FLOAT or name == "ffma":
        function = _FLOAT.get(name, arithmetic.fma)
        result = np.asarray(function(*(arithmetic.kept(_floats(arg)) for arg in args)))
        return result if inst.bits == 1 else arithmetic.kept(result)
    if name in ("ishl", "ishr", "ushr"):
        count = args[1] % np.uint32(inst.bits)
        x = _signed(args[0]) if name == "ishr" else args[0]
        shift = np.left_shift if name == "ishl" else np.right_shift
        return np.asarray(shift(x, count.astype(x.dtype)))
    if name == "inot":
        return np.asarray(np.invert(args[0]))
    if name in _SIGNED:
        return np.asarray(_SIGNED[name](*map(_signed, args)))
    return np.asarray(_UNSIGNED[name](*args))


def _floats(x: Array) -> Array:
    return x.view({16: np.float16, 32: np.float32, 64: np.float64}[8 * x.dtype.itemsize])


def _signed(x: Array) -> Array:
    return x.view(f"i{x.dtype.itemsize}")


def _estimate(name: str, x: Array, rng: np.random.Generator, off: int) -> Array:
    """What hardware has instead of a division or a root."""
    assert x.dtype == np.float32, "only 32 bits are estimated"
    exact = 1 / x if name == "frcp" else 1 / np.sqrt(x)
    near = exact.view(np.int32) + rng.integers(-off, off + 1, x.size, dtype=np.int32)
    return np.where(np.isfinite(exact), near.view(np.float32), exact)


def _divide(a: Array, b: Array) -> Array:
    """Toward zero; rubbish for 0."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = np.floor_divide(a - np.fmod(a, safe), safe)
    return np.where(b == 0, b.dtype.type(77), quotient)


def _remainder(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, b.dtype.type(78), np.fmod(a, safe))


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once."""
    if a.dtype == np.float32:
        product = a.astype(np.float64) * b.astype(np.float64)  # exact
        wide = c.astype(np.float64)
        total = product + wide
        back = total - product
        error = (product - (total - back)) + (wide - back)
        # Rounded to odd, so that rounding again rounds once.
        even = (total.view(np.int64) & 1) == 0
        odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        return np.where((error != 0) & even & np.isfinite(total), odd, total).astype(np.float32)
    exact = map(_fma, a.tolist(), b.tolist(), c.tolist())
    return np.fromiter(exact, np.float64, len(a))


def _fma(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    (x, p), (y, q), (z, r) = (value.as_integer_ratio() for value in (a, b, c))
    # Denominators are powers of two, and Python divides integers with one rounding.
    total = x * y * r + z * p * q
    try:
        return total / (p * q * r) if total else a * b + c
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _without_subnormals(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


FUSED = Arithmetic(2, fma, lambda x: x)
FLUSHED = Arithmetic(8, lambda a, b, c: a * b + c, _without_subnormals)


def _convert(x: Array, source: str, target: str, bits: str, rng: np.random.Generator) -> Array:
    size = int(bits) // 8
    if source == "b":
        return x.astype(f"{target}{size}")
    if source == "f":
        values = _floats(x)
        if target == "f":
            return values.astype(f"f{size}")
        kind = np.dtype(f"{target}{size}")
        wide = np.trunc(values.astype(np.float64))
        low, high = float(np.iinfo(kind).min), float(np.iinfo(kind).max) + 1
        fits = (wide >= low) & (wide < high)
        rubbish = rng.integers(0, 100, x.size).astype(kind)
        return np.where(fits, np.where(fits, wide, 0).astype(kind), rubbish)
    return (_signed(x) if source == "i" else x).astype(f"{target}{size}")


_FLOAT: dict[str, Callable[..., Array]] = {
    "fabs": np.abs, "ffloor": np.floor, "fneg": np.negative, "fround_even": np.rint,
    "ftrunc": np.trunc, "fadd": np.add, "fmul": np.multiply, "feq": np.equal,
    "fge": np.greater_equal, "flt": np.less, "fneu": np.not_equal,
}  # fmt: skip
_SIGNED: dict[str, Callable[..., Array]] = {
    "iabs": np.abs, "ineg": np.negative, "imax": np.maximum, "imin": np.minimum,
    "ige": np.greater_equal, "ilt": np.less, "idiv": _divide, "irem": _remainder,
}  # fmt: skip
_UNSIGNED: dict[str, Callable[..., Array]] = {
    "iadd": np.add, "isub": np.subtract, "imul": np.multiply, "iand": np.bitwise_and,
    "ior": np.bitwise_or, "ixor": np.bitwise_xor, "ieq": np.equal, "ine": np.not_equal,
    "udiv": _divide, "umod": _remainder, "umax": np.maximum, "umin": np.minimum,
    "uge": np.greater_equal, "ult": np.less,
}  # fmt: skip

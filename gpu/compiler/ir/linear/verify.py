"""Rules of the linear IR, checked: order, scope, nesting, types and lanes of every instruction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NoReturn

import numpy as np

from gpu.compiler.ir import optable
from gpu.compiler.ir.linear import LOOP_KINDS, OPS, Inst, Limit, Param, Program, matrix_verify
from gpu.compiler.ir.linear.residue import Residues
from gpu.compiler.ir.linear.text import NAMELESS, print_header, print_insts
from gpu.compiler.ir.linear.threads import Threads
from gpu.compiler.ir.text import excerpt
from gpu.core.dtype import DType, PyScalar, dtypes
from gpu.core.errors import DTypeError, VerifyError

_POINTERS: Final = frozenset({"param", "local"})
_NO_VALUE: Final = NAMELESS | {"end", "if"}
_ARGS: Final[dict[str, tuple[int, int]]] = {
    "const": (0, 0), "param": (0, 0), "val": (0, 0), "local": (0, 0), "carry": (1, 1),
    "result": (1, 1), "if": (1, 1), "endif": (0, 0), "load": (2, 3), "store": (3, 4),
    "cast": (1, 1),
    "bitcast": (1, 1), "splat": (1, 1), "ramp": (1, 1), "extract": (1, 1), "fold": (1, 1),
    "shuffle": (2, 2), "barrier": (0, 0), "alu": (1, 3), "shuffle_xor": (1, 1),
    "copy": (4, 5), "commit": (0, 0), "wait": (0, 0), "fragment": (2, 2),
    "load_tile": (2, 2), "store_tile": (3, 3), "prefetch": (2, 2),
}  # fmt: skip
_POINTER_ARGS: Final = {
    "load": (0,),
    "store": (0,),
    "prefetch": (0,),
    **matrix_verify.POINTERS,
}


def verify_linear(program: Program) -> None:
    """Raises VerifyError, showing the instruction among its neighbours, if a rule is broken."""
    _Verifier(program).run()


def holds(dtype: DType, value: PyScalar) -> bool:
    """Whether `value` is of the Python type constants of `dtype` are kept as, and fits exactly."""
    if type(value) is not (bool if dtype is dtypes.bool else float if dtype.is_float else int):
        return False
    if dtype.is_int:
        return bool(dtype.min <= value <= dtype.max)
    with np.errstate(all="ignore"):
        held = optable.to_python(optable.scalar(dtype)(value), dtype)
    return held == value or math.isnan(value)


class _Verifier:
    """Walks the body once, keeping the open loops and ifs and what is visible in each."""

    def __init__(self, program: Program):
        self.program = program
        self.position = 0
        self.visible: set[Inst] = set()
        self.open: list[tuple[Inst, list[Inst]]] = []
        self.top: list[Inst] = []
        self.threads = Threads(program)
        self.residues = Residues()

    def fail(self, rule: str) -> NoReturn:
        """Raises for the current instruction."""
        lines = [print_header(self.program), *print_insts(self.program)]
        shown = excerpt(lines, self.position + 1)
        raise VerifyError(f"linear program {self.program.name}: {rule}\n{shown}")

    def require(self, condition: bool, rule: str) -> None:
        """Raises for the current instruction unless `condition` holds."""
        if not condition:
            self.fail(rule)

    def run(self) -> None:
        """Checks everything."""
        names = [p.name for p in self.program.params]
        if len(set(names)) != len(names):
            raise VerifyError(f"{print_header(self.program)}: parameter names must be distinct")
        if len({v.name for v in self.program.vals}) != len(self.program.vals):
            raise VerifyError(f"{print_header(self.program)}: names of values must be distinct")
        for position, inst in enumerate(self.program.body):
            self.position = position
            self.inst(inst)
        if self.open:
            self.fail(f"{self.open[-1][0].op} is never closed")

    def inst(self, inst: Inst) -> None:
        """Checks one instruction and makes its value visible."""
        self.require(inst.op in OPS, f"{inst.op} is no operation of this IR")
        self.require(inst not in self.visible, "each instruction stands in the body once")
        self.operands(inst)
        if inst.op in ("end", "endif"):
            self.close(inst)
        _RULES.get(inst.op, _no_rule)(self, inst)
        if broken := self.threads.broken_rule(inst, [opened for opened, _ in self.open]):
            self.fail(broken)
        (self.open[-1][1] if self.open else self.top).append(inst)
        self.visible.add(inst)
        if inst.op in ("loop", "if"):
            self.open.append((inst, []))

    def operands(self, inst: Inst) -> None:
        """Count and scope of the operands, and pointers only where pointers belong."""
        least, most = _ARGS.get(inst.op, (0, len(inst.args)))
        self.require(least <= len(inst.args) <= most, f"{inst.op} has {least} to {most} operands")
        self.require(inst.lanes >= 1, "lanes start at 1")
        for number, arg in enumerate(inst.args):
            self.require(
                arg in self.visible,
                f"operand {number} is not defined before this, or in a loop or if closed since",
            )
            wants_pointer = number in _POINTER_ARGS.get(inst.op, ())
            is_pointer = arg.op in _POINTERS
            needed = f"operand {number} must be a param or a local"
            self.require(not wants_pointer or is_pointer, needed)
            self.require(wants_pointer or not is_pointer, f"operand {number} must not be a pointer")
            has_value = arg.op not in _NO_VALUE or (inst.op, arg.op) == ("result", "end")
            self.require(has_value, f"operand {number} is a {arg.op}, which has no value")

    def close(self, inst: Inst) -> None:
        """An `end` or `endif` closes what was opened last; what was made inside is gone."""
        wanted = "loop" if inst.op == "end" else "if"
        self.require(bool(self.open), f"{inst.op} closes no {wanted}")
        opened, inside = self.open.pop()
        self.require(opened.op == wanted and inst.attr[0] is opened, f"this must close {opened}")
        self.visible.difference_update(inside)

    def same(self, a: Inst, b: Inst, what: str) -> None:
        """Both have one type."""
        if (a.dtype, a.lanes) != (b.dtype, b.lanes):
            self.fail(f"{what} must have one type, not {_type(a)} and {_type(b)}")

    def scalar_arg(self, inst: Inst) -> None:
        """The first operand is a scalar of the result's dtype."""
        arg = inst.args[0]
        fits = arg.lanes == 1 and arg.dtype is inst.dtype
        self.require(fits, f"operand 0 must be a scalar {inst.dtype.code}, not {_type(arg)}")


def _type(inst: Inst) -> str:
    return f"{inst.dtype.code}x{inst.lanes}" if inst.lanes > 1 else inst.dtype.code


def _no_rule(check: _Verifier, inst: Inst) -> None:
    """What the table of operands says is all there is to check."""


def _const(check: _Verifier, inst: Inst) -> None:
    check.require(holds(inst.dtype, inst.attr[0]), f"{inst.attr[0]!r} is no {inst.dtype.name}")


def _param(check: _Verifier, inst: Inst) -> None:
    check.require(0 <= inst.attr[0] < len(check.program.params), "there is no such parameter")
    param = check.program.params[inst.attr[0]]
    fits = inst.dtype is param.dtype and inst.lanes == 1
    check.require(fits, f"parameter {param.name} points to {param.dtype.code}")


def _val(check: _Verifier, inst: Inst) -> None:
    check.require(0 <= inst.attr[0] < len(check.program.vals), "there is no such value")
    check.require(_type(inst) == "i64", "a value of the launch is an i64")


def _local(check: _Verifier, inst: Inst) -> None:
    elements, space = inst.attr
    check.require(space in ("private", "team"), "local memory is private or team")
    check.require(elements > 0 and inst.lanes == 1, "local memory has at least one element")


def _loop(check: _Verifier, inst: Inst) -> None:
    kind, start, stop, step = inst.attr
    check.require(kind in LOOP_KINDS, f"the kind of a loop is one of {' '.join(LOOP_KINDS)}")
    check.require(kind == "serial" or not inst.args, f"a {kind} loop has no carries")
    if isinstance(stop, Limit):
        known = stop.value in check.visible and _type(stop.value) == "i64"
        check.require(known, "what a loop stays below must be an i64 that is defined before this")
        stop = stop.most
    bounds = all(holds(dtypes.int64, bound) for bound in (start, stop, step))
    check.require(bounds and step > 0, "bounds are integers and the step is positive")
    check.require(_type(inst) == "i64", "the counter of a loop is an i64")


def _end(check: _Verifier, inst: Inst) -> None:
    initial = inst.attr[0].args
    check.require(len(initial) == len(inst.args), f"the loop has {len(initial)} carries")
    for number, (first, following) in enumerate(zip(initial, inst.args, strict=True)):
        check.same(first, following, f"the values of carry {number}")


def _carry(check: _Verifier, inst: Inst) -> None:
    loop, position = inst.args[0], inst.attr[0]
    is_open = any(opened is loop for opened, _ in check.open) and loop.op == "loop"
    check.require(is_open, "the operand must be a loop around this")
    check.require(0 <= position < len(loop.args), f"the loop has {len(loop.args)} carries")
    check.same(inst, loop.args[position], "a carry and its initial value")


def _result(check: _Verifier, inst: Inst) -> None:
    end, position = inst.args[0], inst.attr[0]
    check.require(end.op == "end", "the operand must be an end")
    check.require(0 <= position < len(end.args), f"the loop has {len(end.args)} carries")
    check.same(inst, end.args[position], "a result and its carry")


def _if(check: _Verifier, inst: Inst) -> None:
    check.require(_type(inst.args[0]) == "b1", "the condition must be a scalar bool")


def _access(check: _Verifier, inst: Inst) -> None:
    pointer, index = inst.args[:2]
    value = inst if inst.op == "load" else inst.args[2]
    fits = value.dtype is pointer.dtype
    check.require(fits, f"the pointer points to {pointer.dtype.code}, not {value.dtype.code}")
    one_each = index.dtype is dtypes.int64 and index.lanes in (1, value.lanes)
    check.require(one_each, f"the index must be i64 with 1 or {value.lanes} lanes")
    for mask in inst.args[2 if inst.op == "load" else 3 :]:
        fits = mask.dtype is dtypes.bool and mask.lanes == value.lanes
        check.require(fits, f"the mask must be bool with {value.lanes} lanes, not {_type(mask)}")
    if pointer.op != "param":
        return
    param = check.program.params[pointer.attr[0]]
    if inst.op == "store":
        check.require(param.written, f"parameter {param.name} is only read")
    if param.image:
        _image_access(check, inst, param)


def _image_access(check: _Verifier, inst: Inst, param: Param) -> None:
    """Images are written by whole pixels, and only read if they are not written."""
    if inst.op == "load":
        check.require(not param.written, f"the image {param.name} is written, so never loaded")
        return
    index = inst.args[1]
    whole = inst.args[2].lanes == 4 and check.residues.of(index, 4) == 0 and len(inst.args) == 3
    rule = f"the image {param.name} is written by pixels: four lanes from a multiple of 4 on"
    check.require(whole and index.lanes == 1, f"{rule}, without a mask")


def _alu(check: _Verifier, inst: Inst) -> None:
    name = inst.attr[0]
    check.require(name in optable.OPS, f"{name} is no scalar operation")
    try:
        expected = optable.result_dtype(name, tuple(a.dtype for a in inst.args))
    except DTypeError as error:
        check.fail(error.message)
    check.require(expected is inst.dtype, f"{name} gives {expected.code} here")
    lanes = all(a.lanes == inst.lanes for a in inst.args)
    check.require(lanes, f"operands must have the {inst.lanes} lanes of the result")


def _cast(check: _Verifier, inst: Inst) -> None:
    arg = inst.args[0]
    same_bits = arg.lanes * arg.dtype.bits == inst.lanes * inst.dtype.bits
    if inst.op == "bitcast" and same_bits and arg.lanes > inst.lanes:
        return
    check.require(arg.lanes == inst.lanes, f"the {arg.lanes} lanes of the operand stay")
    same_width = inst.op == "cast" or arg.dtype.bits == inst.dtype.bits
    check.require(same_width, f"bitcast keeps the width; {arg.dtype.code} has another")


def _splat(check: _Verifier, inst: Inst) -> None:
    check.scalar_arg(inst)


def _ramp(check: _Verifier, inst: Inst) -> None:
    check.require(inst.dtype is dtypes.int64, "a ramp is made of i64")
    check.require(holds(dtypes.int64, inst.attr[0]), "the step of a ramp is an integer")
    check.scalar_arg(inst)


def _lane(check: _Verifier, inst: Inst) -> None:
    arg = inst.args[0]
    check.require(inst.lanes == 1 and arg.dtype is inst.dtype, "the result is a scalar of its type")
    if inst.op == "extract":
        check.require(0 <= inst.attr[0] < arg.lanes, f"the operand has {arg.lanes} lanes")
    else:
        monoid = optable.MONOIDS.get(inst.attr[0])
        defined = monoid is not None and inst.dtype.kind in monoid.domain
        check.require(defined, f"{inst.attr[0]} is no monoid of {inst.dtype.code}")


def _pack(check: _Verifier, inst: Inst) -> None:
    fits = all(a.lanes == 1 and a.dtype is inst.dtype for a in inst.args)
    check.require(fits, f"operands must be scalars of {inst.dtype.code}")
    check.require(len(inst.args) == inst.lanes, f"there must be {inst.lanes} operands")


def _shuffle(check: _Verifier, inst: Inst) -> None:
    a, b = inst.args
    check.require(a.dtype is b.dtype is inst.dtype, f"operands must be of {inst.dtype.code}")
    lanes = inst.attr[0]
    check.require(len(lanes) == inst.lanes, f"{inst.lanes} lanes must be picked")
    inside = all(0 <= lane < a.lanes + b.lanes for lane in lanes)
    check.require(inside, f"lanes are 0 to {a.lanes + b.lanes - 1}")


def _shuffle_xor(check: _Verifier, inst: Inst) -> None:
    check.scalar_arg(inst)
    check.require(inst.lanes == 1, "threads exchange scalars")
    check.require(len(inst.attr) == 2, "an exchange has a distance and a warp")


def _prefetch(check: _Verifier, inst: Inst) -> None:
    pointer, index = inst.args
    check.require(pointer.op == "param", "a prefetch is of a parameter")
    scalar = index.dtype is dtypes.int64 and index.lanes == 1
    check.require(scalar, "the index must be one int64")


_RULES: Final[dict[str, Callable[[_Verifier, Inst], None]]] = {
    "const": _const, "param": _param, "val": _val, "local": _local, "loop": _loop, "carry": _carry,
    "end": _end, "result": _result, "if": _if, "load": _access, "store": _access, "alu": _alu,
    "cast": _cast, "bitcast": _cast, "splat": _splat, "ramp": _ramp, "extract": _lane,
    "fold": _lane, "pack": _pack, "shuffle": _shuffle, "shuffle_xor": _shuffle_xor,
    "prefetch": _prefetch,
    **matrix_verify.RULES,
}  # fmt: skip

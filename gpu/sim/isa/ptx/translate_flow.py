"""Branches, barriers and what lanes of a warp do together, into records."""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu.sim.isa.ptx import lanemoves, wave
from gpu.sim.isa.ptx.context import KINDS, Context, Handler
from gpu.sim.isa.ptx.syntax import Both, BranchTargets, Operand, Register, Symbol

_ALL_LANES: Final = 0xFFFFFFFF


def label(context: Context, operand: Operand) -> int:
    """The number of the label that an operand names."""
    if not isinstance(operand, Symbol) or operand.name not in context.scope.labels:
        raise context.error("this goes to a label that the function does not have")
    return context.scope.labels[operand.name]


def branch(context: Context, target: int) -> None:
    """Goes to a label, where the guard holds."""
    guard = context.instruction.guard
    if guard is None:
        context.emit("bra", target=target)
        return
    row = context.source(Register(guard.name), "p")
    context.emit("bra_unless" if guard.negated else "bra_if", a=row, target=target)
    context.emit("join")


def around(context: Context, handler: Handler) -> None:
    """What must not run with some lanes masked: others branch around it."""
    guard = context.instruction.guard
    if guard is None:
        handler(context)
        return
    behind = context.new_label()
    row = context.source(Register(guard.name), "p")
    context.emit("bra_if" if guard.negated else "bra_unless", a=row, target=behind)
    context.emit("join")
    handler(context)
    context.place(behind)
    context.emit("join")


def _branch(context: Context) -> None:
    """BRA."""
    context.parts("uni")
    branch(context, label(context, context.arity(1)[0]))


def _branch_by_index(context: Context) -> None:
    """BRX.IDX: a comparison for each target."""
    context.parts("idx", "uni")
    operands = context.arity(2)
    name = operands[1].name if isinstance(operands[1], Symbol) else ""
    body = context.scope.function.body or []
    found = [item for item in body if isinstance(item, BranchTargets) and item.name == name]
    if not found:
        raise context.error(f"{name or 'this'} is no list of branch targets")
    index = context.source(operands[0], "i32")
    hit = context.temp()
    for number, target in enumerate(found[0].targets):
        wanted = context.rows.constant("i32", number)
        context.compute("brx.eq", lambda x, y: x.eq(y), [index, wanted], ["i32"] * 2, [hit])
        context.emit("bra_if", a=hit, target=label(context, Symbol(target)))
        context.emit("join")
    context.emit("trap")


def _barrier(context: Context) -> None:
    """BAR and BARRIER of a block; of a warp, BAR.WARP.SYNC."""
    parts = [part for part in context.instruction.parts if part not in ("cta", "aligned")]
    if parts == ["warp", "sync"]:
        _gather_lanes(context, context.arity(1)[0])
        return
    kinds = {
        ("sync",): wave.SYNC,
        ("arrive",): wave.ARRIVE,
        ("red", "popc", "u32"): wave.RED_POPC,
        ("red", "and", "pred"): wave.RED_AND,
        ("red", "or", "pred"): wave.RED_OR,
    }
    kind = kinds.get(tuple(parts))
    if kind is None:
        raise context.error("this barrier has no semantics here")
    operands = list(context.instruction.operands)
    target = wave.WARP.trash
    predicate = context.rows.constant("i32", 0)
    if kind in (wave.RED_POPC, wave.RED_AND, wave.RED_OR):
        if len(operands) not in (3, 4):
            raise context.error("a result, a barrier and a predicate are needed")
        target = context.target(operands.pop(0), "i32" if kind == wave.RED_POPC else "p")
        predicate = context.predicate(operands.pop())
    if len(operands) not in (1, 2):
        raise context.error("a barrier and a number of threads are needed")
    rows = [context.source(operand, "i32") for operand in operands]
    threads = rows[1] if len(rows) == 2 else context.rows.constant("i32", 0)
    context.emit("barrier", d=target, a=rows[0], b=threads, c=predicate, immediate=kind)


def _gather_lanes(context: Context, mask: Operand) -> None:
    """Waits for the lanes of a mask."""
    context.emit("warp_sync", a=context.source(mask, "i32"))


def _members(context: Context, operands: list[Operand]) -> int:
    """Takes the mask of members from the end of the operands, and waits for them."""
    if "sync" not in context.instruction.parts:
        return context.rows.constant("i32", _ALL_LANES)
    mask = context.source(operands.pop(), "i32")
    context.emit("warp_sync", a=mask)
    return mask


def _flags(context: Context, *modes: str) -> tuple[str, str]:
    """(mode, type) of an operation of a warp."""
    kind, flags = context.one_type("sync", *modes)
    flags -= {"sync"}
    if len(flags) != 1:
        raise context.error(f"one of {' '.join(modes)} is needed")
    return next(iter(flags)), kind


def _two(target: Operand) -> tuple[Operand, Operand | None]:
    """The destinations of ``a|b``, or of ``a`` alone."""
    return (target.first, target.second) if isinstance(target, Both) else (target, None)


def _shuffle(context: Context) -> None:
    """SHFL."""
    mode, kind = _flags(context, "up", "down", "bfly", "idx")
    operands = list(context.instruction.operands)
    if kind != "b32" or len(operands) != (5 if "sync" in context.instruction.parts else 4):
        raise context.error("this shuffle has no semantics here")
    _members(context, operands)
    first, second = _two(operands[0])
    context.emit(
        f"shfl_{mode}",
        partial(lanemoves.shuffle, mode),
        a=context.source(operands[1], "i32"),
        b=context.source(operands[2], "i32"),
        c=context.source(operands[3], "i32"),
        d=context.target(first, "i32"),
        e=context.target(second, "p") if second else context.temp(),
    )


def _vote(context: Context) -> None:
    """VOTE."""
    mode, kind = _flags(context, "all", "any", "uni", "ballot")
    operands = list(context.instruction.operands)
    if len(operands) != (3 if "sync" in context.instruction.parts else 2):
        raise context.error("a result, a predicate and a mask are needed")
    if (kind == "b32") != (mode == "ballot"):
        raise context.error(f"vote.{mode} does not give .{kind}")
    mask = _members(context, operands)
    context.emit(
        f"vote_{mode}",
        partial(lanemoves.vote, mode),
        a=context.predicate(operands[1]),
        b=mask,
        d=context.target(operands[0], KINDS[kind]),
    )


def _active_mask(context: Context) -> None:
    """ACTIVEMASK."""
    context.one_type(among=("b32",))
    target = context.target(context.arity(1)[0], "i32")
    context.emit("activemask", lanemoves.active_mask, d=target)


def _reduce(context: Context) -> None:
    """REDUX."""
    mode, kind = _flags(context, "add", "min", "max", "and", "or", "xor")
    if kind not in ("s32", "u32", "b32"):
        raise context.error(f"redux of .{kind} has no semantics here")
    operands = list(context.arity(3))
    _members(context, operands)
    name = f"{mode}.{kind}" if mode in ("min", "max") else mode
    source = context.source(operands[1], "i32")
    target = context.target(operands[0], "i32")
    context.emit(f"redux_{name}", partial(lanemoves.reduce, name), a=source, d=target)


def _match(context: Context) -> None:
    """MATCH."""
    mode, kind = _flags(context, "any", "all")
    operands = list(context.arity(3))
    _members(context, operands)
    first, second = _two(operands[0])
    context.emit(
        f"match_{mode}_{KINDS[kind]}",
        partial(lanemoves.match, mode, KINDS[kind]),
        a=context.source(operands[1], KINDS[kind]),
        d=context.target(first, "i32"),
        e=context.target(second, "p") if second else context.temp(),
    )


def _elect(context: Context) -> None:
    """ELECT."""
    operands = list(context.arity(2))
    if context.instruction.parts != ("sync",) or not isinstance(operands[0], Both):
        raise context.error("elect.sync gives a lane and a predicate")
    target = operands[0]
    _members(context, operands)
    lane = context.target(target.first, "i32")
    context.emit("elect", lanemoves.elect, d=lane, e=context.target(target.second, "p"))


def _trap(context: Context) -> None:
    """TRAP and BRKPT."""
    context.arity(0)
    context.emit("trap")


def ends(context: Context) -> None:
    """EXIT, and RET of a kernel."""
    context.parts("uni")
    if context.instruction.guard is None:
        context.emit("exit")
    else:
        branch(context, context.exit)


TOGETHER: Final[dict[str, Handler]] = {
    **dict.fromkeys(("bar", "barrier"), _barrier),
    "shfl": _shuffle,
    "vote": _vote,
    "redux": _reduce,
    "match": _match,
    "elect": _elect,
    "brx": _branch_by_index,
    **dict.fromkeys(("trap", "brkpt"), _trap),
}
"""Instructions that are branched around where their guard does not hold."""
BRANCHES: Final[dict[str, Handler]] = {"bra": _branch, "exit": ends}
"""Instructions that see to their guard themselves."""
HANDLERS: Final[dict[str, Handler]] = {"activemask": _active_mask}

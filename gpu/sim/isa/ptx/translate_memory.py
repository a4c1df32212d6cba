"""Instructions on memory into records."""

from __future__ import annotations

from functools import partial
from typing import Final

from gpu.sim.isa import layout
from gpu.sim.isa.ptx import atomics, memory
from gpu.sim.isa.ptx.context import KINDS, Context, Handler
from gpu.sim.isa.ptx.resolve import GENERIC, GLOBAL, LOCAL, PARAM, SHARED, Access
from gpu.sim.isa.ptx.syntax import TYPES, Address, Number, Operand, Pack, Sink, Symbol
from gpu.sim.isa.ptx.wave import LOCAL_WINDOW, SHARED_WINDOW
from gpu.sim.isa.values import Value

_HINTS: Final = (
    *("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "cta", "cluster"),
    *("gpu", "sys", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "L1::evict_normal"),
    *("L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"),
    *("L2::64B", "L2::128B", "L2::256B", "L2::evict_first", "L2::evict_last"),
    *("L2::evict_normal", "noftz", "L2::cache_hint"),
)
"""How caches and other threads see an access; here all of them see it at once."""
_SPACES: Final = {
    "global": GLOBAL,
    "const": GLOBAL,
    "shared": SHARED,
    "shared::cta": SHARED,
    "local": LOCAL,
    "param": PARAM,
    "param::entry": PARAM,
    "param::func": LOCAL,
    "shared::cluster": SHARED,
}
_WHERE: Final = {"local": LOCAL, "frame": LOCAL, "shared": SHARED, "param": PARAM}
_ATOMICS: Final = ("exch", "add", "and", "or", "xor", "inc", "dec", "min", "max", "cas")


def _space(context: Context, flags: set[str], address: Address) -> int:
    """Which memory an access is to."""
    named = flags & set(_SPACES)
    space = _SPACES[next(iter(named))] if named else GENERIC
    base = address.base
    if isinstance(base, Symbol) and context.register(base) is None:
        where, _ = context.symbol(base.name)
        # The parameters of functions, and what is passed to them, lie in local memory.
        return _WHERE.get(where, GLOBAL)
    return space


def locate(context: Context, flags: set[str], operand: Operand) -> tuple[int, dict[str, int], str]:
    """(space, operands of the record, kind of the address) of ``[a + b]``.

    A kernel's parameter by name has no kind, and its place as the immediate.
    """
    if isinstance(operand, Symbol) and not context.register(operand):  # ``a[1]``
        operand = Address(operand)
    if not isinstance(operand, Address):
        raise context.error("an address in brackets is needed")
    space = _space(context, flags, operand)
    base = operand.base
    register = None if isinstance(base, Number) else context.register(base)
    if register:
        row, bits = register
        if bits not in (32, 64):
            raise context.error(f"an address of {bits} bits")
        return space, {"a": row, "immediate": operand.offset}, f"i{bits}"
    if isinstance(base, Number):
        at = base.bits
    elif isinstance(base, Symbol):
        at = context.address_of(base)
        if context.symbol(base.name)[0] == "frame":
            return space, {"a": context.frame, "immediate": at + operand.offset}, "i64"
        if space == PARAM:
            return space, {"immediate": at + operand.offset}, ""
    else:
        raise context.error(f"{base.name} is not declared")
    return space, {"a": context.rows.constant("i64", at + operand.offset)}, "i64"


def _items(context: Context, operand: Operand, flags: set[str]) -> tuple[Operand, ...]:
    count = 4 if "v4" in flags else 2 if "v2" in flags else 1
    items = operand.items if isinstance(operand, Pack) else (operand,)
    if len(items) != count:
        raise context.error(f"{len(items)} values, {count} are expected")
    return items


def _access(context: Context) -> tuple[str, set[str]]:
    return context.one_type(*_HINTS, *_SPACES, "v2", "v4")


def _memory_type(kind: str) -> str:
    bits = TYPES[kind]
    return f"s{bits}" if kind[0] == "s" else f"u{bits}"


def _register_kind(context: Context, items: tuple[Operand, ...], kind: str) -> str:
    """The kind of the registers of an access, which may be wider than what memory holds."""
    widths = {bits for item in items if (bits := context.width(item))}
    bits = max(widths, default=max(16, TYPES[kind]))
    if len(widths) > 1 or bits < TYPES[kind] or TYPES[kind] in (1, 128):
        raise context.error(f"registers of {sorted(widths)} bits for .{kind}")
    return f"i{bits}"


def _load_parameter(
    context: Context, items: tuple[Operand, ...], kind: str, register: str, at: int
) -> None:
    """Parameters of the kernel are the same for all lanes."""
    size = TYPES[kind] // 8
    what = (_memory_type(kind), register)
    for number, item in enumerate(items):
        place = at + size * number
        if place % size or not 0 <= place <= context.parameter_bytes - size:
            raise context.error(f"{size} bytes at {place} of the parameters")
        target = context.target(item, register)
        name = memory.parameter_name(*what)
        context.emit(name, partial(memory.parameter, *what), d=target, immediate=place)


def _load(context: Context) -> None:
    """LD and LDU."""
    kind, flags = _access(context)
    target, address = context.instruction.operands[:2] if context.arity(2, 3) else ()
    items = _items(context, target, flags)
    space, where, form = locate(context, flags, address)
    register = _register_kind(context, items, kind)
    if space == PARAM and form == "":
        _load_parameter(context, items, kind, register, where["immediate"])
        return
    for slot, item in zip(memory.LOADED, items, strict=False):
        where[slot] = context.target(item, register)
    what = (space, form, _memory_type(kind), register, len(items))
    context.emit(memory.load_name(*what), partial(memory.load, *what), **where)


def _store(context: Context) -> None:
    """ST."""
    kind, flags = _access(context)
    address, source = context.instruction.operands[:2] if context.arity(2, 3) else ()
    items = _items(context, source, flags)
    space, where, form = locate(context, flags, address)
    if space == PARAM:
        raise context.error("parameters of a kernel cannot be written")
    register = _register_kind(context, items, kind)
    for slot, item in zip(memory.STORED, items, strict=False):
        number = isinstance(item, Number)
        place = context.source(item, KINDS[kind] if number and TYPES[kind] >= 32 else register)
        where[slot] = place
    what = (space, form, _memory_type(kind), register, len(items))
    context.emit(memory.store_name(*what), partial(memory.store, *what), **where)


def _atomic(context: Context) -> None:
    """ATOM and RED."""
    instruction = context.instruction
    reduces = instruction.name == "red"
    kind, flags = context.one_type(*_HINTS, *_SPACES, *_ATOMICS)
    operation = next((name for name in _ATOMICS if name in flags), "")
    known = operation == "cas" or (operation and atomics.update_of(operation, kind))
    if not known or kind in ("pred", "tf32") or TYPES[kind] not in (16, 32, 64):
        raise context.error(f"no atomic .{operation} of .{kind} is known")
    count = (1 if reduces else 2) + (2 if operation == "cas" else 1)
    operands = list(context.arity(count))
    target = Sink() if reduces else operands.pop(0)
    space, where, form = locate(context, flags, operands[0])
    wide = f"i{TYPES[kind]}"
    if space == PARAM:
        raise context.error("parameters of a kernel cannot be written")
    how = Access(space, TYPES[kind] // 8, layout.READ | layout.WRITE | layout.ATOMIC)
    name = f"pointers_{space}_{form}_{how.size}"
    context.emit(name, partial(atomics.resolve, name, how, form), **where)
    literal = KINDS[kind] if KINDS[kind] in ("f32", "f64") else wide
    data = {"d": context.target(target, wide)}
    for slot, operand in zip(("b", "c"), operands[1:], strict=False):
        form_of = literal if isinstance(operand, Number) else wide
        data[slot] = context.source(operand, form_of)
    what = _plain_type(operation, kind)
    name = f"atom_{operation}_{what}"
    context.emit(name, partial(atomics.atomic, name, operation, what), **data)


def _plain_type(operation: str, kind: str) -> str:
    """One of the types that an atomic is the same for."""
    if operation in ("exch", "cas", "and", "or", "xor") or (operation == "add" and kind[0] in "su"):
        return f"b{TYPES[kind]}"
    return kind


def _to_or_from(context: Context) -> None:
    """CVTA: generic addresses are those of a window where the space has one."""
    types, flags = context.parts("to", *_SPACES)
    kind = types[0] if len(types) == 1 else ""
    if kind not in ("u64", "u32"):
        raise context.error("the type is .u64 or .u32")
    space = _SPACES[next(iter(flags - {"to"}), "global")]
    operands = context.arity(2)
    wide = KINDS[kind]
    source = context.source(operands[1], wide)
    target = context.target(operands[0], wide)
    if space == PARAM:
        raise context.error("parameters have no generic address here")
    window = {SHARED: SHARED_WINDOW, LOCAL: LOCAL_WINDOW}.get(space)
    if window is None or kind == "u32":
        context.compute("mov", lambda x: x, [source], [wide], [target])
        return
    base = context.window(window)
    if "to" in flags:
        context.compute("cvta.to", lambda x, y: x - y, [source, base], [wide] * 2, [target])
    else:
        context.compute("cvta", lambda x, y: x + y, [source, base], [wide] * 2, [target])


def _is_space(context: Context) -> None:
    """ISSPACEP."""
    _, flags = context.parts(*_SPACES)
    if len(flags) != 1:
        raise context.error("one space is needed")
    space = _SPACES[next(iter(flags))]
    operands = context.arity(2)
    source = context.source(operands[1], "i64")
    target = context.target(operands[0], "p")
    bases = [context.window(SHARED_WINDOW), context.window(LOCAL_WINDOW)]
    size = context.window(SHARED_WINDOW + 8)

    def build(x: Value, shared: Value, local: Value, length: Value) -> Value:
        in_shared = (x - shared).icmp("ult", length)
        in_local = (x - local).icmp("ult", 1 << 24)
        return {SHARED: in_shared, LOCAL: in_local}.get(space, ~(in_shared | in_local))

    sources = [source, *bases, size]
    context.compute(f"isspacep.{space}", build, sources, ["i64"] * 4, [target])


def _nothing(context: Context) -> None:
    """What caches, fences and clusters need, and the engine does not: all sees memory at once."""


def _copy_async(context: Context) -> None:
    """CP.ASYNC: done at once, which is one of the times it may be done."""
    parts = context.instruction.parts
    if parts[:1] == ("async",) and parts[1:2] and parts[1] in ("commit_group", "wait_group"):
        return
    if parts[:2] == ("async", "wait_all"):
        return
    if parts[:1] != ("async",) or parts[1:2] not in (("ca",), ("cg",)):
        raise context.error("this kind of copy has no semantics here")
    operands = context.arity(3, 4)
    size = operands[2]
    if not isinstance(size, Number) or size.bits not in (4, 8, 16):
        raise context.error("4, 8 or 16 bytes are copied")
    count = max(1, size.bits // 4)
    temps = [context.temp() for _ in range(count)]
    _, source, form = locate(context, {"global"}, operands[1])
    for slot, temp in zip(memory.LOADED, temps, strict=False):
        source[slot] = temp
    what = (GLOBAL, form, "u32", "i32", count)
    context.emit(memory.load_name(*what), partial(memory.load, *what), **source)
    if len(operands) == 4:
        _keep_first(context, temps, operands[3])
    _, target, form = locate(context, {"shared"}, operands[0])
    for slot, temp in zip(memory.STORED, temps, strict=False):
        target[slot] = temp
    what = (SHARED, form, "u32", "i32", count)
    context.emit(memory.store_name(*what), partial(memory.store, *what), **target)


def _keep_first(context: Context, temps: list[int], size: Operand) -> None:
    """Zeros behind the first bytes that the source has."""
    row = context.source(size, "i32")
    for number, temp in enumerate(temps):

        def build(x: Value, have: Value, at: int = 4 * number) -> Value:
            left = (have - at).smax(0).smin(4)
            mask = left.icmp("uge", 4).select(-1, left.like(1).shl(left.shl(3)) - 1)
            return x & mask

        context.compute(f"cp.keep.{number}", build, [temp, row], ["i32", "i32"], [temp])


HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(("ld", "ldu"), _load),
    "st": _store,
    **dict.fromkeys(("atom", "red"), _atomic),
    "cvta": _to_or_from,
    "isspacep": _is_space,
    **dict.fromkeys(
        ("membar", "fence", "prefetch", "prefetchu", "discard", "applypriority"), _nothing
    ),
    **dict.fromkeys(("griddepcontrol", "nanosleep", "setmaxnreg", "pmevent"), _nothing),
    "cp": _copy_async,
}
"""Instructions on memory."""

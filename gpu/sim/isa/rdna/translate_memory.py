"""Translates vector memory instructions: a resolve, then an access (gpu/sim/isa/access.py)."""

from __future__ import annotations

import re
from typing import Final

from gpu.sim.isa.access import resolve_aux
from gpu.sim.isa.layout import ATOMIC, READ, WRITE
from gpu.sim.isa.rdna.formats import NULL
from gpu.sim.isa.rdna.table import CACHE_CONTROLS
from gpu.sim.isa.rdna.translate import Context, Untranslatable

_ACCESS: Final = re.compile(
    r"(?:ds|flat|global|scratch)_(load|store)_(2addr_|2addr_stride64_)?(d16_hi_|d16_)?"
    r"([uib])(\d+)(_d16_hi|_d16)?"
)
_BUFFER: Final = re.compile(_ACCESS.pattern.replace("ds|flat|global|scratch", "buffer"))
_ATOMIC: Final = re.compile(
    r"(?:flat_atomic|global_atomic|ds)_(\w+?)(?:_rtn)?_([uib]|b?f)(16|32|64)"
)
_NAMES: Final = {
    "min_i": "smin",
    "max_i": "smax",
    "min_u": "umin",
    "max_u": "umax",
    "min_f": "fmin",
    "max_f": "fmax",
    "add_f": "fadd",
    "cmpswap_f": "fcmpswap",
    "pk_add_f": "pk_add_f16",
    "pk_add_bf": "pk_add_bf16",
    "cmpst_b": "cmpswap",
    "cmpst_f": "fcmpswap",
    "cmpstore_b": "cmpswap",
    "cmpstore_f": "fcmpswap",
    "storexchg_b": "swap",
}
_SWAP_TWO: Final = re.compile(r"ds_storexchg_(2addr|2addr_stride64)_rtn_b(32|64)")
_BETWEEN_LANES: Final = (
    *("ds_bpermute_b32", "ds_bpermute_fi_b32", "ds_permute_b32"),
    *("ds_bpermute_64_b32", "ds_permute_64_b32"),
)


def translate_memory(context: Context) -> None:
    """Adds the records of a vector memory instruction."""
    name = context.instruction.name
    if name in CACHE_CONTROLS:
        return
    if name in _BETWEEN_LANES:
        _lane_move(context)
    elif name == "ds_swizzle_b32":
        _swizzle(context)
    elif access := _ACCESS.fullmatch(name):
        _load_or_store(context, access)
    elif pair := _SWAP_TWO.fullmatch(name):
        _swap_two(context, pair)
    elif atomic := _ATOMIC.fullmatch(name):
        _atomic(context, atomic)
    else:
        raise Untranslatable(f"{name} has no semantics here")


def translate_cache_control(context: Context) -> None:
    """MUBUF: only invalidates of caches, which the engine does not have."""
    if context.instruction.name not in CACHE_CONTROLS:
        raise Untranslatable(f"{context.instruction.name} has no semantics here")


def translate_buffer(context: Context) -> None:
    """MUBUF of RDNA2, by which scratch memory is accessed: dword by dword, as it is swizzled."""
    instruction, rows = context.instruction, context.rows
    fields = instruction.fields
    access = _BUFFER.fullmatch(instruction.name)
    if access is None or fields["idxen"] or fields["tfe"] or fields["lds"]:
        translate_cache_control(context)
        return
    function, size = _function(access)
    function = function if size < 4 else f"{access[1]}_b32"
    loads, dwords = access[1] == "load", max(1, size // 4)
    address = rows.vector(fields["vaddr"]) if fields["offen"] else rows.constant((0,))
    if dwords > 1:
        copied = context.temp()
        context.emit("copy", d=copied, a=address)
        address = copied
    context.stops_where = "takes a descriptor of scratch memory alone: swizzled, unchecked"
    data = rows.vector(fields["vdata"], dwords)
    places = context.temp(2)
    for number in range(dwords):
        context.emit(
            "buffer_address",
            d=places,
            a=address,
            b=context.source(4 * fields["srsrc"], "i32", None),
            c=context.source(fields["soffset"], "i32", None),
            immediate=fields["offset"] + 4 * number,
        )
        aux = resolve_aux(min(size, 4), READ if loads else WRITE)
        context.emit("resolve_vector", d=context.wave.pointers, a=places, aux=aux)
        where = {"d" if loads else "a": data + number * context.wave.row}
        context.emit(function, b=context.wave.pointers, **where)


def _resolve(
    context: Context,
    size: int,
    access: int,
    align: int = 1,
    second: bool = False,
    offset: int | None = None,
) -> int:
    """Addresses of an access of `size` bytes a lane; gives the rows where they are."""
    instruction = context.instruction
    fields, form = instruction.fields, instruction.opcode.format
    aux = resolve_aux(size, access, align, form == "flat")
    rows = context.rows
    pointers = context.wave.pointers + 2 * second * context.wave.row
    if form == "ds":
        if fields["gds"]:
            raise Untranslatable("global data share has no semantics here")
        place = fields["offset0"] | fields["offset1"] << 8 if offset is None else offset
        address = rows.vector(fields["addr"])
        context.emit("resolve_lds", d=pointers, a=address, immediate=place, aux=aux)
        return pointers
    place = fields["offset"]
    based = fields["saddr"] != NULL
    zero = rows.constant((0,))
    if form == "scratch":
        address = rows.vector(fields["addr"]) if fields["sve"] else zero
        base = context.source(fields["saddr"], "i32", None) if based else zero
        context.emit("resolve_scratch", d=pointers, a=address, b=base, immediate=place, aux=aux)
    elif based and form == "global":
        address = rows.vector(fields["addr"])
        base = context.source(fields["saddr"], "i64", None)
        context.emit("resolve_based", d=pointers, a=address, b=base, immediate=place, aux=aux)
    else:
        address = rows.vector(fields["addr"], 2)
        context.emit("resolve_vector", d=pointers, a=address, immediate=place, aux=aux)
    return pointers


def _function(access: re.Match[str]) -> tuple[str, int]:
    """(name of the engine's operation, bytes)."""
    verb, _, before, kind, bits, behind = access.groups()
    half = before or (behind or "").removeprefix("_")
    if half and not half.endswith("_"):
        half += "_"
    small = int(bits) < 32
    letter = "u" if verb == "load" and kind == "b" and small else kind
    return f"{verb}_{half}{letter}{bits}", int(bits) // 8


def _load_or_store(context: Context, access: re.Match[str]) -> None:
    function, size = _function(access)
    fields = context.instruction.fields
    kind = READ if access[1] == "load" else WRITE
    dwords = max(1, size // 4)
    rows = context.rows
    stored = fields.get("data", fields.get("data0", 0))
    if not access[2]:
        pointers = _resolve(context, size, kind)
        if kind == READ:
            context.emit(function, d=rows.vector(fields["vdst"], dwords), b=pointers)
        else:
            context.emit(function, a=rows.vector(stored, dwords), b=pointers)
        return
    scale = size * (64 if "stride64" in access[2] else 1)
    places = [
        _resolve(context, size, kind, 1, bool(number), fields[f"offset{number}"] * scale)
        for number in range(2)
    ]
    for number, pointers in enumerate(places):
        if kind == READ:
            target = rows.vector(fields["vdst"] + number * dwords, dwords)
            context.emit(function, d=target, b=pointers)
        else:
            source = rows.vector(fields[f"data{number}"], dwords)
            context.emit(function, a=source, b=pointers)


def _atomic(context: Context, atomic: re.Match[str]) -> None:
    instruction = context.instruction
    fields, rows = instruction.fields, context.rows
    verb, letter, bits = atomic.groups()
    name = _NAMES.get(f"{verb}_{letter}", verb)
    if bits == "16":  # two of them
        bits = "32"
    function = f"atomic_{name}_{bits}"
    dwords = int(bits) // 32
    if function not in context.engine:
        raise Untranslatable(f"{instruction.name} has no semantics here")
    on_lds = instruction.opcode.format == "ds"
    data = rows.vector(fields["data0" if on_lds else "data"], dwords)
    compared = data
    if name in ("cmpswap", "fcmpswap", "mskor"):
        number = fields["data1"] if on_lds else fields["data"] + dwords
        compared = rows.vector(number, dwords)
    if verb == "cmpst":  # of older chips, with its operands the other way round
        data, compared = compared, data
    returns = any(spec.field == "vdst" for spec in instruction.operands)
    target = rows.vector(fields["vdst"], dwords) if returns else context.wave.trash
    size = int(bits) // 8
    pointers = _resolve(context, size, READ | WRITE | ATOMIC, size)
    context.emit(function, d=target, a=data, b=pointers, c=compared)


def _swap_two(context: Context, pair: re.Match[str]) -> None:
    """DS_STOREXCHG_2ADDR: reads two places, then writes both."""
    fields, rows = context.instruction.fields, context.rows
    bits = int(pair[2])
    size, dwords = bits // 8, bits // 32
    scale = size * (64 if "stride64" in pair[1] else 1)
    for number in range(2):
        place = fields[f"offset{number}"] * scale
        _resolve(context, size, READ | WRITE | ATOMIC, size, bool(number), place)
    context.emit(
        f"atomic_swap_two_{bits}",
        d=rows.vector(fields["vdst"], 2 * dwords),
        a=rows.vector(fields["data0"], dwords),
        b=context.wave.pointers,
        c=rows.vector(fields["data1"], dwords),
    )


def _lane_move(context: Context) -> None:
    fields, rows = context.instruction.fields, context.rows
    context.emit(
        context.instruction.name,
        d=rows.vector(fields["vdst"]),
        a=rows.vector(fields["data0"]),
        b=rows.vector(fields["addr"]),
        immediate=fields["offset0"] | fields["offset1"] << 8,
    )


def _swizzle(context: Context) -> None:
    """DS_SWIZZLE_B32: a fixed permutation (section 12.13, "DS Permute")."""
    fields, rows = context.instruction.fields, context.rows
    pattern = fields["offset0"] | fields["offset1"] << 8
    lanes = [4 * _swizzled(pattern, lane) for lane in range(context.wave.lanes)]
    context.emit(
        "ds_bpermute_b32",
        d=rows.vector(fields["vdst"]),
        a=rows.vector(fields["addr"]),
        b=rows.lanes(lanes),
    )


def _swizzled(pattern: int, lane: int) -> int:
    if pattern >> 15:  # within groups of 4; higher patterns are FFT and rotation
        if pattern >= 0xC000:
            if pattern >= 0xE000:
                raise Untranslatable(f"ds_swizzle pattern {pattern:#x} has no semantics here")
            count = pattern >> 5 & 31
            kept = pattern & 31
            moved = lane - count if pattern >> 10 & 1 else lane + count
            return lane & kept | moved & 31 & ~kept
        return lane & ~3 | pattern >> 2 * (lane & 3) & 3
    and_mask, or_mask, xor_mask = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
    return ((lane & and_mask) | or_mask) ^ xor_mask

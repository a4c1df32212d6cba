"""Loads and stores of the linear IR as C statements.

Lanes that a mask excludes touch no memory. C has no masked vector access: where all lanes are
included, which is most of the time, an access is a vector's; otherwise each lane goes by itself,
an excluded one to 8 spare bytes of the stack, without a branch.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.compiler.render.cstyle.c_text import Emitter, Type, Value, integer


@dataclass(frozen=True, slots=True)
class Access:
    """Where a load or store goes.

    Attributes:
        type: of the elements accessed.
        pointer: to element 0.
        index: int64; of the first of consecutive elements, or a vector with one for each lane.
        mask: one bool a lane, or None where all are accessed.
    """

    type: Type
    pointer: Value
    index: Value
    mask: Value | None

    @property
    def by_lane(self) -> bool:
        """Whether no vector access can do it: one lane, lanes anywhere, or an odd number of them.

        Clang accesses a vector whose size is no power of two as one of the next larger size.
        """
        lanes = self.type.lanes
        return lanes == 1 or self.index.type.lanes > 1 or bool(lanes & (lanes - 1))

    def vector(self, emitter: Emitter) -> str:
        """An expression for all elements at once."""
        return f"*({emitter.in_memory(self.type)} *)({self.pointer} + {self.index})"

    def elements(self, emitter: Emitter, spare: str) -> list[str]:
        """An expression for the element of each lane; excluded ones are in `spare`."""
        places = []
        for lane in range(self.type.lanes):
            at = self._index_of(lane)
            if self.mask is None:
                places.append(f"{self.pointer}[{at}]")
            else:
                elsewhere = f"({self.type.element} *){emitter.spare(spare)}"
                places.append(f"*({self.mask.lane(lane)} ? {self.pointer} + {at} : {elsewhere})")
        return places

    def _index_of(self, lane: int) -> str:
        if self.index.type.lanes > 1:
            return self.index.lane(lane)
        return f"{self.index} + {lane}" if lane else self.index.text


def load(emitter: Emitter, access: Access, is_bool: bool) -> Value:
    """The elements; 0 in lanes that the mask excludes. Bytes of a bool other than 0 become 1."""
    loaded = _load_bytes(emitter, access)
    if not is_bool:
        return loaded
    return emitter.bool_of(f"{loaded} != {integer(loaded.type, 0)}", loaded.type)


def _load_bytes(emitter: Emitter, access: Access) -> Value:
    kind = access.type
    if access.by_lane:
        return emitter.vector(kind, access.elements(emitter, "zero"))
    if access.mask is None:
        return emitter.value(kind, access.vector(emitter))
    loaded = Value(emitter.use(kind), emitter.name())
    emitter.line(f"{kind} {loaded};")
    emitter.open(f"if ({_all(access.mask)})")
    emitter.line(f"{loaded} = {access.vector(emitter)};")
    emitter.close()
    emitter.open("else")
    elements = ", ".join(access.elements(emitter, "zero"))
    emitter.line(f"{loaded} = ({kind}){{{elements}}};")
    emitter.close()
    return loaded


def store(
    emitter: Emitter, access: Access, value: Value, streaming: bool, residue: int | None
) -> None:
    """Writes `value`; past the caches if `streaming` and not masked or lane by lane.

    `residue` is what the index leaves when divided by the lanes, where that is known.
    """
    if access.by_lane:
        _store_lanes(emitter, access, value)
    elif access.mask is not None:
        emitter.open(f"if ({_all(access.mask)})")
        emitter.line(f"{access.vector(emitter)} = {value};")
        emitter.close()
        emitter.open("else")
        _store_lanes(emitter, access, value)
        emitter.close()
    elif streaming:
        _store_streaming(emitter, access, value, residue)
    else:
        emitter.line(f"{access.vector(emitter)} = {value};")


def _store_lanes(emitter: Emitter, access: Access, value: Value) -> None:
    for lane, element in enumerate(access.elements(emitter, "sink")):
        emitter.line(f"{element} = {value.lane(lane)};")


def _store_streaming(emitter: Emitter, access: Access, value: Value, residue: int | None) -> None:
    """A non-temporal store where the address allows one.

    x86 has them for aligned vectors only; whether a buffer is aligned shows when the kernel runs.
    Where the residue is known it is the same for all these stores, and asked once.
    """
    emitter.fenced = True
    address = f"({access.pointer} + {access.index})"
    like = address if residue is None else f"({access.pointer} + {residue})"
    size = access.type.lanes * access.type.bits // 8
    emitter.open(f"if (((u64){like} & {size - 1}) == 0)")
    emitter.line(f"__builtin_nontemporal_store({value}, ({access.type} *){address});")
    emitter.close()
    emitter.open("else")
    emitter.line(f"{access.vector(emitter)} = {value};")
    emitter.close()


def _all(mask: Value) -> str:
    return f"__builtin_reduce_min({mask})"

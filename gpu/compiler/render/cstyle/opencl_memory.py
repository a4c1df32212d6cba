"""Loads and stores of the linear IR as OpenCL C statements.

Lanes that a mask excludes touch no memory. Where all lanes are included, which is most of the time,
an access is a vector's; otherwise each lane goes by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.compiler.render.cstyle.opencl_text import Emitter, Type, Value, integer


@dataclass(frozen=True, slots=True)
class Access:
    """Where a load or store goes.

    Attributes:
        type: of the elements accessed.
        pointer: to element 0.
        index: long; of the first of consecutive elements, or a vector with one for each lane.
        mask: one bool a lane, or None where all are accessed.
        space: the address space, for a compiler that takes vectors from any address in it; where
            it is empty OpenCL's functions do that.
    """

    type: Type
    pointer: Value
    index: Value
    mask: Value | None
    space: str = ""

    @property
    def by_lane(self) -> bool:
        """Whether no vector access can do it: one lane, or lanes anywhere."""
        return self.type.lanes == 1 or self.index.type.lanes > 1

    @property
    def is_whole(self) -> bool:
        """Whether one vector access does it."""
        return not self.by_lane and self.mask is None

    @property
    def start(self) -> str:
        """The address of the first element."""
        return f"{self.pointer} + {self.index}"

    @property
    def loaded(self) -> str:
        """All elements at once, as an expression."""
        if self.space:
            return f"*({self.space} const {anywhere(self.type)} *)({self.start})"
        return f"vload{self.type.lanes}(0, {self.start})"

    def stored(self, value: Value) -> str:
        """The statement that writes all elements at once."""
        if self.space:
            return f"*({self.space} {anywhere(self.type)} *)({self.start}) = {value};"
        return f"vstore{self.type.lanes}({value}, 0, {self.start});"

    @property
    def all_included(self) -> str:
        """Whether the mask excludes no lane."""
        assert self.mask is not None
        return f"all({self.mask} != {integer(self.mask.type, 0)})"

    def element(self, lane: int) -> str:
        """The element of a lane, as an expression that can be assigned to."""
        if self.index.type.lanes > 1:
            return f"{self.pointer}[{self.index.lane(lane)}]"
        return f"{self.pointer}[{self.index} + {lane}]" if lane else f"{self.pointer}[{self.index}]"


def anywhere(kind: Type) -> str:
    """The name of a vector type whose address need only be a multiple of an element's size.

    clang accesses one as a vector; what it makes of `vload8` and `vstore8` of PoCL, which are
    accesses to halves of halves, is not always one again.
    """
    return f"{kind}_anywhere"


def declare_anywhere(kind: Type) -> str:
    """The line that declares `anywhere(kind)`."""
    return f"typedef {kind} {anywhere(kind)} __attribute__((aligned({kind.bits // 8})));"


def load(emitter: Emitter, access: Access, is_bool: bool) -> Value:
    """The elements; 0 in lanes that the mask excludes. Bytes of a bool other than 0 become 1."""
    loaded = _load_bytes(emitter, access)
    if not is_bool:
        return loaded
    return emitter.bool_of(f"{loaded} != {integer(loaded.type, 0)}", loaded.type)


def _load_bytes(emitter: Emitter, access: Access) -> Value:
    kind = access.type
    if access.by_lane:
        return emitter.vector(kind, _elements(access))
    vector = access.loaded
    if access.mask is None:
        return emitter.value(kind, vector)
    loaded = Value(kind, emitter.name())
    emitter.line(f"{kind} {loaded};")
    emitter.open(f"if ({access.all_included})")
    emitter.line(f"{loaded} = {vector};")
    emitter.close()
    emitter.open("else")
    emitter.line(f"{loaded} = ({kind})({', '.join(_elements(access))});")
    emitter.close()
    return loaded


def _elements(access: Access) -> list[str]:
    elements = [access.element(lane) for lane in range(access.type.lanes)]
    if access.mask is None:
        return elements
    pairs = zip(access.mask.lanes(), elements, strict=True)
    return [f"({included} ? {element} : ({access.type.element})0)" for included, element in pairs]


def store(emitter: Emitter, access: Access, value: Value) -> None:
    """Writes `value`."""
    if access.by_lane:
        _store_lanes(emitter, access, value)
        return
    vector = access.stored(value)
    if access.mask is None:
        emitter.line(vector)
        return
    emitter.open(f"if ({access.all_included})")
    emitter.line(vector)
    emitter.close()
    emitter.open("else")
    _store_lanes(emitter, access, value)
    emitter.close()


def store_streaming(emitter: Emitter, access: Access, value: Value, residue: int | None) -> None:
    """Writes a whole vector past the caches where its address is a multiple of its size.

    Whether a buffer is aligned so shows when the kernel runs. Where `residue`, what the index
    leaves when divided by the lanes, is known, it is the same for all these stores, and asked once.
    """
    emitter.fenced = True
    size = access.type.lanes * access.type.bits // 8
    like = access.start if residue is None else f"{access.pointer} + {residue}"
    emitter.open(f"if (((ulong)({like}) & {size - 1}) == 0)")
    pointer = f"(__global {access.type} *)({access.start})"
    emitter.line(f"__builtin_nontemporal_store({value}, {pointer});")
    emitter.close()
    emitter.open("else")
    store(emitter, access, value)
    emitter.close()


def _store_lanes(emitter: Emitter, access: Access, value: Value) -> None:
    for lane in range(access.type.lanes):
        included = "" if access.mask is None else f"if ({access.mask.lane(lane)}) "
        emitter.line(f"{included}{access.element(lane)} = {value.lane(lane)};")

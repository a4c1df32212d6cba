"""Loads and stores of the linear IR as statements of languages like C.

Lanes that a mask excludes touch no memory. Where all lanes are included, which is most of the time,
an access is a vector's; otherwise each lane goes by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from gpu.compiler.render.cstyle.text import Emitter, Type, Value, integer


@dataclass(frozen=True)
class Access(ABC):
    """Where a load or store goes.

    Attributes:
        type: of the elements accessed.
        pointer: to element 0.
        index: int64; of the first of consecutive elements, or a vector with one for each lane.
        mask: one bool a lane, or None where all are accessed.
        parameters: the address space of parameters, as pointers name it.
    """

    type: Type
    pointer: Value
    index: Value
    mask: Value | None
    parameters: ClassVar[str] = ""

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

    def index_of(self, lane: int) -> str:
        """The index of a lane's element."""
        if self.index.type.lanes > 1:
            return self.index.lane(lane)
        return f"{self.index} + {lane}" if lane else self.index.text

    @property
    @abstractmethod
    def all_included(self) -> str:
        """Whether the mask excludes no lane."""

    @abstractmethod
    def loaded(self) -> str:
        """All elements at once, as an expression."""

    @abstractmethod
    def stored(self, value: Value) -> str:
        """The statement that writes all elements at once."""

    @abstractmethod
    def elements(self) -> list[str]:
        """Each lane's element as an expression, 0 where the mask excludes it."""

    @abstractmethod
    def stored_lane(self, lane: int, value: Value) -> str:
        """The statement that writes one lane's element, unless the mask excludes it."""


def load(emitter: Emitter, access: Access, is_bool: bool) -> Value:
    """The elements; 0 in lanes that the mask excludes. Bytes of a bool other than 0 become 1."""
    loaded = _load_bytes(emitter, access)
    if not is_bool:
        return loaded
    return emitter.bool_of(f"{loaded} != {integer(loaded.type, 0)}", loaded.type)


def _load_bytes(emitter: Emitter, access: Access) -> Value:
    kind = access.type
    if access.by_lane:
        return emitter.vector(kind, access.elements())
    if access.mask is None:
        return emitter.value(kind, access.loaded())
    loaded = Value(emitter.use(kind), emitter.name())
    emitter.line(f"{kind} {loaded};")
    emitter.open(f"if ({access.all_included})")
    emitter.line(f"{loaded} = {access.loaded()};")
    emitter.close()
    emitter.open("else")
    elements = kind.language.make.format(kind=kind, lanes=", ".join(access.elements()))
    emitter.line(f"{loaded} = {elements};")
    emitter.close()
    return loaded


def store(emitter: Emitter, access: Access, value: Value) -> None:
    """Writes `value`."""
    if access.by_lane:
        _store_lanes(emitter, access, value)
    elif access.mask is None:
        emitter.line(access.stored(value))
    else:
        emitter.open(f"if ({access.all_included})")
        emitter.line(access.stored(value))
        emitter.close()
        emitter.open("else")
        _store_lanes(emitter, access, value)
        emitter.close()


def _store_lanes(emitter: Emitter, access: Access, value: Value) -> None:
    for lane in range(access.type.lanes):
        emitter.line(access.stored_lane(lane, value))


def store_streaming(emitter: Emitter, access: Access, value: Value, residue: int | None) -> None:
    """Writes a whole vector past the caches where its address is a multiple of its size.

    x86 has such stores for those only; whether a buffer is aligned so shows when the kernel runs.
    Where `residue`, what the index leaves when divided by the lanes, is known, it is the same for
    all these stores, and asked once.
    """
    emitter.fenced = True
    size = access.type.lanes * access.type.bits // 8
    like = access.start if residue is None else f"{access.pointer} + {residue}"
    address = access.index.type.of("u64")
    emitter.open(f"if ((({address})({like}) & {size - 1}) == 0)")
    pointer = f"({access.parameters}{access.type} *)({access.start})"
    emitter.line(f"__builtin_nontemporal_store({value}, {pointer});")
    emitter.close()
    emitter.open("else")
    store(emitter, access, value)
    emitter.close()

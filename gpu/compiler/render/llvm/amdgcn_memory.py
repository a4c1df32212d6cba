"""Loads and stores of the linear IR for AMD GPUs.

A load that its mask excludes reads element 0 of its buffer instead, which costs a select where a
branch would split the wave; a store that its mask excludes is branched over. A bool is a byte in
memory, where all but 0 are true.

An address is a base, a place of 32 bits in it where that is enough, and a constant: what the
instructions of the hardware take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from gpu.compiler.render.llvm.text import (
    INT64,
    Emitter,
    Type,
    Value,
    integer,
    memory_element,
    value_element,
)
from gpu.core.dtype import DType, dtypes

INVARIANT: Final = ", !invariant.load !0"
"""Behind a load of what no kernel that runs writes: it may go through the scalar cache."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where a load or store goes.

    Attributes:
        dtype: of the elements.
        lanes: how many elements.
        pointer: to element 0.
        index: of the first of consecutive elements, or a vector with one for each lane; of 32 bits
            only where places of the buffer fit 31 bits in bytes.
        mask: one bool a lane, or None where all are accessed.
        constant: elements to add to an index of 32 bits; 0 where there is a mask.
        align: what the first address is a multiple of, in bytes.
    """

    dtype: DType
    lanes: int
    pointer: Value
    index: Value
    mask: Value | None
    constant: int = 0
    align: int = 1

    @property
    def type(self) -> Type:
        """LLVM type of the elements in memory."""
        return Type(memory_element(self.dtype), self.lanes)

    def of_lane(self, emitter: Emitter, lane: int) -> Access:
        """The access of one lane."""
        index = self.index
        if index.type.lanes > 1:
            index = emitter.extract(index, lane)
        elif lane:
            index = emitter.binary("add", index, integer(index.type, lane))
        mask = self.mask and emitter.extract(self.mask, lane)
        align = self.align if self.lanes == 1 else self.dtype.itemsize
        return replace(self, lanes=1, index=index, mask=mask, align=align)

    def address(self, emitter: Emitter) -> Value:
        """The address of the element at the index, which is one of the buffer's."""
        index, element = self.index, memory_element(self.dtype)
        if index.type.element == "i64":
            return emitter.element_address(self.pointer, element, index, inbounds=True)
        shift = self.dtype.itemsize.bit_length() - 1
        if shift:
            index = emitter.binary("shl nuw nsw", index, integer(index.type, shift))
        if self.pointer.type.element == _GLOBAL:
            index = emitter.convert("zext nneg", index, "i64")
        place = emitter.element_address(self.pointer, "i8", index, inbounds=not self.constant)
        if self.constant:
            further = integer(INT64, self.constant * self.dtype.itemsize)
            place = emitter.element_address(place, "i8", further, inbounds=True)
        return place


_GLOBAL: Final = "ptr addrspace(1)"


def load(emitter: Emitter, access: Access, invariant: bool) -> Value:
    """The elements; 0 in lanes that the mask excludes. `invariant` as in `INVARIANT`."""
    suffix = INVARIANT if invariant else ""
    if access.mask is None and access.index.type.lanes == 1:
        loaded = _load(emitter, access, suffix)
    else:
        lanes = [access.of_lane(emitter, lane) for lane in range(access.lanes)]
        loaded = emitter.pack([_load_lane(emitter, lane, suffix) for lane in lanes])
    if access.dtype is not dtypes.bool:
        return loaded
    return emitter.compare("icmp ne", loaded, integer(loaded.type, 0))


def _load(emitter: Emitter, access: Access, suffix: str) -> Value:
    text = f"load {access.type}, {access.address(emitter)}, align {access.align}{suffix}"
    return emitter.value(access.type, text)


def _load_lane(emitter: Emitter, access: Access, suffix: str) -> Value:
    mask = access.mask
    if mask is None:
        return _load(emitter, access, suffix)
    index = emitter.select(mask, access.index, integer(access.index.type, 0))
    found = _load(emitter, replace(access, index=index), suffix)
    return emitter.select(mask, found, Value(found.type, "zeroinitializer"))


def store(emitter: Emitter, access: Access, value: Value) -> None:
    """Writes `value` in the lanes that the mask does not exclude."""
    if value_element(access.dtype) != access.type.element:
        value = emitter.convert("zext", value, access.type.element)
    if access.mask is None and access.index.type.lanes == 1:
        _store(emitter, access, value)
        return
    for number in range(access.lanes):
        lane, element = access.of_lane(emitter, number), emitter.extract(value, number)
        if lane.mask is None:
            _store(emitter, lane, element)
            continue
        done = emitter.fresh("stored")
        emitter.branch_if(lane.mask, f"{done}.some", done)
        emitter.start_block(f"{done}.some")
        _store(emitter, lane, element)
        emitter.branch(done)
        emitter.start_block(done)


def _store(emitter: Emitter, access: Access, value: Value) -> None:
    emitter.line(f"store {value}, {access.address(emitter)}, align {access.align}")

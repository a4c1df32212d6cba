"""Loads and stores of the linear IR as LLVM instructions.

Lanes that a mask excludes touch no memory: consecutive elements use LLVM's masked intrinsics, and
a single element or one of a gather is redirected to 8 spare bytes of the stack, which costs a
select where a branch could be mispredicted. A bool is a byte in memory, where all but 0 are true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.compiler.render.llvm.text import (
    Emitter,
    Type,
    Value,
    integer,
    memory_element,
    value_element,
)
from gpu.core.dtype import DType, dtypes

# Elements that wider ones may be narrowed to.
_NARROW: Final = frozenset({"i8", "i16", "i32"})


@dataclass(frozen=True, slots=True)
class Access:
    """Where a load or store goes.

    Attributes:
        dtype: of the elements.
        lanes: how many elements.
        pointer: to element 0.
        index: int64; of the first of consecutive elements, or a vector with one for each lane.
        mask: one bool a lane, or None where all are accessed.
    """

    dtype: DType
    lanes: int
    pointer: Value
    index: Value
    mask: Value | None

    @property
    def type(self) -> Type:
        """LLVM type of the elements in memory."""
        return Type(memory_element(self.dtype), self.lanes)

    @property
    def scattered(self) -> bool:
        """Whether the lanes lie anywhere, or are just one."""
        return self.lanes == 1 or self.index.type.lanes > 1

    def addresses(self, emitter: Emitter) -> Value:
        """The address of the first element, or a vector of addresses."""
        return emitter.element_address(
            self.pointer, memory_element(self.dtype), self.index, inbounds=self.mask is None
        )


def load(emitter: Emitter, access: Access) -> Value:
    """The elements; 0 in lanes that the mask excludes."""
    loaded = _load_memory(emitter, access)
    if access.dtype is not dtypes.bool:
        return loaded
    return emitter.compare("icmp ne", loaded, integer(loaded.type, 0))


def _load_memory(emitter: Emitter, access: Access) -> Value:
    kind, align = access.type, access.dtype.itemsize
    addresses = access.addresses(emitter)
    if access.scattered:
        addresses = _redirect(emitter, access, addresses, "zero")
        scalar = Type(kind.element)
        return emitter.pack(
            [
                emitter.value(
                    scalar, f"load {scalar}, {emitter.extract(addresses, lane)}, align {align}"
                )
                for lane in range(access.lanes)
            ]
        )
    if access.mask is None:
        return emitter.value(kind, f"load {kind}, {addresses}, align {align}")
    return emitter.intrinsic(
        f"llvm.masked.load.{kind.mangled}.p0",
        kind,
        addresses,
        integer(Type("i32"), align),
        access.mask,
        Value(kind, "zeroinitializer"),
    )


def store(
    emitter: Emitter,
    access: Access,
    value: Value,
    streaming: bool,
    residue: int | None,
    hides_masks: bool = False,
) -> None:
    """Writes `value`; past the caches if `streaming` and not masked or scattered.

    `residue` is what the index leaves when divided by the lanes, where that is known. With
    `hides_masks` LLVM does not know which lanes of narrow integers a mask excludes.
    """
    if value_element(access.dtype) != access.type.element:
        value = emitter.convert("zext", value, access.type.element)
    align = access.dtype.itemsize
    addresses = access.addresses(emitter)
    if access.scattered:
        addresses = _redirect(emitter, access, addresses, "sink")
        for lane in range(access.lanes):
            element, address = emitter.extract(value, lane), emitter.extract(addresses, lane)
            emitter.line(f"store {element}, {address}, align {align}")
    elif access.mask is not None:
        name = f"llvm.masked.store.{access.type.mangled}.p0"
        mask = access.mask
        if hides_masks and access.type.element in _NARROW:
            mask = _hidden(emitter, mask)
        emitter.effect(name, value, addresses, integer(Type("i32"), align), mask)
    elif streaming:
        _store_streaming(emitter, value, addresses, access, residue)
    else:
        emitter.line(f"store {value}, {addresses}, align {align}")


def _hidden(emitter: Emitter, mask: Value) -> Value:
    """The mask out of code of which LLVM only knows that it gives as many bits.

    Of a mask with one known lane LLVM (22.1, lib/Target/X86/X86ISelLowering.cpp,
    `reduceMaskedStoreToScalarStore`) makes the store of one element, which has the width before the
    elements were narrowed: what lies behind it in memory is lost.
    """
    bits = Type(f"i{mask.type.lanes}")
    word = Type("i64" if mask.type.lanes > 32 else "i32")
    packed = emitter.value(bits, f"bitcast {mask} to {bits}")
    wide = emitter.convert("zext", packed, word.element)
    known = emitter.value(word, f'call {word} asm "", "=r,0"({wide})')
    return emitter.value(
        mask.type, f"bitcast {emitter.convert('trunc', known, bits.element)} to {mask.type}"
    )


def prefetch(emitter: Emitter, dtype: DType, pointer: Value, index: Value) -> None:
    """Asks for the cache line of an element that may lie outside of its buffer."""
    address = emitter.element_address(pointer, memory_element(dtype), index, inbounds=False)
    for_reading, into_all_caches, of_data = (integer(Type("i32"), n) for n in (0, 3, 1))
    emitter.effect("llvm.prefetch.p0", address, for_reading, into_all_caches, of_data)


def _store_streaming(
    emitter: Emitter, value: Value, address: Value, access: Access, residue: int | None
) -> None:
    """A non-temporal store where the address allows one.

    x86 has them for aligned vectors only, and LLVM breaks others into 4-byte ones; whether a
    buffer is aligned shows when the kernel runs. Where the residue is known it is the same for all
    these stores, and asked once.
    """
    emitter.fenced = True
    size = access.lanes * access.dtype.itemsize
    like = address
    if residue is not None:
        first = integer(Type("i64"), residue)
        element = memory_element(access.dtype)
        like = emitter.element_address(access.pointer, element, first, inbounds=True)
    bits = emitter.value(Type("i64"), f"ptrtoint {like} to i64")
    low = emitter.binary("and", bits, integer(bits.type, size - 1))
    aligned = emitter.compare("icmp eq", low, integer(bits.type, 0))
    past, through, done = (emitter.fresh(f"{name}.") for name in ("past", "through", "stored"))
    emitter.branch_if(aligned, past, through)
    emitter.start_block(past)
    emitter.line(f"store {value}, {address}, align {size}, !nontemporal !0")
    emitter.branch(done)
    emitter.start_block(through)
    emitter.line(f"store {value}, {address}, align {access.dtype.itemsize}")
    emitter.branch(done)
    emitter.start_block(done)


def _redirect(emitter: Emitter, access: Access, addresses: Value, spare: str) -> Value:
    """`addresses`, with spare bytes of the stack in the place of those the mask excludes."""
    if access.mask is None:
        return addresses
    elsewhere = emitter.splat(emitter.spare(spare), addresses.type.lanes)
    return emitter.select(access.mask, addresses, elsewhere)

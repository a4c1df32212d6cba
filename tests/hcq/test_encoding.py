"""Segments, patches, arguments and linking, compared with what they say in plain arithmetic."""

from __future__ import annotations

import ctypes
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu.core.errors import InvalidIndex, InvalidType, InvalidValue
from gpu.hcq.args import ArgumentLayout, KernelArguments
from gpu.hcq.channel import Template
from gpu.hcq.encoder import Encoded, Patch, Segment
from gpu.hcq.hostcode import HostEncoder
from gpu.hcq.link import link
from gpu.hcq.patching import PatchCall, Places
from gpu.hcq.symbol import IMAGE, Derived, Symbol, offset, resolve, segment_address

X, Y = Symbol("x"), Symbol("y")


@st.composite
def patches(draw: st.DrawFn, size: int) -> Patch:
    width = draw(st.sampled_from([1, 2, 4, 8]))
    position = draw(st.integers(0, 8 * width - 1))
    return Patch(
        segment=draw(st.integers(0, 1)),
        offset=draw(st.integers(0, size // width - 1)) * width,
        width=width,
        shift=draw(st.integers(0, 63)),
        mask=draw(st.integers(1, (1 << (8 * width - position)) - 1)),
        symbol=draw(st.sampled_from([X, Y, segment_address(1)])),
        addend=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
        position=position,
    )


@given(st.binary(min_size=32, max_size=32), st.lists(patches(32), max_size=12), st.data())
def test_native_patches_are_those_in_python(
    data: bytes, made: list[Patch], draw: st.DataObject
) -> None:
    words = st.integers(0, (1 << 64) - 1)
    values = {X: draw.draw(words), Y: draw.draw(words)}
    encoded = Encoded(
        (Segment("ring", 8, "ring", data), Segment("qmd", 64, "memory", data[::-1])), tuple(made)
    )
    base = 0x7000_0000_0000
    ring, image = encoded.resolve({**values, segment_address(1): base})
    linked = link(encoded, HostEncoder())
    done = linked.put_in({**values, IMAGE: base})
    assert (done.ring, done.image) == (ring, image)
    template = Template(linked)
    slots = template.slots
    for symbol, value in {**values, IMAGE: base}.items():
        if symbol in slots:
            template.values[slots[symbol]] = value
    memory = ctypes.create_string_buffer(linked.image, len(linked.image))
    places = Places(template.ring, ctypes.addressof(memory))
    call = PatchCall(linked, places, slots, ctypes.addressof(template.values), slots)
    call.apply()
    assert ctypes.string_at(template.ring, 32) == done.ring
    assert memory.raw == done.image


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"width": 3}, InvalidValue),
        ({"mask": 0}, InvalidValue),
        ({"mask": 1 << 32}, InvalidValue),
        ({"position": 1}, InvalidValue),
        ({"shift": 64}, InvalidValue),
        ({"offset": 2}, InvalidValue),
        ({"addend": 1 << 63}, InvalidValue),
        ({"offset": 16}, InvalidIndex),
        ({"offset": -4}, InvalidIndex),
        ({"segment": 1}, InvalidIndex),
    ],
)
def test_wrong_patches_are_refused(wrong: dict[str, int], error: type[Exception]) -> None:
    right = {"segment": 0, "offset": 12, "width": 4, "shift": 0, "mask": 0xFFFF_FFFF}
    Encoded((Segment("ring", 4, "ring", bytes(16)),), (Patch(**right, symbol=X),))
    with pytest.raises(error, match=r"'x'|segment"):
        Encoded((Segment("ring", 4, "ring", bytes(16)),), (Patch(**{**right, **wrong}, symbol=X),))


def test_wrong_segments_are_refused() -> None:
    with pytest.raises(InvalidValue, match="power of two"):
        Segment("ring", 3, "ring", b"")
    ring = Segment("ring", 4, "ring", bytes(4))
    with pytest.raises(InvalidValue, match="only the first"):
        Encoded((ring, ring))
    with pytest.raises(InvalidValue, match="no segment"):
        Encoded(())


def test_symbols() -> None:
    n = Symbol("n")
    blocks = Derived("blocks", (n,), lambda count: -(-count // 256))
    assert resolve(blocks, {n: 1000}) == 4
    assert resolve(offset(blocks, 3), {n: 1000}) == 7
    assert offset(n, 0) is n and offset(n, 5) is offset(n, 5)
    assert Symbol("n") != n
    with pytest.raises(InvalidValue, match="'n' has no value"):
        resolve(blocks, {X: 1})


def test_bound_commands_are_called() -> None:
    first = Segment("ring", 8, "ring", bytes(24))
    kernarg = Segment("kernarg", 64, "memory", b"\x11" * 16, arguments=8)
    encoded = Encoded((first, kernarg), (Patch(0, 8, 8, 0, (1 << 64) - 1, segment_address(1)),))
    eager = link(encoded, HostEncoder())
    assert (len(eager.ring), len(eager.image), eager.arguments) == (24, 16, (8,))
    bound = link(encoded, HostEncoder(), bound=True)
    assert bound.image == bytes(24).ljust(64, b"\0") + b"\x11" * 16
    assert bound.arguments == (72,) and bound.image_align == 64
    done = bound.put_in({IMAGE: 0x10000})
    assert struct.unpack("<3Q", done.ring)[1:] == (0x10000, 24)
    assert struct.unpack_from("<Q", done.image, 8) == (0x10000 + 64,)
    packets = Segment("aql", 64, "ring", bytes(64))
    assert link(Encoded((packets,)), HostEncoder(), bound=True).ring == bytes(64)


SCALARS = {"b": 1, "B": 1, "h": 2, "H": 2, "e": 2, "i": 4, "I": 4, "f": 4, "q": 8, "Q": 8, "d": 8}


@given(st.integers(0, 5), st.lists(st.sampled_from(sorted(SCALARS)), max_size=8))
def test_arguments_lie_as_in_c(pointers: int, codes: list[str]) -> None:
    layout = ArgumentLayout(pointers, codes)
    at, places = 8 * pointers, []
    for code in codes:
        at += -at % SCALARS[code]
        places.append(at)
        at += SCALARS[code]
    assert [a.offset for a in layout.arguments] == [*range(0, 8 * pointers, 8), *places]
    assert layout.size == at + -at % 8
    args = KernelArguments(layout, tuple(range(100, 100 + pointers)), tuple(range(len(codes))))
    assert len(args.data) == layout.size and not args.patches
    for number, (code, place) in enumerate(zip(codes, places, strict=True)):
        assert struct.unpack_from("<" + code, args.data, place) == (number,)


def test_symbolic_arguments() -> None:
    layout = ArgumentLayout(2, ["H", "f"])
    args = KernelArguments(layout, (X, 5), (Y, 1.5))
    assert [(p.offset, p.width, p.symbol) for p in args.patches] == [(0, 8, X), (16, 2, Y)]
    with pytest.raises(InvalidType, match="floating"):
        KernelArguments(layout, (1, 2), (1, Y))
    with pytest.raises(InvalidValue, match="1 buffers and 2 values"):
        KernelArguments(layout, (1,), (1, 2))
    with pytest.raises(InvalidValue, match="do not fit"):
        KernelArguments(layout, (1, 2), (70_000, 2))
    with pytest.raises(InvalidValue, match="'x'"):
        ArgumentLayout(1, ["x"])

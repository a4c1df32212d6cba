"""Loads, stores and atomics in all spaces, types and widths."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from gpu.sim.isa.ptx.bare import BareModule
from gpu.sim.isa.ptx.faults import WarpFault
from sim.ptx.ops import HEAD, signed

SPACES = ("global", "shared", "local", "generic", "window.shared", "window.local")


def _copy(space: str, kind: str, count: int) -> str:
    """A kernel: values of a type go through a space, and come out as 64-bit words."""
    bits = int(kind[1:])
    register = "rd" if bits == 64 else "r" if bits in (8, 32) else "h"
    names = [f"%{register}{10 + n}" for n in range(count)]
    pack = f"{{{', '.join(names)}}}" if count > 1 else names[0]
    vector = f".v{count}" if count > 1 else ""
    size = bits * count // 8
    own = space.removeprefix("window.")
    name = f".{space}" if space in ("global", "shared", "local") else ""
    base = {
        "global": "add.u64 %rd5, %rd3, 0;",
        "generic": "add.u64 %rd5, %rd3, 0;",
        "shared": f"mov.u64 %rd5, box; mad.wide.u32 %rd5, %r1, {size}, %rd5;",
        "local": "mov.u64 %rd5, own;",
    }[own]
    base += f" cvta.{own}.u64 %rd5, %rd5;" if space.startswith("window") else ""
    out = "\n".join(
        f"cvt.{'s' if kind[0] == 's' else 'u'}64.{kind} %rd8, {n};"
        f" st.global.b64 [%rd4+{8 * i}], %rd8;"
        for i, n in enumerate(names)
    )
    return f"""{HEAD}.entry k(.param .u64 in, .param .u64 out, .param .u64 by) {{
  .reg .b16 %h<20>; .reg .b32 %r<20>; .reg .b64 %rd<20>;
  .shared .align 16 .b8 box[2048]; .local .align 16 .b8 own[32];
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u64 %rd3, [by];
  mov.u32 %r1, %tid.x;
  mad.wide.u32 %rd1, %r1, {size}, %rd1; mad.wide.u32 %rd2, %r1, {8 * count}, %rd2;
  mad.wide.u32 %rd3, %r1, {size}, %rd3; mov.u64 %rd4, %rd2;
  {base}
  ld.global{vector}.{kind} {pack}, [%rd1];
  st{name}{vector}.{kind} [%rd5], {pack};
  ld{name}{vector}.{kind} {pack}, [%rd5];
  {out}
  ret; }}"""


@pytest.mark.parametrize("space", SPACES)
def test_values_come_back(space: str) -> None:
    rng = np.random.default_rng(1)
    for kind in ("u8", "s8", "b16", "s16", "u32", "s32", "b64"):
        for count in (1, 2, 4):
            bits = int(kind[1:])
            if bits * count > 128:
                continue
            source = rng.integers(0, 256, 40 * bits * count // 8, dtype=np.uint8)
            out, between = np.zeros((40, count), np.int64), np.zeros_like(source)
            text = _copy(space, kind, count)
            BareModule(text).run("k", (1, 1, 1), (40, 1, 1), source, out, between)
            wanted = source.view(f"u{bits // 8}").reshape(40, count).astype(object)
            if kind[0] == "s":
                wanted = np.vectorize(lambda v, b=bits: signed(int(v), b))(wanted)
            assert (
                out
                == np.array(wanted.astype(np.uint64 if kind[0] != "s" else np.int64)).view(np.int64)
            ).all(), (kind, count)


Update = Callable[[int, int], int]
_SIMPLE: dict[str, Update] = {
    "exch": lambda x, y: y,
    "and": int.__and__,
    "or": int.__or__,
    "xor": int.__xor__,
}


def _forms() -> dict[str, tuple[int, Update]]:
    found: dict[str, tuple[int, Update]] = {}
    for bits in (32, 64):
        for name, update in _SIMPLE.items():
            found[f"{name}.b{bits}"] = bits, update
        for letter in "su":

            def order(x: int, letter: str = letter, bits: int = bits) -> int:
                return signed(x, bits) if letter == "s" else x

            found[f"min.{letter}{bits}"] = bits, lambda x, y, k=order: min(x, y, key=k)
            found[f"max.{letter}{bits}"] = bits, lambda x, y, k=order: max(x, y, key=k)
        found[f"add.u{bits}"] = bits, int.__add__
    found["add.s32"] = 32, int.__add__
    found["inc.u32"] = 32, lambda x, y: 0 if x >= y else x + 1
    found["dec.u32"] = 32, lambda x, y: y if x == 0 or x > y else x - 1
    for kind, form, bits in (("f16", "<e", 16), ("f32", "<f", 32), ("f64", "<d", 64)):

        def add(x: int, y: int, form: str = form, bits: int = bits) -> int:
            a, b = (struct.unpack(form, v.to_bytes(bits // 8, "little"))[0] for v in (x, y))
            return int.from_bytes(
                struct.pack(
                    form, np.dtype(f"f{bits // 8}").type(a) + np.dtype(f"f{bits // 8}").type(b)
                ),
                "little",
            )

        found[f"add{'.noftz' * (bits == 16)}.{kind}"] = bits, add
    return found


@pytest.mark.parametrize("space", ["global", "shared", "generic"])
def test_atomics(space: str) -> None:
    name = "" if space == "generic" else f".{space}"
    for form, (bits, update) in _forms().items():
        register = {16: "h", 32: "r", 64: "rd"}[bits]
        base = "mov.u64 %rd5, box;" if space == "shared" else "mov.u64 %rd5, %rd3;"
        text = f"""{HEAD}.entry k(.param .u64 in, .param .u64 out, .param .u64 by) {{
  .reg .b16 %h<20>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .shared .align 8 .b8 box[512];
  ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; ld.param.u64 %rd3, [by];
  {base}
  mov.u32 %r1, %tid.x; mul.wide.u32 %rd4, %r1, {bits // 8}; mul.wide.u32 %rd6, %r1, 8;
  add.u64 %rd1, %rd1, %rd4; add.u64 %rd2, %rd2, %rd6; add.u64 %rd5, %rd5, %rd4;
  ld.global.b{bits} %{register}11, [%rd1]; ld.global.b{bits} %{register}12, [%rd1+{4 * bits}];
  st{name}.b{bits} [%rd5], %{register}11;
  atom{name}.{form} %{register}13, [%rd5], %{register}12;
  red{name}.{form.replace("exch", "or")} [%rd5], %{register}12;
  ld{name}.b{bits} %{register}14, [%rd5];
  cvt.u64.u{bits} %rd8, %{register}13; cvt.u64.u{bits} %rd9, %{register}14;
  st.global.u64 [%rd2], %rd8; st.global.u64 [%rd2+256], %rd9;
  ret; }}"""
        rng = np.random.default_rng(bits)
        data = rng.integers(0, 2**bits, (2, 32), dtype=np.uint64).astype(f"u{bits // 8}")
        if form.endswith(("f16", "f32", "f64")):
            numbers = rng.standard_normal((2, 32)).astype(f"f{bits // 8}")
            data = numbers.view(f"u{bits // 8}")
        elif form.startswith(("inc", "dec")):
            data = rng.integers(0, 4, (2, 32), dtype=np.uint32)
        out, scratch = np.zeros((2, 32), np.uint64), np.zeros(64, np.uint64)
        BareModule(text).run("k", (1, 1, 1), (32, 1, 1), data, out, scratch)
        mask = (1 << bits) - 1
        second = int.__or__ if form.startswith("exch") else update
        for old, value, got, after in zip(*data.tolist(), *out.tolist(), strict=True):
            assert got == old
            assert after == second(update(old, value) & mask, value) & mask, form


def test_lanes_that_meet_at_one_word() -> None:
    text = f"""{HEAD}.entry k(.param .u64 p) {{
  .reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .pred %p;
  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x;
  AGAIN: ld.global.u32 %r2, [%rd1]; add.u32 %r3, %r2, %r1;
  atom.global.cas.b32 %r4, [%rd1], %r2, %r3;
  setp.ne.u32 %p, %r4, %r2; @%p bra AGAIN;
  red.global.add.u32 [%rd1+4], %r1; ret; }}"""
    out = np.zeros(2, np.uint32)
    BareModule(text).run("k", (3, 1, 1), (50, 1, 1), out)
    assert (out == 3 * sum(range(50))).all()


@pytest.mark.parametrize(
    ("access", "message"),
    [
        ("ld.global.u32 %r1, [%rd1+2];", "read of 4 bytes at .*: no multiple"),
        ("st.global.v2.u32 [%rd1+4], {%r1, %r1};", "write of 8 bytes at .*: no multiple"),
        ("ld.shared.u32 %r1, [64];", "read of 4 bytes at 0x40 .*outside"),
        ("st.local.u8 [own+16], %r1;", "write of 1 bytes at 0x10 .*outside"),
        ("atom.global.add.u32 %r1, [%rd1+0x7000], 1;", "atomic of 4 bytes .*not allowed"),
        ("mov.u64 %rd2, box; cvta.shared.u64 %rd2, %rd2; ld.u32 %r1, [%rd2+64];", "outside"),
        ("ld.u64 %rd2, [%rd1+-8];", "not allowed"),
        ("mov.u64 %rd2, box; cvta.shared.u64 %rd2, %rd2; ld.global.u32 %r1, [%rd2];", "window"),
    ],
)
def test_bad_accesses(access: str, message: str) -> None:
    text = f"""{HEAD}.entry k(.param .u64 p) {{
  .reg .b32 %r<9>; .reg .b64 %rd<3>; .shared .b8 box[64]; .local .b8 own[16];
  ld.param.u64 %rd1, [p]; {access} st.global.u32 [%rd1], 1; ret; }}"""
    out = np.zeros(16, np.uint32)
    with pytest.raises(WarpFault, match=message):
        BareModule(text).run("k", (1, 1, 1), (32, 1, 1), out)
    assert not out.any()


def test_parameters_and_variables_of_the_module() -> None:
    text = f"""{HEAD}.const .align 4 .b32 table[3] = {{10, 20, 30}};
.global .align 8 .u64 pointer = table; .global .align 4 .u32 count;
.entry k(.param .u64 p, .param .align 4 .b8 q[8]) {{
  .reg .b32 %r<9>; .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4;
  mov.b64 %rd3, q; add.u64 %rd3, %rd3, %rd2; ld.param.u32 %r2, [%rd3];
  ld.global.u64 %rd4, [pointer]; add.u64 %rd4, %rd4, %rd2; ld.u32 %r3, [%rd4+4];
  mad.lo.u32 %r4, %r2, 100, %r3; add.u64 %rd5, %rd1, %rd2; st.global.u32 [%rd5], %r4;
  red.global.inc.u32 [count], 99; ld.global.u32 %r5, [count]; st.global.u32 [%rd5+8], %r5;
  ret; }}"""
    out, module = np.zeros(4, np.uint32), BareModule(text)
    for launch in (1, 2):
        module.run("k", (1, 1, 1), (2, 1, 1), out, 7)
        assert out.tolist() == [720, 30, 2 * launch, 2 * launch]


def test_no_lane_stores_where_one_may_not() -> None:
    text = f"""{HEAD}.entry k(.param .u64 p) {{
  .reg .b32 %r<9>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd1, %r1, 4, %rd1;
  st.global.u32 [%rd1], 1; ret; }}"""
    out = np.zeros(31, np.uint32)
    with pytest.raises(WarpFault, match="by lane 31"):
        BareModule(text).run("k", (1, 1, 1), (32, 1, 1), out)
    assert not out.any()


@pytest.mark.parametrize("space", ["global", "shared", "local", "const"])
def test_elements_of_arrays(space: str) -> None:
    """``a[i]`` is the element, as ptxas has it: what counts is its type, not bytes."""
    own = f".{space} .align 8 .b64 wide[6]; .{space} .align 8 .b16 narrow[9];"
    stores = (
        "" if space == "const" else f"st.{space}.u64 wide[4], %rd8; st.{space}.u16 narrow[7], 5;"
    )
    reads = "mov.u64 %rd10, 0;" if space == "const" else f"ld.{space}.u64 %rd10, [%rd2];"
    text = f"""{HEAD}{own if space in ("global", "const") else ""}
.global .u64 places[3] = {{places, places[2], places+4}};
.entry k(.param .u64 out) {{ .reg .b64 %rd<12>; {own if space in ("shared", "local") else ""}
  ld.param.u64 %rd1, [out]; mov.u64 %rd8, 77; {stores}
  mov.u64 %rd2, wide[4]; mov.u64 %rd3, wide; sub.u64 %rd4, %rd2, %rd3;
  mov.u64 %rd5, narrow[7]; mov.u64 %rd6, narrow; sub.u64 %rd7, %rd5, %rd6; {reads}
  st.global.u64 [%rd1], %rd4; st.global.u64 [%rd1+8], %rd7; st.global.u64 [%rd1+16], %rd10;
  ld.global.u64 %rd2, places[1]; ld.global.u64 %rd3, places[0]; sub.u64 %rd4, %rd2, %rd3;
  st.global.u64 [%rd1+24], %rd4; ret; }}"""
    out = np.zeros(4, np.uint64)
    BareModule(text).run("k", (1, 1, 1), (1, 1, 1), out)
    assert out.tolist() == [32, 14, 0 if space == "const" else 77, 16]

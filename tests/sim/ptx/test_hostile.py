"""PTX that is wrong: only typed errors, that name the line."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu.sim.isa.ptx.bare import BareModule
from gpu.sim.isa.ptx.faults import WarpFault
from gpu.sim.isa.ptx.syntax import PtxError

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
GOOD = (
    HEAD
    + """
.const .align 4 .b32 table[4] = {1, 2, 0x3, 4};
.global .align 8 .u64 where = table;
.extern .shared .align 16 .b8 more[];
.func (.param .b32 out) add3(.param .b32 a)
{
  .reg .b32 %r<4>;
  ld.param.b32 %r1, [a+0];
  add.s32 %r2, %r1, 3;
  st.param.b32 [out+0], %r2;
  ret;
}
.visible .entry k(.param .u64 .ptr .global .align 4 p, .param .align 4 .b8 q[8])
.maxntid 64, 1, 1
{
  .reg .pred %p<3>;
  .reg .b16 %h<3>;
  .reg .b32 %r<20>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<8>;
  .shared .align 4 .b8 box[256];
  ld.param.u64 %rd1, [p];
  ld.param.v2.u32 {%r1, %r2}, [q];
  mov.u32 %r3, %tid.x;
  setp.lt.u32 %p1|%p2, %r3, 16;
  @%p1 bra THERE;
  mov.b32 {%h1, %h2}, %r3;
  @!%p2 add.s32 %r3, %r3, -1;
THERE:
  { .param .b32 param0; st.param.b32 [param0+0], %r3;
    .param .b32 retval0; call.uni (retval0), add3, (param0);
    ld.param.b32 %r4, [retval0+0]; }
  shfl.sync.bfly.b32 %r5|%p1, %r4, 1, 31, 0xffffffff;
  bar.sync 0;
  mul.wide.u32 %rd2, %r3, 4;
  and.b64 %rd2, %rd2, 60;
  add.s64 %rd3, %rd1, %rd2;
  cvt.rn.f32.s32 %f1, %r5;
  fma.rn.f32 %f2, %f1, 0f40000000, %f1;
  st.global.f32 [%rd3], %f2;
  ld.const.u32 %r6, [table+4];
  atom.global.add.u32 %r7, [%rd3], %r6;
  st.shared.u32 [box+8], %r7;
  ret;
}
"""
)
TOKENS = re.findall(r"[\w.%$]+|\s+|.", GOOD)
WORDS = sorted({token for token in TOKENS if not token.isspace()})


def attempt(text: str) -> None:
    """Parses, translates and runs; anything but the typed errors fails the test."""
    data = np.zeros(64, np.uint32)
    try:
        module = BareModule(text)
        for name, function in module.loaded.module.functions.items():
            if function.is_kernel and function.parameter_bytes() < 4096:
                program = module.program(name)
                if len(function.parameters) == 2 and program.local_bytes < 1 << 16:
                    module.run(name, (1, 1, 1), (40, 1, 1), data, 0, budget=50_000)
    except (PtxError, WarpFault):
        pass


def test_the_text_is_good() -> None:
    data = np.zeros(64, np.uint32)
    BareModule(GOOD).run("k", (1, 1, 1), (40, 1, 1), data, 0)
    assert data.any()


@pytest.mark.parametrize("first", ["function", "variable"])
def test_a_name_is_a_function_or_a_variable(first: str) -> None:
    both = [".func (.param .b32 o) same()\n{\n  ret;\n}\n", ".const .b32 same[4] = {1, 2, 3, 4};\n"]
    with pytest.raises(PtxError, match=f"same is a {first} already"):
        BareModule(HEAD + "".join(both if first == "function" else both[::-1]))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(TOKENS) - 1), st.sampled_from([*WORDS, "", "{", "\0"])),
        min_size=1,
        max_size=3,
    )
)
def test_changed_words(changes: list[tuple[int, str]]) -> None:
    tokens = list(TOKENS)
    for place, word in changes:
        tokens[place] = word
    attempt("".join(tokens))


PARTS = re.findall(r"%\w+|\.\w+|\w+|\s+|.", GOOD)
CHANGED = [place for place, part in enumerate(PARTS) if part[0] in "%."]
KINDS = [
    "s32",
    "u64",
    "f16x2",
    "f64",
    "b128",
    "pred",
    "cc",
    "sat",
    "v4",
    "lt",
    "sync",
    "wide",
    "x2",
]
REGISTERS = sorted({part for part in PARTS if part[0] == "%" and len(part) > 1})


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(CHANGED),
            st.sampled_from([*(f".{kind}" for kind in KINDS), *REGISTERS, "7"]),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_changed_types_and_registers(changes: list[tuple[int, str]]) -> None:
    parts = list(PARTS)
    for place, new in changes:
        if (parts[place][0] == ".") == (new[0] == "."):
            parts[place] = new
    attempt("".join(parts))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(GOOD)), st.integers(0, len(GOOD)), st.text(max_size=8))
def test_cut_texts(start: int, end: int, new: str) -> None:
    attempt(GOOD[:start] + new + GOOD[end:])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("frob.u32 %r1, %r2;", "frob has no semantics"),
        ("add.u32 %r1, %r2;", "2 operands, 3 are expected"),
        ("add.u32 %r1, %r2, %x;", "%x is neither declared"),
        ("add.u32 %rd1, %r2, %r3;", "register of 64 bits where 32 are written"),
        ("add.rz.u32 %r1, %r2, %r3;", r"\.rz"),
        ("bra NOWHERE;", "label"),
        ("ld.global.u32 %r1, [%r<];", "no address"),
        ("mov.u32 %r1, nothing;", "nothing is not declared"),
        ("lop3.b32 %r1, %r2, %r3, %r4, %r5;", "must be a number"),
        ("call (%r1), f, (%r2);", "functions of the same text"),
        ("st.param.u32 [p], %r1;", "cannot be written"),
        ("mov.u32 %r1, 0x1FFFFFFFFFFFFFFFFF;", "more than 64 bits"),
        (".reg .b128 %q;", "no registers of a known type"),
        (".local .b8 big[2147483648];", "too many"),
    ],
)
def test_messages(body: str, why: str) -> None:
    text = f"{HEAD}.entry k(.param .u32 p)\n{{ .reg .b32 %r<9>; .reg .b64 %rd<3>;\n{body}\nret; }}"
    with pytest.raises(PtxError, match=why) as caught:
        BareModule(text).program("k")
    assert caught.value.line == 6 and caught.value.text in " ".join(body.split())


def test_endless_calls_run_out_of_memory() -> None:
    text = HEAD + ".func f() { call f; ret; }\n.entry k() { call f; ret; }"
    with pytest.raises(WarpFault) as caught:
        BareModule(text).run("k", (1, 1, 1), (32, 1, 1))
    assert caught.value.reason == "access"

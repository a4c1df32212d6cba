"""Calls: of functions that recurse, and by address."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.sim.isa.ptx.bare import BareModule
from gpu.sim.isa.ptx.faults import WarpFault
from gpu.sim.isa.ptx.syntax import PtxError
from sim.ptx.ops import HEAD

# The kernel gives `f` the lane's number; `f` is in front of it.
KERNEL = """
.entry k(.param .u64 out) {
  .reg .b32 %r<9>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1;
    call (b), f, (a); ld.param.b32 %r3, [b]; }
  st.global.u32 [%rd1], %r3;
  ret; }"""


def run(functions: str, lanes: int = 64) -> list[int]:
    out = np.zeros(lanes, np.uint32)
    BareModule(HEAD + functions + KERNEL).run("k", (1, 1, 1), (lanes, 1, 1), out)
    return out.tolist()


def test_registers_live_through_loops() -> None:
    """What is written behind a call is read before it, in the next turn; predicates, too."""
    functions = """.func (.param .b32 r) f(.param .b32 n) {
      .reg .b32 %r<9>; .reg .pred %p<4>; .reg .b16 %h<2>; .reg .b64 %rd<2>;
      ld.param.u32 %r1, [n]; and.b32 %r1, %r1, 7; mov.u32 %r2, 0; mov.u32 %r3, 0;
      setp.ne.u32 %p1, %r1, 3; mov.b16 %h1, 5; mov.u64 %rd1, 9;
      more: setp.ge.u32 %p2, %r2, %r1; @%p2 bra done;
      @%p1 add.u32 %r3, %r3, 1;
      @!%p1 add.u32 %r3, %r3, 1000;
      setp.gt.u32 %p3, %r2, 0;
      { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2;
        call (b), f, (a); ld.param.b32 %r5, [b]; }
      @%p3 add.u32 %r3, %r3, %r7; add.u32 %r3, %r3, %r5; mov.u32 %r7, %r2;
      cvt.u32.u16 %r6, %h1; add.u32 %r3, %r3, %r6;
      cvt.u32.u64 %r6, %rd1; add.u32 %r3, %r3, %r6;
      add.u32 %r2, %r2, 1; bra more;
      done: st.param.b32 [r], %r3; ret; }"""

    def f(n: int) -> int:
        n, total, before = n & 7, 0, 0
        for i in range(n):
            total += (1 if n != 3 else 1000) + before + f(i) + 14
            before = i
        return total

    assert run(functions) == [f(n) for n in range(64)]


def test_functions_that_call_each_other() -> None:
    functions = """.func (.param .b32 r) g(.param .b32 n);
    .func (.param .b32 r) f(.param .b32 n) {
      .reg .b32 %r<9>; .reg .pred %p<4>;
      ld.param.u32 %r1, [n]; setp.eq.u32 %p1, %r1, 0; mov.u32 %r4, 1; @%p1 bra out;
      sub.u32 %r2, %r1, 1;
      { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call (b), g, (a);
        ld.param.b32 %r4, [b]; }
      mad.lo.u32 %r4, %r4, 3, %r1;
      out: st.param.b32 [r], %r4; ret; }
    .func (.param .b32 r) g(.param .b32 n) {
      .reg .b32 %r<9>; .reg .pred %p<4>;
      ld.param.u32 %r1, [n]; mov.u32 %r4, 2; setp.eq.u32 %p1, %r1, 0; @%p1 bra out;
      shr.u32 %r2, %r1, 1;
      { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call (b), f, (a);
        ld.param.b32 %r4, [b]; }
      xor.b32 %r4, %r4, %r1;
      out: st.param.b32 [r], %r4; ret; }"""

    def f(n: int) -> int:
        return g(n - 1) * 3 + n if n else 1

    def g(n: int) -> int:
        return f(n >> 1) ^ n if n else 2

    assert run(functions) == [f(n) for n in range(64)]


def test_addresses_of_what_a_caller_has() -> None:
    """Each turn writes into the array of the one before, through its address."""
    functions = """.func down(.param .b64 p, .param .b32 n) {
      .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<2>; .local .align 8 .b32 own[4];
      ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n];
      mov.u32 %r2, 0; st.local.u32 [own], %r2; st.local.u32 own[1], %r1;
      setp.eq.u32 %p1, %r1, 0; @%p1 bra bottom;
      mov.u64 %rd2, own; cvta.local.u64 %rd2, %rd2; sub.u32 %r3, %r1, 1;
      { .param .b64 a; .param .b32 b; st.param.b64 [a], %rd2; st.param.b32 [b], %r3;
        call down, (a, b); }
      bottom: ld.local.u32 %r4, [own]; ld.local.u32 %r5, own[1];
      mad.lo.u32 %r4, %r4, 2, %r5; st.u32 [%rd1], %r4; ret; }
    .func (.param .b32 r) f(.param .b32 n) {
      .reg .b32 %r<9>; .reg .b64 %rd<9>; .local .align 8 .b32 box[2];
      ld.param.u32 %r1, [n]; and.b32 %r1, %r1, 15; mov.u64 %rd2, box; cvta.local.u64 %rd2, %rd2;
      { .param .b64 a; .param .b32 b; st.param.b64 [a], %rd2; st.param.b32 [b], %r1;
        call down, (a, b); }
      ld.local.u32 %r2, [box]; st.param.b32 [r], %r2; ret; }"""

    def down(n: int) -> int:
        return (2 * down(n - 1) if n else 0) + n

    assert run(functions) == [down(n & 15) for n in range(64)]


POINTED = """
.func (.param .b32 r) twice(.param .b32 n) { .reg .b32 %r<3>;
  ld.param.u32 %r1, [n]; shl.b32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }
.func (.param .b32 r) next(.param .b32 n) { .reg .b32 %r<3>;
  ld.param.u32 %r1, [n]; add.u32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }
.func other(.param .b32 n) { ret; }
"""
CALL = """{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1;
  call (b), %rd1, (a), how; ld.param.b32 %r2, [b]; }"""


PROTOTYPE = "how: .callprototype (.param .b32 _) _ (.param .b32 _);"


@pytest.mark.parametrize("how", [PROTOTYPE, "how: .calltargets twice, next;"])
def test_calls_by_address(how: str) -> None:
    """Lanes of a warp take different functions, out of a table and out of instructions."""
    functions = f"""{POINTED}
    .global .align 8 .u64 table[3] = {{twice, next, other}};
    .func (.param .b32 r) f(.param .b32 n) {{
      .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>; {how}
      ld.param.u32 %r1, [n]; and.b32 %r3, %r1, 1; mul.wide.u32 %rd2, %r3, 8;
      mov.u64 %rd3, table; add.u64 %rd3, %rd3, %rd2; ld.global.u64 %rd1, [%rd3];
      setp.gt.u32 %p1, %r1, 40; @%p1 mov.u64 %rd1, next;
      {CALL}
      st.param.b32 [r], %r2; ret; }}"""
    assert run(functions) == [2 * n if n <= 40 and n % 2 == 0 else n + 1 for n in range(64)]


def test_an_address_of_no_function() -> None:
    for address in ("0x1234", "other"):
        functions = f"""{POINTED}.func (.param .b32 r) f(.param .b32 n) {{
          .reg .b32 %r<9>; .reg .b64 %rd<9>; ld.param.u32 %r1, [n]; mov.u64 %rd1, {address};
          {PROTOTYPE}
          {CALL} st.param.b32 [r], %r2; mov.u64 %rd1, twice; ret; }}"""
        with pytest.raises(WarpFault):
            run(functions)


def test_recursion_through_addresses() -> None:
    functions = f""".func (.param .b32 r) f(.param .b32 n) {{
      .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;
      {PROTOTYPE}
      ld.param.u32 %r4, [n]; mov.u32 %r2, 7; setp.lt.u32 %p1, %r4, 2; @%p1 bra out;
      shr.u32 %r1, %r4, 1; mov.u64 %rd1, f; {CALL} mad.lo.u32 %r2, %r2, 5, %r4;
      out: st.param.b32 [r], %r2; ret; }}"""

    def f(n: int) -> int:
        return 7 if n < 2 else 5 * f(n >> 1) + n

    assert run(functions) == [f(n) for n in range(64)]


def test_calls_with_other_parameters_are_refused() -> None:
    for call in ("call other, (a);", "call (b), twice, (a, a);", "call (b), twice;"):
        text = f"""{HEAD}{POINTED}.entry k() {{ .param .b32 a; .param .b32 b; {call} ret; }}"""
        if call.startswith("call other"):
            BareModule(text).program("k")
            continue
        with pytest.raises(PtxError, match="results and parameters"):
            BareModule(text).program("k")

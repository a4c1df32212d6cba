"""Kernels for tests, in PTX written by hand."""

from __future__ import annotations

_HEAD = """
.version {version}
.target {target}
.address_size 64
"""
_TWICE = """
.visible .entry twice(.param .u64 p) {
  .reg .b64 %a<4>; .reg .b32 %r<6>;
  ld.param.u64 %a1, [p];
  mov.u32 %r1, %tid.x;
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mad.lo.u32 %r1, %r3, %r4, %r1;
  mul.wide.u32 %a2, %r1, 4;
  add.u64 %a3, %a1, %a2;
  ld.global.u32 %r2, [%a3];
  shl.b32 %r2, %r2, 1;
  st.global.u32 [%a3], %r2;
  ret;
}
"""
_MIXED = """
.global .align 4 .b8 table[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0};
.visible .entry mixed(.param .u8 small, .param .u64 p, .param .f32 x, .param .u16 n) {
  .reg .b64 %a<3>; .reg .b32 %r<4>; .reg .f32 %f<2>; .reg .b16 %h<3>;
  ld.param.u64 %a1, [p];
  ld.param.u8 %h1, [small];
  cvt.u32.u16 %r1, %h1;
  st.global.u32 [%a1], %r1;
  ld.param.f32 %f1, [x];
  st.global.f32 [%a1+4], %f1;
  ld.param.u16 %h2, [n];
  cvt.u32.u16 %r2, %h2;
  st.global.u32 [%a1+8], %r2;
  ld.global.u32 %r3, [table+8];
  st.global.u32 [%a1+12], %r3;
  ret;
}
"""
_SHARED = """
.extern .shared .align 4 .b8 room[];
.visible .entry reversed(.param .u64 p) .maxntid 128, 1, 1 {
  .reg .b64 %a<4>; .reg .b32 %r<9>;
  .shared .align 4 .b8 own[64];
  ld.param.u64 %a1, [p];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %a2, %r1, 4;
  add.u64 %a3, %a1, %a2;
  ld.global.u32 %r2, [%a3];
  mov.u32 %r3, room;
  shl.b32 %r4, %r1, 2;
  add.u32 %r5, %r3, %r4;
  st.shared.u32 [%r5], %r2;
  mov.u32 %r8, own;
  st.shared.u32 [%r8], %r2;
  bar.sync 0;
  mov.u32 %r6, %ntid.x;
  shl.b32 %r6, %r6, 2;
  add.u32 %r6, %r3, %r6;
  sub.u32 %r6, %r6, %r4;
  ld.shared.u32 %r7, [%r6+-4];
  st.global.u32 [%a3], %r7;
  ret;
}
.visible .entry exact() .reqntid 32, 2, 1 { ret; }
"""
_BAD = """
.visible .entry odd(.param .u64 p) {
  .reg .b64 %a<2>; .reg .b32 %r<2>;
  ld.param.u64 %a1, [p];
  ld.global.u32 %r1, [%a1+1];
  st.global.u32 [%a1], %r1;
  ret;
}
.visible .entry trapped() { trap; ret; }
.visible .entry endless() {
$again:
  bra.uni $again;
}
.visible .entry spin(.param .u64 p) {
  .reg .b64 %a<2>; .reg .b32 %r<2>; .reg .pred %p<2>;
  ld.param.u64 %a1, [p];
$again:
  ld.volatile.global.u32 %r1, [%a1];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra $again;
  ret;
}
.visible .entry store(.param .u64 p, .param .u32 v) {
  .reg .b64 %a<2>; .reg .b32 %r<2>;
  ld.param.u64 %a1, [p];
  ld.param.u32 %r1, [v];
  st.global.u32 [%a1], %r1;
  ret;
}
.visible .entry wide(.param .u64 p) {
  .reg .b64 %a<3>; .reg .b32 %r<2>;
  ld.param.u64 %a1, [p];
  ld.global.u32 %r1, [%a1];
  st.global.u32 [%a1+4], %r1;
  ld.global.u64 %a2, [%a1];
  st.global.u64 [%a1+8], %a2;
  ret;
}
.visible .entry count(.param .u64 p) {
  .reg .b64 %a<2>; .reg .b32 %r<2>;
  ld.param.u64 %a1, [p];
  red.global.add.u32 [%a1], 1;
  ret;
}
"""


def module(target: str = "sm_80", version: str = "7.0") -> bytes:
    """The module with all of them."""
    return (
        _HEAD.format(target=target, version=version) + _TWICE + _MIXED + _SHARED + _BAD
    ).encode()

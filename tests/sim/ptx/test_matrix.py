"""Matrix instructions, compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.sim.isa.ptx.bare import BareModule
from gpu.sim.isa.ptx.syntax import PtxError

ml_dtypes = pytest.importorskip("ml_dtypes")
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
_TYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype("f4")}


def kernel(shape: str, element: str, result: str, of_a: int, of_b: int, of_c: int) -> str:
    """Registers of a lane come from rows of memory: those of A, then B, then C, then D."""

    def names(start: int, count: int) -> str:
        return ", ".join(f"%r{start + number}" for number in range(count))

    count = of_a + of_b + of_c
    loads = "\n".join(f"ld.global.u32 %r{10 + n}, [%rd2+{128 * n}];" for n in range(count))
    stores = "\n".join(
        f"st.global.u32 [%rd2+{128 * (count + n)}], %r{30 + n};" for n in range(of_c)
    )
    return f"""{HEAD}.entry k(.param .u64 p) {{
  .reg .b32 %r<40>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [p]; mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd1, %rd2;
  {loads}
  mma.sync.aligned.{shape}.row.col.{result}.{element}.{element}.{result}
    {{{names(30, of_c)}}}, {{{names(10, of_a)}}}, {{{names(10 + of_a, of_b)}}},
    {{{names(10 + of_a + of_b, of_c)}}};
  {stores}
  ret; }}"""


@pytest.mark.parametrize(
    ("shape", "element", "result"),
    [
        ("m16n8k16", "f16", "f32"),
        ("m16n8k16", "bf16", "f32"),
        ("m16n8k16", "f16", "f16"),
        ("m16n8k8", "f16", "f32"),
        ("m16n8k8", "bf16", "f32"),
        ("m16n8k8", "tf32", "f32"),
        ("m16n8k4", "tf32", "f32"),
    ],
)
def test_products(shape: str, element: str, result: str) -> None:
    k = int(shape.split("k")[1])
    rng = np.random.default_rng(k)
    kind, sums = _TYPES[element], np.dtype(np.float32 if result == "f32" else np.float16)
    a, b, c = (rng.integers(-8, 9, size) for size in ((16, k), (k, 8), (16, 8)))
    per = 4 // kind.itemsize
    of_b = k // (4 * per)
    rows: list[list[np.ndarray]] = []
    lanes = [(lane // 4, lane % 4) for lane in range(32)]
    for part in range(of_b):
        columns = [[4 * per * part + per * t + n for n in range(per)] for _, t in lanes]
        for upper in (0, 8):
            rows.append([a[g + upper, at] for (g, _), at in zip(lanes, columns, strict=True)])
    of_a = len(rows)
    for part in range(of_b):
        rows.append([b[[4 * per * part + per * t + n for n in range(per)], g] for g, t in lanes])
    words = [np.array(row).astype(kind).view(np.uint32).ravel() for row in rows]
    for upper in (0, 8):
        pair = np.array([c[g + upper, 2 * t : 2 * t + 2] for g, t in lanes]).astype(sums)
        words += list(pair.view(np.uint32).reshape(32, -1).T)
    of_c = len(words) - of_a - of_b
    memory = np.zeros((len(words) + of_c, 32), np.uint32)
    memory[: len(words)] = words
    BareModule(kernel(shape, element, result, of_a, of_b, of_c)).run(
        "k", (1, 1, 1), (32, 1, 1), memory
    )
    got = np.zeros((16, 8))
    halves = of_c // 2
    for upper in (0, 1):
        found = memory[len(words) + upper * halves :][:halves].T.copy().view(sums)
        for lane, (g, t) in enumerate(lanes):
            got[g + 8 * upper, 2 * t : 2 * t + 2] = found[lane]
    assert (got == a @ b + c).all()


SIGNED = {"s8": np.dtype(np.int8), "u8": np.dtype(np.uint8)}


@pytest.mark.parametrize("satfinite", [False, True])
@pytest.mark.parametrize("right", SIGNED)
@pytest.mark.parametrize("left", SIGNED)
@pytest.mark.parametrize("k", [16, 32])
def test_products_of_bytes(k: int, left: str, right: str, satfinite: bool) -> None:
    """A and B of all values, C at the ends of its type now and then; sums wrap, or saturate."""
    rng = np.random.default_rng(k)
    a = rng.integers(0, 256, (16, k)).astype(np.uint8).view(SIGNED[left])
    b = rng.integers(0, 256, (k, 8)).astype(np.uint8).view(SIGNED[right])
    c = rng.integers(-(1 << 31), 1 << 31, (16, 8))
    ends = rng.random((16, 8))
    c = np.where(ends < 0.3, (1 << 31) - 1, np.where(ends < 0.6, -(1 << 31), c)).astype(np.int32)
    lanes = np.arange(32)
    g, t = lanes // 4, lanes % 4
    # "PTX ISA", "Matrix Fragments for mma.m16n8k32": element i of a lane.
    words = []
    for register in range(k // 8):
        i = 4 * register + np.arange(4)
        rows = g[:, None] + np.where((i < 4) | ((i >= 8) & (i < 12)), 0, 8)
        columns = 4 * t[:, None] + (i & 3) + np.where(i < 8, 0, 16)
        words.append(np.ascontiguousarray(a[rows, columns]).view(np.uint32)[:, 0])
    for register in range(k // 16):
        i = 4 * register + np.arange(4)
        rows = 4 * t[:, None] + (i & 3) + np.where(i < 4, 0, 16)
        words.append(np.ascontiguousarray(b[rows, g[:, None]]).view(np.uint32)[:, 0])
    places = [(g + 8 * (i // 2), 2 * t + i % 2) for i in range(4)]
    words += [c[place].view(np.uint32) for place in places]
    text = kernel(f"m16n8k{k}", left, "s32", k // 8, k // 16, 4)
    text = text.replace(f".s32.{left}.{left}.s32", f".s32.{left}.{right}.s32")
    if satfinite:
        text = text.replace(".row.col", ".row.col.satfinite")
    memory = np.zeros((len(words) + 4, 32), np.uint32)
    memory[: len(words)] = words
    BareModule(text).run("k", (1, 1, 1), (32, 1, 1), memory)
    exact = a.astype(np.int64) @ b.astype(np.int64) + c
    limits = np.iinfo(np.int32)
    wanted = exact.clip(limits.min, limits.max) if satfinite else exact
    assert (exact.astype(np.int32) != exact).any()
    for i, place in enumerate(places):
        assert (memory[len(words) + i].view(np.int32) == wanted[place].astype(np.int32)).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_loads_of_matrices(count: int, transposed: bool) -> None:
    names = ", ".join(f"%r{10 + n}" for n in range(count))
    stores = "\n".join(f"st.global.u32 [%rd2+{128 * n}], %r{10 + n};" for n in range(count))
    trans = ".trans" if transposed else ""
    text = f"""{HEAD}.entry k(.param .u64 p, .param .u64 q) {{
  .reg .b32 %r<40>; .reg .b64 %rd<6>; .shared .align 16 .b8 box[512];
  ld.param.u64 %rd1, [p]; ld.param.u64 %rd3, [q]; mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd1, %rd2;
  mul.wide.u32 %rd4, %r1, 16; add.s64 %rd4, %rd3, %rd4;
  mov.u32 %r2, box; mad.lo.u32 %r2, %r1, 16, %r2;
  cp.async.cg.shared.global [%r2], [%rd4], 16;
  cp.async.commit_group; cp.async.wait_group 0; bar.warp.sync -1;
  ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%r2];
  {stores}
  ret; }}"""
    source = np.arange(256, dtype=np.uint16)
    out = np.zeros((count, 32), np.uint32)
    BareModule(text).run("k", (1, 1, 1), (32, 1, 1), out, source)
    matrices = source.reshape(4, 8, 8)[:count]
    wanted = matrices.transpose(0, 2, 1) if transposed else matrices
    assert (out.view(np.uint16).reshape(count, 8, 8) == wanted).all()


def test_other_products_are_refused() -> None:
    refused = (
        kernel("m16n8k32", "f16", "f32", 4, 2, 4),
        kernel("m16n8k8", "s8", "s32", 2, 1, 4),
        kernel("m16n8k32", "s8", "f32", 4, 2, 4),
        kernel("m16n8k16", "s8", "s32", 2, 1, 4).replace("s8.s8", "s8.f16"),
        kernel("m16n8k16", "f16", "f32", 4, 2, 4).replace("row.col", "row.col.satfinite"),
    )
    for text in refused:
        with pytest.raises(PtxError, match=r"no semantics|satfinite"):
            BareModule(text).program("k")

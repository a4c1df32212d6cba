"""Linear programs with grids and blocks of threads."""

from __future__ import annotations

import numpy as np

from gpu.compiler.ir.linear import Inst, Limit, Param, Program, Val
from gpu.core.dtype import dtypes
from unit.linear_kernels import Kernel


def nest(*sizes: int) -> Kernel:
    """Grid loops of these sizes; each iteration stores its number."""
    k = Kernel(out=(dtypes.int64, max(int(np.prod(sizes)), 1)))
    loops = [k.loop(size, kind="grid") for size in sizes]
    number = loops[0]
    for loop, size in zip(loops[1:], sizes[1:], strict=True):
        number = k.alu("add", k.alu("mul", number, k.const(size)), loop)
    k.store(k.out, number, number)
    for loop in reversed(loops):
        k.end(loop)
    return k


def symbolic(kind: str, most: int = 400) -> Program:
    """out[i] = i for i below a value of the launch, which is `most` at most."""
    out = Inst("param", dtypes.int64, attr=(0,))
    n = Inst("val", dtypes.int64, attr=(0,))
    loop = Inst("loop", dtypes.int64, attr=(kind, 0, Limit(n, most), 1))
    store = Inst("store", dtypes.int64, 1, (out, loop, loop), (False,))
    end = Inst("end", dtypes.int64, attr=(loop,))
    params = (Param("out", dtypes.int64, 400, True),)
    return Program("kernel", params, (out, n, loop, store, end), (Val("n", 0, most),))


def reversing(blocks: int, rows: int, columns: int) -> Kernel:
    """Each block reverses its part of the array through team memory."""
    size = rows * columns
    k = Kernel(a=(dtypes.int64, blocks * size), b=(dtypes.int64, blocks * size))
    block = k.loop(blocks, kind="grid")
    start = k.alu("mul", block, k.const(size))
    team = k("local", dtypes.int64, attr=(size, "team"))
    y, x = k.loop(rows, kind="thread"), k.loop(columns, kind="thread")
    thread = k.alu("add", k.alu("mul", y, k.const(columns)), x)
    k.store(team, thread, k.load(k.a, k.alu("add", start, thread)))
    k("barrier", dtypes.bool)
    other = k.alu("sub", k.const(size - 1), thread)
    k.store(k.b, k.alu("add", start, thread), k.load(team, other))
    for loop in (x, y, block):
        k.end(loop)
    return k


def roots_and_products() -> Kernel:
    """a * a + b, a / b and the root of a, for each of 1000 elements."""
    single, n = dtypes.float32, 1000
    k = Kernel(a=(single, n), b=(single, n), s=(single, n), q=(single, n), r=(single, n))
    i = k.loop(n, kind="grid")
    a, b = k.load(k.a, i), k.load(k.b, i)
    k.store(k.s, i, k.alu("add", k.alu("mul", a, a), b))
    k.store(k.q, i, k.alu("div", a, b))
    k.store(k.r, i, k.alu("sqrt", a))
    k.end(i)
    return k

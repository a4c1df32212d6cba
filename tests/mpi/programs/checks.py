"""What every rank of a group runs: ``checks.py SEED SIZE [NAME...]``, all ``check_...`` by default.

All ranks draw the same numbers, so that each knows what the others give. Each rank prints a line of
JSON: for each check what went wrong, "" where nothing did.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from gpu import Tensor, distributed, dtypes, jit
from gpu.core.errors import DTypeError, InvalidType, InvalidValue, ShapeError, Unsupported

group = distributed.init()
RANK, SIZE = group.rank, group.size
rng = np.random.default_rng(int(sys.argv[1]))

FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
NARROW = (dtypes.float16, dtypes.bfloat16, dtypes.fp8e4m3, dtypes.fp8e5m2)
WHOLE = (dtypes.bool, dtypes.int8, dtypes.uint16, dtypes.int32, dtypes.uint64)
JOINS = {
    "sum": np.add,
    "avg": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
FOR_FLOATS = ("sum", "avg", "product", "min", "max")
FOR_WHOLE = ("sum", "product", "min", "max", "band", "bor", "bxor")


def drawn(dtype: Any, shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """An array of each rank."""
    values = rng.uniform(-4, 4, (SIZE, *shape))
    if dtype.is_complex:
        values = values + 1j * rng.uniform(-4, 4, (SIZE, *shape))
    if dtype is dtypes.bool:
        values = values > 0
    elif dtype.is_int and dtype.min == 0:
        values = np.abs(values)
    return [np.asarray(value).astype(dtype.np) for value in values]


def shape_of() -> tuple[int, ...]:
    return tuple(rng.integers(1, 7, rng.integers(0, 4)).tolist())


def joined(op: str, parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """In the order of ranks; narrow floats in float32, rounded once."""
    dtype = parts[0].dtype
    wide = [p.astype(np.float32) if dtype.itemsize < 4 and dtype.kind in "fV" else p for p in parts]
    total = reduce(JOINS[op], wide)
    return (total / SIZE if op == "avg" else total).astype(dtype)


def same(got: Tensor, wanted: np.ndarray[Any, Any], exact: bool = True) -> None:
    value = got.numpy()
    assert value.shape == wanted.shape and value.dtype == wanted.dtype, (value, wanted)
    if exact:
        assert value.tobytes() == wanted.tobytes(), (value, wanted)
    else:
        np.testing.assert_allclose(value.astype(float), wanted.astype(float), rtol=2e-2)


def raises(kind: type[Exception], call: Callable[[], Any], *texts: str) -> None:
    try:
        call()
    except kind as error:
        for text in texts:
            assert text in str(error), str(error)
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def check_group() -> None:
    assert distributed.init() is group
    assert 0 <= RANK < SIZE == int(sys.argv[2])
    assert (group.local_rank, group.local_size) == (RANK, SIZE)
    assert len(group.devices) == 1 and group.host
    assert [int(t.item()) for t in group.all_gather(Tensor(RANK))] == [*range(SIZE)]


def check_all_reduce() -> None:
    for dtype, ops in (*((d, FOR_FLOATS) for d in FLOATS), *((d, FOR_WHOLE) for d in WHOLE)):
        for op in ops:
            parts = drawn(dtype, shape_of())
            exact = op in ("sum", "avg", "min", "max") or dtype in WHOLE
            same(group.all_reduce(Tensor(parts[RANK]), op), joined(op, parts), exact)


def check_narrow_floats_are_rounded_once() -> None:
    for dtype in NARROW:
        parts = drawn(dtype, (20_011,))  # more than a block of the kernels
        same(group.all_reduce(Tensor(parts[RANK])), joined("sum", parts))


def check_complex() -> None:
    for dtype in (dtypes.complex64, dtypes.complex128):
        parts = drawn(dtype, (3, 2))
        same(group.all_reduce(Tensor(parts[RANK])), joined("sum", parts))
        same(group.broadcast(Tensor(parts[RANK]), SIZE - 1), parts[-1])
        for got, wanted in zip(group.all_gather(Tensor(parts[RANK])), parts, strict=True):
            same(got, wanted)
    raises(DTypeError, lambda: group.all_reduce(Tensor(1j), "max"), "complex")


def check_large() -> None:
    """More than is reduced by all ranks, in parts of different sizes."""
    for dtype in (dtypes.float32, dtypes.bfloat16):
        parts = drawn(dtype, (2_500_003,))
        same(group.all_reduce(Tensor(parts[RANK]), "avg"), joined("avg", parts))


def check_pieces() -> None:
    """Messages in pieces, the last of which is shorter."""
    wires = (group._engine.wire, group._engine.direct)
    before = [wire._piece for wire in wires]
    for wire in wires:
        wire._piece = 1000
    try:
        check_moves()
        check_send()
        parts = drawn(dtypes.float32, (1999,))
        same(group.all_reduce(Tensor(parts[RANK])), joined("sum", parts))
    finally:
        for wire, piece in zip(wires, before, strict=True):
            wire._piece = piece


def check_moves() -> None:
    for dtype in (*WHOLE, *NARROW, dtypes.float32, dtypes.float64):
        shape = shape_of()
        parts = drawn(dtype, shape)
        own = Tensor(parts[RANK])
        for got, wanted in zip(group.all_gather(own), parts, strict=True):
            same(got, wanted)
        for src in range(SIZE):
            same(group.broadcast(own, src), parts[src])
        every = drawn(dtype, (SIZE, *shape))
        stacked, listed = Tensor(every[RANK]), [Tensor(each) for each in every[RANK]]
        for given in (stacked, listed):
            for got, theirs in zip(group.all_to_all(given), every, strict=True):
                same(got, theirs[RANK])
            mine = [theirs[RANK] for theirs in every]
            same(group.reduce_scatter(given, "sum"), joined("sum", mine))
            same(group.reduce_scatter(given, "max"), joined("max", mine))


def check_empty_and_views() -> None:
    assert group.all_reduce(Tensor(np.zeros((0, 3), np.float32))).shape == (0, 3)
    assert [t.shape for t in group.all_gather(Tensor(np.zeros((2, 0))))] == [(2, 0)] * SIZE
    parts = drawn(dtypes.float32, (4, 6))
    for view in (lambda x: x.T, lambda x: x[::2, 1:], lambda x: x[::-1]):
        same(group.all_reduce(view(Tensor(parts[RANK]))), joined("sum", [view(p) for p in parts]))
    lazy = Tensor(parts[RANK]) * 2 + 1
    same(group.all_reduce(lazy), joined("sum", [p * 2 + 1 for p in parts]))
    same(lazy, parts[RANK] * 2 + 1)  # as it was


def check_other_devices() -> None:
    for device in ("PYTHON", "CPU:1"):
        parts = drawn(dtypes.float32, (5,))
        got = group.all_reduce(Tensor(parts[RANK], device=device))
        assert got.device == device
        same(got + 1, joined("sum", parts) + 1)
    spread = Tensor([1.0, 2.0]).shard(("CPU", "CPU:1"), 0)
    raises(Unsupported, lambda: group.all_reduce(spread), "several devices")


def check_send() -> None:
    """In a ring, all at once, more than MPI sends before somebody receives."""
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for dtype in (dtypes.bool, dtypes.bfloat16, dtypes.float64, dtypes.complex64):
        parts = drawn(dtype, (300, 400))
        group.send(Tensor(parts[RANK]), after)
        same(group.recv(Tensor(parts[RANK]), before), parts[before])
    if RANK < 2:
        peer = 1 - RANK
        for tag in (3, 4):
            group.send(Tensor([RANK, tag]), peer, tag)
        like = Tensor([0, 0])
        assert group.recv(like, peer, tag=4).tolist() == [peer, 4]
        assert group.recv(like, peer, tag=3).tolist() == [peer, 3]


def check_unused_results() -> None:
    """A call takes part though nobody looks at its result, or only later."""
    x = Tensor([float(RANK)])
    kept = []
    for number in range(20):
        result = group.all_reduce(x + number)
        if number % SIZE == RANK:
            kept.append((number, result))
    for number, result in reversed(kept):
        assert result.item() == SIZE * (SIZE - 1) / 2 + SIZE * number


def check_order_of_use() -> None:
    x = Tensor(np.full(1000, RANK + 1.0, np.float32))
    first, second = group.all_reduce(x), group.all_reduce(x * 10)
    third = group.all_reduce(second)  # of what has not come yet
    total = SIZE * (SIZE + 1) / 2
    assert third[0].item() == 10 * total * SIZE
    assert first[-1].item() == total and (second + first)[5].item() == 11 * total
    del first, second, third
    kept = group.all_reduce(x)
    x.assign(x * 0).realize()  # what is sent is what x was at the call
    assert kept[0].item() == total


def gradients_of(
    between: Callable[[Tensor], Tensor],
    alone: Callable[[list[Tensor]], list[Tensor]],
    shape: tuple[int, ...],
) -> None:
    """Of a sum over ranks, by the group and in one process."""
    starts = drawn(dtypes.float64, shape)
    weights: list[Any] = []

    def loss(result: Tensor, rank: int) -> Tensor:
        while len(weights) < SIZE:
            weights.append(rng.uniform(-1, 1, result.shape))
        return (result * Tensor(weights[rank])).square().sum()

    everywhere = [Tensor(start, requires_grad=True) for start in starts]
    results = alone([x * x for x in everywhere])
    wanted = reduce(lambda a, b: a + b, [loss(y, rank) for rank, y in enumerate(results)])
    wanted.backward()
    own = Tensor(starts[RANK], requires_grad=True)
    result = between(own * own)
    np.testing.assert_allclose(result.numpy(), results[RANK].numpy(), rtol=1e-12)
    loss(result, RANK).backward()
    theirs = everywhere[RANK].grad
    expected = np.zeros(shape) if theirs is None else theirs.numpy()
    np.testing.assert_allclose(own.grad.numpy(), expected, rtol=1e-9)


def check_gradients() -> None:
    total = {
        "sum": lambda xs: Tensor.stack(*xs).sum(0),
        "avg": lambda xs: Tensor.stack(*xs).mean(0),
        "product": lambda xs: Tensor.stack(*xs).prod(0),
        "min": lambda xs: Tensor.stack(*xs).min(0),
        "max": lambda xs: Tensor.stack(*xs).max(0),
    }
    for op, join in total.items():
        gradients_of(
            lambda x, op=op: group.all_reduce(x, op), lambda xs, j=join: [j(xs)] * SIZE, (2, 3)
        )
        gradients_of(
            lambda x, op=op: group.reduce_scatter(x, op),
            lambda xs, j=join: [j([x[r] for x in xs]) for r in range(SIZE)],
            (SIZE, 3),
        )
    gradients_of(
        lambda x: Tensor.cat(*group.all_gather(x)), lambda xs: [Tensor.cat(*xs)] * SIZE, (2, 3)
    )
    gradients_of(
        lambda x: Tensor.cat(*group.all_to_all(x)),
        lambda xs: [Tensor.cat(*[x[r] for x in xs]) for r in range(SIZE)],
        (SIZE, 2),
    )
    src = int(rng.integers(SIZE))
    gradients_of(lambda x: group.broadcast(x, src), lambda xs: [xs[src]] * SIZE, (4,))


def check_gradients_of_messages() -> None:
    starts = drawn(dtypes.float32, (3,))
    if RANK == 0:
        x = Tensor(starts[0], requires_grad=True)
        sent = group.send((x * 3).exp(), 1)
        sent.backward()
        theirs = 2 * np.exp(starts[0] * 3)
        np.testing.assert_allclose(x.grad.numpy(), theirs * np.exp(starts[0] * 3) * 3, rtol=1e-5)
    elif RANK == 1:
        like = Tensor(starts[1], requires_grad=True)
        y = group.recv(like, 0)
        y.square().sum().backward()


def check_second_order() -> None:
    x = Tensor(drawn(dtypes.float64, (3,))[RANK], requires_grad=True)
    y = group.all_reduce(x * x).square().sum()
    (slope,) = y.gradient(x)
    (curve,) = slope.sum().gradient(x)
    # Of n ranks with L = n s(x)^2, s = sum of squares: dL/dx = 4 n s x.
    s = group.all_reduce((x * x).detach()).numpy()
    np.testing.assert_allclose(slope.numpy(), 4 * SIZE * s * x.numpy(), rtol=1e-12)
    assert np.isfinite(curve.numpy()).all()


def check_mismatch() -> None:
    """All ranks get the error with the lines of all, and can go on."""
    x = Tensor([1.0, 2.0])
    calls = (
        (lambda: group.all_reduce(x), group.barrier, "barrier()"),
        (lambda: group.all_reduce(x), lambda: group.all_reduce(x, "avg"), "op='avg'"),
        (lambda: group.all_gather(x)[0], lambda: group.all_gather(x[:1])[0], "float32[1]"),
        (lambda: group.all_gather(x)[0], lambda: group.all_gather(x.int())[0], "int32[2]"),
        (lambda: group.broadcast(x, 0), lambda: group.broadcast(x, 1), "src=1"),
    )
    for some, others, text in calls:
        call = others if RANK == SIZE - 1 else some
        texts = (text, "rank 0 calls", f"rank {SIZE - 1} calls", "checks.py:")

        def wait(call: Callable[[], Any] = call) -> None:
            if (result := call()) is not None:
                result.numpy()

        raises(distributed.CollectiveMismatch, wait, *texts)
    assert group.all_reduce(x).tolist() == [SIZE, 2.0 * SIZE]


def check_wrong_arguments() -> None:
    x = Tensor([1.0])
    raises(InvalidValue, lambda: group.all_reduce(x, "mean"), "'mean'", "avg")
    raises(DTypeError, lambda: group.all_reduce(x, "band"), "float32")
    raises(DTypeError, lambda: group.all_reduce(Tensor([1]), "avg"), "int32")
    raises(InvalidType, lambda: group.all_reduce([1.0]), "all_reduce", "list")
    raises(InvalidValue, lambda: group.broadcast(x, SIZE), "src", str(SIZE - 1))
    raises(InvalidValue, lambda: group.send(x, RANK), "itself")
    raises(InvalidValue, lambda: group.recv(x, (RANK + 1) % SIZE, tag=-1), "tag")
    raises(ShapeError, lambda: group.all_to_all([x] * (SIZE + 1)), f"{SIZE} ranks")
    raises(InvalidType, lambda: group.reduce_scatter(3), "int")

    @jit
    def step(x: Tensor) -> Tensor:
        return group.all_reduce(x)

    raises(InvalidValue, lambda: step(x), "jitted")


def check_fork() -> None:
    child = os.fork()
    if not child:
        try:
            group.barrier()
        except distributed.DistributedError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def check_interrupted_wait() -> None:
    """Ctrl-C ends the wait; the call goes on, and the next is in order."""
    if RANK == 0:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        raises(KeyboardInterrupt, group.barrier)
    else:
        time.sleep(0.3)
        group.barrier()
    assert group.all_reduce(Tensor(1)).item() == SIZE


def main() -> None:
    checks = {name: f for name, f in globals().items() if name.startswith("check_")}
    told = {}
    for name in sys.argv[3:] or checks:
        try:
            checks[name]()
            told[name] = ""
        except BaseException:  # told to the test
            told[name] = traceback.format_exc()
    print(json.dumps({"rank": RANK, "told": told}), flush=True)


if __name__ == "__main__":
    main()

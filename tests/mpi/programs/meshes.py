"""What every rank runs of meshes: ``meshes.py SEED WHOLE [NAME...]``.

All ``check_...`` by default; WHOLE is 1 for all cases of each, and 0 for a sample by the seed.

All ranks draw the same numbers. Each prints a line of JSON, as `checks.py`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import gpu
from gpu import Device, Mesh, Tensor, distributed, dtypes, jit, nn
from gpu.core.errors import (
    CollectiveMismatch,
    DeviceMismatch,
    InvalidType,
    InvalidValue,
    ShapeError,
    Unsupported,
)
from mpi.checking import raises, run_checks
from tensor.test_sharding import OPERATIONS, REFUSED

group = distributed.init()
RANK, SIZE = group.rank, group.size
rng = np.random.default_rng(int(sys.argv[1]))
WHOLE = sys.argv[2] == "1"


def values(*shape: int) -> Any:
    return rng.normal(size=shape)


def meshes() -> list[Mesh]:
    """One device of each rank, two, and two along an axis of their own."""
    return [
        Mesh((SIZE,), ("data",)),
        Mesh((2 * SIZE,), ("data",)),
        Mesh((SIZE, 2), ("data", "model")),
    ]


def check_parts() -> None:
    x = values(4 * SIZE, 8)
    for mesh in meshes():
        for spec in (("data", None), (None, "data"), ()):
            t = Tensor(x).shard(mesh, spec)
            parts = t.local()
            assert len(parts) == len(mesh.devices)
            for part, device in zip(parts, mesh.devices, strict=True):
                assert part.device == device
            again = Tensor.from_local(parts, mesh, spec)
            assert again.spec == t.spec == (*spec, *(None,) * (2 - len(spec)))
            np.testing.assert_array_equal(again.numpy(), x)
            for other in ((None, "data"), ("data",), ()):
                moved = t.shard(mesh, other)
                np.testing.assert_array_equal(moved.numpy(), x)
    mesh = Mesh((SIZE, 2), ("data", "model"))
    both = Tensor(x).shard(mesh, (("data", "model"), None))
    assert both.spec == (("data", "model"), None) and both.local()[0].shape == (2, 8)
    np.testing.assert_array_equal(both.local()[1].numpy(), x[RANK * 4 + 2 : RANK * 4 + 4])
    crossed = Tensor(x).shard(mesh, ("model", "data"))
    np.testing.assert_array_equal((crossed + both).numpy(), x + x)


def check_operations() -> None:
    """Those of the tests of several devices, on values cut over ranks."""
    x = np.asarray(values(4, 6), np.float32)
    mesh = Mesh((2,), ("data",)) if SIZE == 2 else Mesh((2, SIZE // 2), ("data", "rest"))
    for name in OPERATIONS if WHOLE else rng.choice([*OPERATIONS], 4, replace=False):
        run = OPERATIONS[name]
        for axis, spec in enumerate((("data",), (None, "data"), ())):
            if (name, axis) in REFUSED and axis < 2:
                cut = partial(run, Tensor(x).shard(mesh, spec))
                raises(Unsupported, lambda cut=cut: cut().realize(), ".to(")
                continue
            got = run(Tensor(x).shard(mesh, spec)).numpy()
            wanted = run(Tensor(x)).numpy()
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=f"{name} {axis}")


def check_matmul_and_gradients() -> None:
    a, b = values(4 * SIZE, 4 * SIZE), values(4 * SIZE, 2 * SIZE)
    specs = ((), ("data",), (None, "data"))
    cases = [*product(meshes()[::2], specs, specs)]
    for number in range(len(cases)) if WHOLE else rng.choice(len(cases), 4, replace=False):
        mesh, first, second = cases[number]
        x, y = Tensor(a, requires_grad=True), Tensor(b, requires_grad=True)
        result = x.shard(mesh, first) @ y.shard(mesh, second)
        result.square().sum().backward()
        np.testing.assert_allclose(result.numpy(), a @ b, rtol=1e-9)
        assert x.grad is not None and y.grad is not None and x.grad.device == "CPU"
        np.testing.assert_allclose(x.grad.numpy(), 2 * a @ b @ b.T, rtol=1e-9)
        np.testing.assert_allclose(y.grad.numpy(), 2 * a.T @ (a @ b), rtol=1e-9)


def check_dtypes() -> None:
    mesh = Mesh((SIZE,), ("data",))
    kinds = [dtypes.bool, dtypes.int8, dtypes.uint64, dtypes.bfloat16, dtypes.complex64]
    for dtype in kinds if WHOLE else [kinds[i] for i in rng.choice(len(kinds), 2, replace=False)]:
        x = Tensor(values(2 * SIZE, 3) * 3).cast(dtype)
        cut = x.shard(mesh, ("data",))
        np.testing.assert_array_equal(cut.numpy(), x.numpy())
        for run in (lambda t: t[::-1] + t, lambda t: t.sum(0), lambda t: t.max(0)):
            if dtype.is_complex and run(Tensor([[1.0]])).shape != (1, 1):
                continue
            one, many = run(x).numpy(), run(cut).numpy()
            np.testing.assert_allclose(many.astype(complex), one.astype(complex), rtol=1e-2)


def check_writes() -> None:
    mesh = Mesh((SIZE,), ("data",))
    expected = values(2 * SIZE, 6)
    x = Tensor(expected).shard(mesh, ("data",))
    row = x[1]
    x[1:3, ::2] = 5
    expected[1:3, ::2] = 5
    x += 1
    expected += 1
    np.testing.assert_array_equal(row.numpy(), expected[1])
    assert x.spec == ("data", None)
    x[0] = x[3]
    expected[0] = expected[3]
    np.testing.assert_array_equal(x.realize().numpy(), expected)


def trained(
    mesh: Mesh | None,
    how: str,
    steps: int,
    jitted: bool = True,
    after: Callable[[], object] = lambda: None,
) -> list[Any]:
    """Losses and weights of a small model in float64, sharded in a way; calls after each step."""
    draws = np.random.default_rng(3)
    sizes = [(8, 16), (16, 8), (8, 4)]
    weights = [Tensor(draws.normal(size=size) / 4, requires_grad=True) for size in sizes]
    specs: dict[str, list[Any]] = {
        "data": [(), (), ()],
        "zero1": [(), (), ()],
        "zero2": [(), (), ()],
        "zero3": [("data",), ("data",), ("data",)],
        "tensor": [(None, "data"), ("data",), ()],
        "both": [(None, "model"), ("model",), ()],
    }
    batch = () if how == "tensor" else ("data",)
    if mesh is not None:
        for weight, spec in zip(weights, specs[how], strict=True):
            weight.shard_(mesh, spec)
    optimizer = nn.optim.AdamW(weights, lr=0.01)
    if mesh is not None and how in ("zero1", "zero2"):
        for state in (*optimizer.m, *optimizer.v):
            state.shard_(mesh, ("data",))

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        hidden = x
        for weight in weights[:-1]:
            hidden = (hidden @ weight).tanh()
        loss = (hidden @ weights[-1] - y).square().mean()
        loss.backward()
        if mesh is not None and how == "zero2":
            for weight in weights:
                assert weight.grad is not None
                weight.grad = weight.grad.shard(mesh, ("data",))
        optimizer.step()
        return loss

    run = jit(step) if jitted else step
    found = []
    with Tensor.train():
        for _ in range(steps):
            x, y = (Tensor(draws.normal(size=(16, size))) for size in (8, 4))
            if mesh is not None:
                x, y = x.shard(mesh, batch), y.shard(mesh, batch)
            found.append(run(x, y).item())
            after()
    if mesh is not None:
        for weight, spec in zip(weights, specs[how], strict=True):
            assert weight.spec == (*spec, *(None,) * (2 - len(spec))), (how, weight.spec)
            assert weight.grad is not None
            assert how == "zero2" or weight.grad.spec == weight.spec, (how, weight.grad.spec)
        if how not in ("zero1", "zero2"):
            for weight, *state in zip(weights, optimizer.m, optimizer.v, strict=True):
                assert all(each.spec == weight.spec for each in state), how
    return [np.array(found), *(weight.numpy() for weight in weights)]


def check_training() -> None:
    steps = 20
    alone = trained(None, "", steps)
    line, square = Mesh((SIZE,), ("data",)), Mesh((SIZE, 2), ("data", "model"))
    cases = [(line, how) for how in ("data", "zero1", "zero2", "zero3", "tensor")]
    cases += [(square, how) for how in ("data", "zero1", "zero2", "zero3", "tensor", "both")]
    for number in range(len(cases)) if WHOLE else rng.choice(len(cases), 1):
        mesh, how = cases[number]
        together = trained(mesh, how, steps)
        for one, many in zip(alone, together, strict=True):
            np.testing.assert_allclose(many, one, rtol=1e-9, atol=1e-12, err_msg=how)
        again = trained(mesh, how, steps)
        for one, many in zip(together, again, strict=True):
            assert one.tobytes() == many.tobytes(), how


def check_traffic() -> None:
    """Nothing moves twice in a training step, and no more than has to."""
    mesh = Mesh((SIZE,), ("data",))
    weights, loss, hidden = 8 * (8 * 16 + 16 * 8 + 8 * 4), 8, 8 * 16 * 8  # bytes
    cut = weights + loss + weights // SIZE  # gradients are added up, and parts put together
    moved = {
        "data": (1, weights + loss),
        "zero1": (2, cut),
        "zero2": (3, cut),
        "zero3": (3, cut),
        "tensor": (1, hidden),  # of the layer whose products are cut along the sum
    }
    for how, wanted in moved.items():
        found: list[distributed.Traffic] = []
        group.traffic()
        trained(mesh, how, 3, after=lambda found=found: found.append(group.traffic()))
        assert [traffic[:2] for traffic in found] == [wanted] * 3, (how, found)


def check_memory() -> None:
    """State lies as its parameter, and a step that is replayed changes memory in place."""
    mesh, size, count = Mesh((SIZE,), ("data",)), 520 * SIZE, 3
    whole = 4 * count * size * size
    for spec in ((), ("data",)):
        share = whole // (SIZE if spec else 1)
        before = Device["CPU"].allocator.live
        weights = [Tensor(np.asarray(values(size, size), np.float32)) for _ in range(count)]
        for weight in weights:
            weight.shard_(mesh, spec).realize()
        optimizer = nn.optim.Adam(weights)
        assert Device["CPU"].allocator.live - before < 3.1 * share, spec

        @jit
        def step(x: Tensor, weights: Any = weights, optimizer: Any = optimizer) -> Tensor:
            for weight in weights:
                x = x @ weight
            loss = x.square().mean()
            loss.backward()
            optimizer.step()
            return loss

        with Tensor.train():
            for number in range(4):
                optimizer.zero_grad()
                gpu.reset_peak_memory_stats()
                step(Tensor.ones(SIZE, size).shard(mesh, ("data",)).realize()).item()
                stats = gpu.memory_stats()["CPU"]
                if number > 1:  # else what was there before is counted as well
                    assert stats.peak - stats.live < share, (spec, str(stats))
        del weights, weight, optimizer, step


def peak_of(how: str, count: int, size: int) -> int:
    """The most bytes that training takes with a way of sharding: Adam, and layers of one size."""
    mesh = Mesh((SIZE,), ("data",))
    x = Tensor.ones(SIZE, size).shard(mesh, ("data",)).realize()
    before = Device["CPU"].allocator.live
    weights = [Tensor(np.eye(size, dtype=np.float32), requires_grad=True) for _ in range(count)]
    for weight in weights:
        weight.shard_(mesh, ("data",) if how == "zero3" else ()).realize()
    optimizer = nn.optim.Adam(weights)
    for state in () if how == "zero3" else (*optimizer.m, *optimizer.v):
        state.shard_(mesh, ("data",)).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        for weight in weights:
            layer = gpu.checkpoint(lambda x, weight=weight: x @ weight)
            x = layer(x) if how == "zero3" else x @ weight
        loss = x.square().mean()
        loss.backward()
        for weight in weights if how == "zero2" else ():
            weight.grad = weight.grad.shard(mesh, ("data",))
        optimizer.step()
        return loss

    with Tensor.train():
        for _ in range(3):
            gpu.reset_peak_memory_stats()
            step(x).item()
            peak = Device["CPU"].allocator.peak - before
    return peak


def check_peak() -> None:
    """A step takes what ZeRO keeps, and a few layers that are under way.

    These are two buckets, one that fills, and as many weights that are put together ahead.
    """
    count, size = 8, 520 * SIZE
    # Parameters, gradients and twice as much state, of which ranks have all or a part.
    kept = {"zero1": 2 + 2 / SIZE, "zero2": 1 + 3 / SIZE, "zero3": 4 / SIZE}
    passing = {"zero1": 1, "zero2": 3, "zero3": 6}
    for how in kept if WHOLE else [str(rng.choice([*kept]))]:
        layers = peak_of(how, count, size) / (4 * size * size) - kept[how] * count
        assert 0 < layers < passing[how], (how, layers)
        gc.collect()


def check_buckets() -> None:
    """Many values of one plan, of which those of a kind go together."""
    mesh = Mesh((SIZE,), ("data",))
    arrays = [values(SIZE * int(a), SIZE * int(b)) for a, b in rng.integers(1, 5, (6, 2))]
    arrays.append(values(SIZE, SIZE * 50_000))  # fills a bucket alone

    def moved(*tensors: Tensor) -> list[Tensor]:
        found = []
        for t in tensors:
            found += [t.shard(mesh, ()), t.shard(mesh, (None, "data")), t.sum(0)]
            found.append(t.sum(0).shard(mesh, ("data",)))
        return found

    wanted = [value for x in arrays for value in (x, x, x.sum(0), x.sum(0))]
    for run in (moved, jit(moved)):
        cut = [Tensor(x).shard(mesh, ("data",)).realize() for x in arrays]
        found = run(*cut)
        found[0].realize(*found[1:])
        group.traffic()
        for one, many in zip(wanted, found, strict=True):
            np.testing.assert_allclose(many.numpy(), one, rtol=1e-9, atol=1e-12)
    assert group.traffic().calls > 0, "what is cut is put together"


def check_mismatch() -> None:
    """Ranks that compute different things are told so, and go on.

    What one of them keeps changes nothing.
    """
    mesh = Mesh((SIZE,), ("data",))
    x = Tensor(values(2 * SIZE, 3)).shard(mesh, ("data",)).realize()
    other = (lambda: x.sum(0)) if RANK else (lambda: x.max(0))
    raises(CollectiveMismatch, lambda: other().numpy(), "rank 0 calls realize(plan", "meshes.py")
    kept = []
    for _ in range(3):
        total = (x * x).sum(0)
        if RANK == 0:
            kept.append(total)
        total.numpy()
    raises(CollectiveMismatch, lambda: x.sum(0).numpy() if RANK else group.barrier(), "barrier")
    np.testing.assert_allclose(x.sum(0).numpy(), x.numpy().sum(0), rtol=1e-12)


def check_bad_input() -> None:
    mesh, x = Mesh((SIZE,), ("data",)), Tensor(values(2 * SIZE, 3))
    raises(InvalidValue, lambda: x.shard(mesh, ("batch",)), "none of the axes")
    raises(InvalidValue, lambda: x.shard(mesh, ("data", "data")), "twice")
    raises(InvalidValue, lambda: x.shard(mesh, (None, None, "data")), "3 entries")
    raises(ShapeError, lambda: x[1:].shard(mesh, ("data",)), "parts of one size")
    raises(InvalidType, lambda: x.shard(mesh, "data"), "a spec is a tuple")
    raises(InvalidType, lambda: x.shard(("CPU", "CPU:1"), ("data",)), "goes with a Mesh")
    raises(InvalidValue, lambda: Mesh((SIZE + 1,), ("data",)), "a multiple of")
    raises(InvalidValue, lambda: Mesh((SIZE,), ("a", "b")), "a name of its own")
    raises(DeviceMismatch, lambda: Tensor.from_local(x.to("CPU:3"), mesh, ("data",)), "CPU:3")
    raises(DeviceMismatch, lambda: x.shard(mesh, ("data",)) + x, "move one of them")


run_checks(RANK, globals(), sys.argv[3:])

"""Operations on shapes that nobody chose, beside torch: drawn from a commit, all results told.

    python -m tools.bench.drawn                          seeded by the parent of HEAD
    python -m tools.bench.drawn --seed 7 --count 40 --families conv pool --worst 10
    CPU_THREADS=1 python -m tools.bench.drawn --clock processor --json times.json

A line is a case of one of twelve families of operations on float32, with the seconds of torch's
call, the share of them that our kernels take (by replay) and that our whole call takes (a jitted
function, awaited); calls take turns, and the least of each counts. Answers are compared first. At
the end are the geometric means and the worst. `--clock processor` counts what the process's threads
did, for machines that others use too; with it both sides should have one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as torch_nn

import gpu
import gpu.nn.functional as our_nn
from gpu import Device, Tensor
from gpu.core.config import config
from gpu.runtime.timing import time_kernels

Rng = np.random.Generator
Array = np.ndarray[Any, Any]
ROUNDS: Final = 15
REST: Final = 0.05  # seconds before each turn, in which the other side's threads go to sleep
# Seconds of calls before a sample and in it: the first after a rest take two to four times as long
# as those that follow, on either side.
_LEAST: Final = 5e-3
CLOCKS: Final = {"wall": time.perf_counter, "processor": time.process_time}


class Case(NamedTuple):
    """One operation on drawn sizes.

    Attributes:
        what: the operation, for people.
        inputs: what it is given.
        ours, theirs: the same function of our tensors and of torch's.
        gradients: how many of the inputs, from the first on, a gradient is wanted of.
    """

    what: str
    inputs: list[Array]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    gradients: int = 0


class Times(NamedTuple):
    """Seconds of a case: torch's call, our kernels, our call."""

    family: str
    what: str
    torch: float
    kernels: float
    call: float


def _extent(rng: Rng, low: int, high: int) -> int:
    """An extent whose logarithm is even."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _values(rng: Rng, *shape: int) -> Array:
    return rng.standard_normal(shape, np.float32)


def _both(name: str, *arguments: Any, **options: Any) -> tuple[Callable[..., Any], ...]:
    """A method that both libraries' tensors have."""

    def call(x: Any, *others: Any) -> Any:
        return getattr(x, name)(*others, *arguments, **options)

    return call, call


def _functions(name: str, *arguments: Any, **options: Any) -> tuple[Callable[..., Any], ...]:
    """A function of `nn.functional`, which both have."""

    def called(functional: Any) -> Callable[..., Any]:
        return lambda *xs: getattr(functional, name)(*xs, *arguments, **options)

    return called(our_nn), called(torch_nn)


def _text(name: str, *shapes: Sequence[int], **options: Any) -> str:
    sizes = " ".join("x".join(map(str, shape)) for shape in shapes)
    return " ".join([name, sizes, *(f"{k}={v}" for k, v in options.items())])


def product(rng: Rng) -> Case:
    """A matrix by a matrix, perhaps transposed."""
    m, n, k = (_extent(rng, 8, 1500) for _ in range(3))
    turned = bool(rng.random() < 0.5)

    def call(a: Any, b: Any) -> Any:
        return a @ (b.transpose(0, 1) if turned else b)

    b = _values(rng, n, k) if turned else _values(rng, k, n)
    return Case(_text("product", (m, k), b.shape), [_values(rng, m, k), b], call, call)


def batch(rng: Rng) -> Case:
    """Many small products."""
    m, n, k = (_extent(rng, 2, 150) for _ in range(3))
    many = max(2, min(4096, int(2e7 / (m * n * k))))
    inputs = [_values(rng, many, m, k), _values(rng, many, k, n)]
    return Case(_text("products", *(x.shape for x in inputs)), inputs, *_both("matmul"))


def _conv(rng: Rng, dims: int, grouped: bool) -> tuple[list[Array], dict[str, Any], str]:
    side = _extent(rng, *{1: (50, 4000), 2: (7, 64), 3: (5, 18)}[dims])
    window = int(rng.choice([1, 3, 5, 7] if dims < 3 else [1, 3]))
    channels = _extent(rng, 3, 160)
    filters, groups = _extent(rng, 3, 160), 1
    if grouped:
        groups = channels if rng.random() < 0.6 else int(rng.choice([2, 4]))
        channels = -(-channels // groups) * groups
        filters = groups * int(rng.integers(1, 3))
    options = {"stride": int(rng.integers(1, 3)), "padding": window // 2, "groups": groups}
    options["dilation"] = int(rng.choice([1, 1, 1, 2])) if window > 1 else 1
    x = _values(rng, int(rng.integers(1, 9)), channels, *[side] * dims)
    w = _values(rng, filters, channels // groups, *[window] * dims)
    return [x, w], options, _text(f"conv{dims}d", x.shape, w.shape, **options)


def _convolved(inputs: list[Array], options: dict[str, Any], what: str, gradients: int) -> Case:
    dims = inputs[0].ndim - 2
    theirs = partial(getattr(torch_nn, f"conv{dims}d"), **options)

    def ours(x: Tensor, w: Tensor) -> Tensor:
        return x.conv2d(w, **options)

    return Case(what, inputs, ours, theirs, gradients)


def conv(rng: Rng) -> Case:
    """Convolutions of two axes."""
    return _convolved(*_conv(rng, 2, grouped=False), 0)


def conv_gradient(rng: Rng) -> Case:
    """Their gradients, of input and weights."""
    inputs, options, what = _conv(rng, 2, grouped=False)
    return _convolved(inputs, options, f"gradients of {what}", 2)


def other_conv(rng: Rng) -> Case:
    """Grouped ones, and those of one and three axes."""
    dims = int(rng.integers(1, 4))
    return _convolved(*_conv(rng, dims, grouped=dims == 2), 0)


def pool(rng: Rng) -> Case:
    """Pools, half of them with the gradient."""
    window = int(rng.integers(2, 4))
    kind = str(rng.choice(["max_pool2d", "avg_pool2d"]))
    options = {"stride": int(rng.integers(1, window + 1)), "padding": int(rng.integers(0, 2))}
    shape = (int(rng.integers(1, 9)), _extent(rng, 3, 130), *[_extent(rng, 7, 80)] * 2)
    gradients = int(rng.integers(0, 2))
    what = _text(f"{kind} {window}", shape, **options) + " with gradient" * gradients
    return Case(what, [_values(rng, *shape)], *_functions(kind, window, **options), gradients)


def _rows_shape(rng: Rng) -> tuple[int, int]:
    width = _extent(rng, 2, 6000)
    return max(1, int((1 << 19) / width * rng.uniform(0.3, 2))), width


def rows(rng: Rng) -> Case:
    """What normalises rows, half of them with the gradient."""
    shape = _rows_shape(rng)
    name = str(rng.choice(["softmax", "log_softmax", "layer_norm", "rms_norm"]))
    gradients = int(rng.integers(0, 2))
    what = _text(name, shape) + " with gradient" * gradients
    if name.endswith("max"):
        return Case(what, [_values(rng, *shape)], *_functions(name, dim=1), gradients)

    def ours(x: Tensor) -> Tensor:
        return (
            x.layernorm() if name == "layer_norm" else x / (x.square().mean(1, True) + 1e-5).sqrt()
        )

    def theirs(x: Any) -> Any:
        return getattr(torch_nn, name)(x, shape[1:], eps=1e-5)

    return Case(what, [_values(rng, *shape)], ours, theirs, gradients)


def reduce(rng: Rng) -> Case:
    """Reductions and scans along any axis."""
    name = str(rng.choice(["sum", "mean", "var", "amax", "argmax", "prod", "cumsum", "logsumexp"]))
    rows, width = _rows_shape(rng)
    shape, axis = ((rows, width), 1) if rng.random() < 0.5 else ((width, rows), 0)
    if rng.random() < 0.3:
        shape = (*shape, _extent(rng, 2, 9))
    return Case(_text(name, shape, axis=axis), [_values(rng, *shape)], *_both(name, axis))


def pointwise(rng: Rng) -> Case:
    """Chains of elementwise operations, some with broadcasts."""
    names = rng.choice(["exp", "sin", "tanh", "sqrt", "sigmoid", "log", "erf", "relu"], 3)
    shape = _rows_shape(rng)

    def call(x: Any, y: Any) -> Any:
        for name in names:
            x = getattr(x.abs() + 0.5 if name in ("sqrt", "log") else x, name)() * y
        return x + 1

    other = shape if rng.random() < 0.5 else shape[1:]
    inputs = [_values(rng, *shape), _values(rng, *other)]
    return Case(_text("-".join(names), shape, other), inputs, call, call)


def move(rng: Rng) -> Case:
    """Movement that cannot be left out."""
    shape = (_extent(rng, 4, 60), _extent(rng, 4, 200), _extent(rng, 4, 300))
    x, axis = _values(rng, *shape), int(rng.integers(0, 3))
    kind = str(rng.choice(["permute", "cat", "flip", "roll", "index_select", "gather"]))
    what = _text(kind, shape, axis=axis)
    if kind == "permute":
        order = [int(i) for i in rng.permutation(3)]

        def turned(x: Any) -> Any:
            return x.permute(order).contiguous() * 1

        return Case(_text(kind, shape, order=order), [x], turned, turned)
    if kind == "cat":
        others = [_values(rng, *shape[:axis], _extent(rng, 1, 50), *shape[axis + 1 :])]
        return Case(
            what,
            [x, *others],
            lambda *xs: xs[0].cat(*xs[1:], dim=axis),
            lambda *xs: torch.cat(xs, axis),
        )
    if kind == "flip":
        return Case(what, [x], *_both("flip", [axis]))
    if kind == "roll":
        return Case(what, [x], *_both("roll", int(rng.integers(1, shape[axis])), axis))
    if kind == "index_select":
        index = rng.integers(0, shape[axis], _extent(rng, 4, 400))

        def picked(x: Any, i: Any) -> Any:
            return x.index_select(axis, i)

        return Case(what, [x, index], picked, picked)
    index = rng.integers(0, shape[axis], shape)

    def gathered(x: Any, i: Any) -> Any:
        return x.gather(axis, i)

    return Case(what, [x, index], gathered, gathered)


def order(rng: Rng) -> Case:
    """Sorts, and the largest of rows."""
    shape = _rows_shape(rng)
    name = str(rng.choice(["sort", "topk", "argsort"]))
    if name == "topk":
        k = min(shape[1], int(rng.integers(1, 40)))
        ours, theirs = _both("topk", k)
        name = f"topk {k} of"
    else:
        ours, theirs = _both(name, dim=1, stable=True)
    first = (lambda f: lambda x: f(x)[0]) if name != "argsort" else lambda f: f
    return Case(_text(name, shape), [_values(rng, *shape)], first(ours), first(theirs))


def attention(rng: Rng) -> Case:
    """Scaled dot products, causal or not, half of them with gradients."""
    heads, length, width = (
        int(rng.integers(1, 13)),
        _extent(rng, 16, 700),
        int(rng.choice([32, 64])),
    )
    causal, gradients = bool(rng.random() < 0.5), 3 * int(rng.integers(0, 2))
    inputs = [_values(rng, 1, heads, length, width) for _ in range(3)]
    what = _text("attention", inputs[0].shape, causal=causal) + " with gradient" * bool(gradients)
    theirs = partial(torch_nn.scaled_dot_product_attention, is_causal=causal)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.scaled_dot_product_attention(k, v, is_causal=causal)

    return Case(what, inputs, ours, theirs, gradients)


FAMILIES: Final[dict[str, Callable[[Rng], Case]]] = {
    f.__name__: f
    for f in (
        *(product, batch, conv, conv_gradient, other_conv, pool, rows, reduce, pointwise, move),
        *(order, attention),
    )
}  # fmt: skip


def draw(family: str, seed: int, number: int) -> Case:
    """The case with a number, of a family."""
    return FAMILIES[family](np.random.default_rng([seed, number, *family.encode()]))


def _ours(run: Callable[..., Any], wanted: int, weights: Tensor, *xs: Tensor) -> list[Tensor]:
    """The result, and the gradients of its weighted sum by the first inputs."""
    result = run(*xs)
    return [result, *((result * weights).sum().gradient(*xs[:wanted]) if wanted else [])]


def _theirs(run: Callable[..., Any], wanted: int, weights: Any, *xs: Any) -> list[Any]:
    """The same of torch's."""
    result = run(*xs)
    return [result, *(torch.autograd.grad(result, xs[:wanted], weights) if wanted else [])]


def measure(family: str, case: Case, clock: Callable[[], float], rounds: int = ROUNDS) -> Times:
    """Seconds of a case; first its answers are compared, AssertionError where they differ."""
    wanted, function = case.gradients, case.ours
    theirs = [torch.from_numpy(x) for x in case.inputs]
    ours = [Tensor(x).realize() for x in case.inputs]
    for x in (*theirs[:wanted], *ours[:wanted]):
        x.requires_grad_()
    shape = tuple(case.theirs(*theirs).shape)
    weights = np.random.default_rng(1).standard_normal(shape, np.float32)
    w = Tensor(weights).realize()

    def their_turn() -> list[Any]:
        return _theirs(case.theirs, wanted, v, *theirs)

    v, device = torch.from_numpy(weights), Device[Device.DEFAULT]
    for got, want in zip(_ours(function, wanted, w, *ours), their_turn(), strict=True):
        expected = want.detach().numpy()
        most = 2e-4 * max(1.0, float(np.abs(expected).max(initial=0.0)))
        np.testing.assert_allclose(got.numpy(), expected, 1e-3, most, err_msg=case.what)
    graph = [x.contiguous()._node for x in _ours(function, wanted, w, *ours)]
    kernels = sum(each.seconds for each in time_kernels(graph))
    call = gpu.jit(lambda *xs: [x.realize() for x in _ours(function, wanted, w, *xs)])

    def our_turn() -> None:
        call(*ours)
        device.synchronize()

    turns = (their_turn, our_turn)
    for _ in range(4):  # a jit captures in the second
        for turn in turns:
            turn()
    seconds = [[_mean_seconds(turn, clock) for turn in turns] for _ in range(rounds)]
    whole, called = map(min, zip(*seconds, strict=True))
    return Times(family, case.what, whole, kernels, called)


def _mean_seconds(turn: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of a call among those of a sample, once threads and caches are warm."""
    time.sleep(REST)
    for _ in range(2):
        count, start = 0, clock()
        while not count or clock() - start < _LEAST:
            turn()
            count += 1
        seconds = (clock() - start) / count
    return seconds


def seed_of_commit() -> int:
    """The hash of the parent of HEAD, as a number: nobody chose it with what is measured."""
    command = ["git", "rev-parse", "HEAD^"]
    here = Path(__file__).parent
    return int(subprocess.run(command, cwd=here, check=True, capture_output=True).stdout[:15], 16)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each case, and what all come to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--count", type=int, default=100, help="cases together")
    parser.add_argument(
        "--seed", type=partial(int, base=0), help="what is drawn from; else the parent of HEAD"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each side")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--worst", type=int, default=8, help="cases to repeat at the end")
    parser.add_argument("--json", type=Path, help="a file for all times")
    given = parser.parse_args(arguments)
    torch.set_num_threads(config.CPU_THREADS or torch.get_num_threads())
    seed = seed_of_commit() if given.seed is None else given.seed
    print(f"seed {seed:#x}, {given.clock} clock, torch {torch.__version__}")
    found = []
    for number in range(given.count):
        family = given.families[number % len(given.families)]
        times = measure(family, draw(family, seed, number), CLOCKS[given.clock], given.rounds)
        found.append(times)
        print(_line(times), flush=True)
    kernels = geometric_mean(t.kernels / t.torch for t in found)
    calls = geometric_mean(t.call / t.torch for t in found)
    print(f"\nkernels {kernels:.2f} of torch's call, whole call {calls:.2f} (geometric means)")
    for title in ("kernels", "call"):
        worst = sorted(found, key=lambda t, by=title: -getattr(t, by) / t.torch)[: given.worst]
        print(f"worst by {title}:", *map(_line, worst), sep="\n")
    if given.json:
        given.json.write_text(json.dumps([t._asdict() for t in found]))


def _line(t: Times) -> str:
    share, whole = t.kernels / t.torch, t.call / t.torch
    return f"{t.torch * 1e6:11.1f} us {share:7.2f} {whole:7.2f}  {t.family:14} {t.what}"


if __name__ == "__main__":
    main(sys.argv[1:])

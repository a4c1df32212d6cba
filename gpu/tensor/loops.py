"""Loops in the graph, and their gradients.

The gradient of a loop is a loop that goes the other way: its carries are the gradients of the
carries, and of the constants so far, and its slices are what each step had, with the carries that
it began with. These the loop gives as results of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gpu.compiler.ir.derivative import has_gradient
from gpu.compiler.ir.graph import Node, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.body import Body, Parameter
from gpu.compiler.ir.graph.rewrite import substitute
from gpu.core.dtype import DType, accumulator

# Gradients of targets, from those of several results.
PullBack: TypeAlias = Callable[[Mapping[Node, Node], Sequence[Node]], Sequence[Node | None]]


@dataclass(frozen=True, slots=True)
class Given:
    """The handle of a value that a step is given, which is that of no other one."""

    number: int


class Bound(NamedTuple):
    """A parameter of a step, and what stands for it: the value, its first value or its slices."""

    parameter: Node
    operand: Node


_numbers = itertools.count()


def given(like: Node) -> Node:
    """A parameter of a step, for a value of this form."""
    return G.buffer(Given(next(_numbers)), like.shape, like.dtype, like.device)


def make_loop(
    constants: Sequence[Bound],
    carries: Sequence[Bound],
    slices: Sequence[Bound],
    results: Sequence[Node],
    length: int,
    reverse: bool,
) -> Node:
    """The loop of a step with these parameters, which gives `results`.

    It has no constants and slices that the step does not use.
    """
    own = {each.parameter for each in (*constants, *carries, *slices)}
    used = own.intersection(toposort(results, own.__contains__)) or own  # of none, a device tells
    constants = [each for each in constants if each.parameter in used]
    slices = [each for each in slices if each.parameter in used]
    bound = [*constants, *carries, *slices]
    parameters = [
        G.buffer(Parameter(number), p.shape, p.dtype, p.device)
        for number, (p, _) in enumerate(bound)
    ]
    new = dict(zip([each.parameter for each in bound], parameters, strict=True))
    body = Body(parameters, substitute(results, new), len(carries), len(slices))
    return G.loop(body, length, reverse, [each.operand for each in bound])


def loop_gradients(
    loop: Node, grads: Mapping[int, Node], needed: Sequence[bool], pull_back: PullBack
) -> list[Node | None]:
    """The gradients of the operands of a loop, for those of its results, by their numbers.

    `needed` says of which operands one is wanted.
    """
    body, length, reverse = loop.attr
    first, last = body.constants, body.constants + body.carries
    saved = len(body.results)
    moving = [i for i, each in enumerate(body.carried) if has_gradient(each.dtype)]
    sums = [i for i in range(first) if needed[i] and has_gradient(loop.src[i].dtype)]
    apart = [i for i in range(last, len(needed)) if needed[i] and has_gradient(loop.src[i].dtype)]
    # What a step has: its own parameters, and the gradients of what it gives.
    own = [Bound(p, x) for p, x in zip(body.parameters, loop.src, strict=True)]
    slices = [Bound(p, G.result(loop, saved + i)) for i, p in enumerate(body.carried)]
    slices += own[last:]
    changes = [
        Bound(given(body.carried[i]), grads.get(i) or _zero(body.carried[i])) for i in moving
    ]
    seeds: dict[Node, Node] = {}
    for i, change in zip(moving, changes, strict=True):
        _add(seeds, body.results[i], change.parameter)
    beside: dict[int, Node] = {}
    for number, grad in grads.items():
        if number >= body.carries:
            each = body.results[number] if number < saved else body.carried[number - saved]
            slices.append(Bound(given(each), grad))
            if number < saved:
                _add(seeds, each, slices[-1].parameter)
            else:
                beside[number - saved] = slices[-1].parameter
    targets = [body.carried[i] for i in moving]
    targets += [body.parameters[i] for i in (*sums, *apart)]
    parts = iter(pull_back(seeds, targets))
    results: list[Node] = []
    for i in moving:
        own_part = next(parts) or _zero(body.carried[i])
        results.append(G.alu("add", own_part, beside[i]) if i in beside else own_part)
    totals = []
    for i in sums:
        x = body.parameters[i]
        zero = _zero(x, wide := accumulator(x.dtype))
        totals.append(Bound(given(zero), zero))
        part = next(parts)
        total = totals[-1].parameter
        results.append(total if part is None else G.alu("add", total, G.cast(part, wide)))
    results += [part or _zero(body.parameters[i]) for i, part in zip(apart, parts, strict=True)]
    back = make_loop(own[:first], [*changes, *totals], slices, results, length, not reverse)
    found: list[Node | None] = [None] * len(needed)
    for number, i in enumerate([*(first + i for i in moving), *sums, *apart]):
        found[i] = G.cast(G.result(back, number), loop.src[i].dtype)
    return found


def _zero(like: Node, dtype: DType | None = None) -> Node:
    return G.const(0, like.shape, dtype or like.dtype, like.device)


def _add(seeds: dict[Node, Node], node: Node, grad: Node) -> None:
    seeds[node] = G.alu("add", seeds[node], grad) if node in seeds else grad

"""Matrix instructions in the interpreter of the linear IR: products, and tiles in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gpu.compiler.ir import matrix
from gpu.compiler.ir.evaluate import Array
from gpu.compiler.ir.linear import Inst
from gpu.compiler.ir.races import check_arrivals


class Memory(Protocol):
    """What a pointer points to."""

    @property
    def flat(self) -> Array:
        """The elements."""
        ...


class Machine(Protocol):
    """The state of a run; see `gpu/compiler/ir/linear/interp.py:Machine`."""

    points: int
    threads: int
    active: Array | None
    values: dict[Inst, Array]

    def pointed(self, pointer: Inst) -> Memory:
        """What a pointer points to."""
        ...

    def locate(
        self,
        inst: Inst,
        lanes: int,
        masks: tuple[Inst, ...],
        first: int = 0,
        offsets: Array | None = None,
    ) -> tuple[Array, Array]:
        """Positions in memory an access reaches, and which of them it does reach."""
        ...


def mma(machine: Machine, inst: Inst) -> Array:
    """Sums and the product of two matrices."""
    how = matrix.MATRICES[inst.attr[0]]
    if how.threads > 1:
        check_arrivals(machine.active, machine.threads, "mma")

    def held(args: Sequence[Inst], part: matrix.Part) -> Array:
        lanes = (machine.values[arg] for arg in args)
        all_lanes = [np.broadcast_to(v, (machine.points, v.shape[1])) for v in lanes]
        values = np.concatenate(all_lanes, axis=1).reshape(machine.points, -1, part.held)
        return matrix.by_warp(values, machine.threads, 1, how.threads)

    of_a, of_b = len(how.a), len(how.a) + len(how.b)
    operands = inst.args[:of_a], inst.args[of_a:of_b], inst.args[of_b:]
    a, b, c = map(held, operands, how.parts)
    total = matrix.multiply(how, a, b, c)
    after = matrix.by_point(total, machine.threads, 1, how.threads)
    return after.reshape(machine.points, inst.lanes)


def _places(machine: Machine, inst: Inst) -> tuple[Array, Array]:
    """Where the elements of a tile lie, and at which points it is reached."""
    offsets = matrix.tile_offsets(inst.attr[0], inst.args[0].dtype)
    places, reached = machine.locate(inst, len(offsets), (), offsets=offsets)
    shape = (machine.points, len(offsets))
    return np.broadcast_to(places, shape), np.broadcast_to(reached, shape)[:, 0]


def load_tile(machine: Machine, inst: Inst) -> Array:
    """A matrix of rows that lie apart."""
    places, reached = _places(machine, inst)
    flat = machine.pointed(inst.args[0]).flat
    result = np.zeros(places.shape, flat.dtype)
    result[reached] = flat[places[reached]]
    return result.view(inst.dtype.np)


def store_tile(machine: Machine, inst: Inst) -> None:
    """The reverse of `load_tile`."""
    places, reached = _places(machine, inst)
    flat, value = machine.pointed(inst.args[0]).flat, machine.values[inst.args[2]]
    rows = np.ascontiguousarray(np.broadcast_to(value, (machine.points, value.shape[1])))
    flat[places[reached]] = rows.view(flat.dtype)[reached]

"""``CHECK=nan``: which operation made the first NaN or infinity of a result, where, in which line.

Fused kernels keep no values of the operations in them. So what they read is kept until they have
run, and where a result is not finite its graph is computed once more by the interpreter, one
operation at a time. From the bad elements of the result the search goes back to the operations that
made them from good ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.compiler.ir.dims import bound
from gpu.compiler.ir.graph import Node, toposort, value_of
from gpu.core.errors import NonFinite
from gpu.runtime.buffer import Buffer
from gpu.runtime.origins import name_origins

_Array = npt.NDArray[Any]
_Values = dict[Node, _Array]
_KEEPS_PLACES: Final = ("alu", "barrier", "cast", "detach", "contiguous", "copy", "custom_grad")
"""Kinds whose element at a place is made of those at the same place."""


class Watched(NamedTuple):
    """What a computation reads, held while it runs, so that nothing of it is written in place.

    Attributes:
        leaves: the nodes in memory, with that.
    """

    leaves: dict[Node, Buffer]

    def check(self, results: Sequence[tuple[Node, Buffer]]) -> None:
        """Raises NonFinite for the first of `results` in which an operation made such a value.

        What was read, not computed, may be infinite or NaN.
        """
        for node, buffer in results:
            if node.dtype.is_whole:
                continue
            with np.errstate(all="ignore"):
                value = buffer.copy_out()[: node.size].reshape(bound(node.shape))
                bad = ~np.isfinite(value)
                if bad.any():
                    self._blame(node, value, bad)

    def _blame(self, root: Node, value: _Array, bad: _Array) -> None:
        values = self._interpreted(root)
        again = ~np.isfinite(values[root])
        if not again.any():  # what the device rounds, or sums in another order, decides
            raise _error(root, value, bad, values, f"the device {root.device} computed")
        if (found := _culprit(root, again, values)) is not None:
            node, made = found
            raise _error(node, values[node], made, values, "the operation gave")

    def _interpreted(self, root: Node) -> _Values:
        values: _Values = {}
        for node in toposort([root], self.leaves.__contains__):
            if (buffer := self.leaves.get(node)) is not None:
                values[node] = buffer.copy_out()[: node.size].reshape(bound(node.shape))
            else:
                values[node] = value_of(node, tuple(values[s] for s in node.src))
        return values


def _culprit(root: Node, bad: _Array, values: _Values) -> tuple[Node, _Array] | None:
    """A node that made a value that is not finite, on which the bad elements of `root` depend.

    With the places where it did; None where all of them come from what was read.
    """
    waiting, seen = [(root, bad)], {root}
    while waiting:
        node, bad = waiting.pop()
        if not node.src or node not in values:
            continue
        # A NaN of no NaN is made as well, as by inf - inf.
        made, without_nan = bad.copy(), bad & np.isnan(values[node])
        for source in node.src[0].src if node.kind == "result" else node.src:
            if source.dtype.is_whole:
                continue
            of = values[source]
            wrong = ~np.isfinite(of)
            made &= ~_reaching(node, wrong)
            without_nan &= ~_reaching(node, np.isnan(of))
            if node.kind in _KEEPS_PLACES:
                wrong &= bad
            if wrong.any() and source not in seen:
                seen.add(source)
                waiting.append((source, wrong))
        made |= without_nan
        if made.any():
            return node, made
    return None


def _reaching(node: Node, of_source: _Array) -> _Array | np.bool_:
    """Which elements of a node may depend on the elements of a source that `of_source` marks."""
    if node.kind in _KEEPS_PLACES:
        return of_source
    if node.kind == "reduce":
        return np.asarray(of_source.any(tuple(node.attr[1]), keepdims=True))
    return of_source.any()


def _error(node: Node, value: _Array, bad: _Array, values: _Values, who: str) -> NonFinite:
    place = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape))
    named = node.kind if node.kind not in ("alu", "reduce") else f"{node.attr[0]}"
    given = ""
    if node.kind in _KEEPS_PLACES:
        given = " of " + ", ".join(f"{values[source][place]}" for source in node.src)
    elif node.kind == "reduce":
        named = f"the reduction {named} over axes {list(node.attr[1])}"
    error = NonFinite(
        f"{named}{given}: {who} {value[place]} at {list(place)} of {node.dtype.name}"
        f" {list(value.shape)}; {int(bad.sum()):,} of {bad.size:,} elements are NaN or infinite"
    )
    name_origins(error, [node])
    return error

"""`Tensor.no_grad`: a block whose values no gradient flows back through, as in torch.

While the block runs nothing differs in what is built and compiled. Tensors that are made inside let
go of what they were computed from as soon as their values are in memory; those that are not
computed when the block ends are cut off there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from gpu.tensor.handle import Handle


class _Here(threading.local):
    """The tensors that were made in the block that this thread is in, if it is in one."""

    born: WeakValueDictionary[int, Handle] | None = None


_here: Final = _Here()


def unrecorded() -> WeakValueDictionary[int, Handle] | None:
    """The tensors made so far in this thread's block, by identity; None outside of one."""
    return _here.born


@contextmanager
def recorded() -> Iterator[None]:
    """What is computed inside keeps its gradients, though a block of `no_grad` may be around."""
    around, _here.born = _here.born, None
    try:
        yield
    finally:
        _here.born = around


class NoGrad(ContextDecorator):
    """``with Tensor.no_grad():``, or a decorator. Of nested blocks the outermost counts."""

    def __init__(self) -> None:
        self._is_outermost: list[bool] = []

    def __enter__(self) -> Self:
        self._is_outermost.append(_here.born is None)
        if _here.born is None:
            _here.born = WeakValueDictionary()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_outermost.pop() or _here.born is None:
            return
        born, _here.born = list(_here.born.values()), None
        for handle in born:
            handle._cut_off()

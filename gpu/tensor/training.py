"""Whether a model is being trained: a flag, and the context that sets it."""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType
from typing import Protocol


class HasTraining(Protocol):
    """A class with the flag."""

    training: bool


class TrainingMode(ContextDecorator):
    """``with Tensor.train():``, or a decorator; sets the flag and puts the old value back."""

    def __init__(self, owner: HasTraining, mode: bool):
        self._owner, self._mode = owner, mode
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(self._owner.training)
        self._owner.training = self._mode

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._owner.training = self._before.pop()

"""Objects that are what they are in one process alone, such as device memory."""

from __future__ import annotations

from typing import NoReturn, Self

from gpu.core.errors import InvalidType


class Unpicklable:
    """A base of classes whose objects must never be copied field by field.

    Copies of such an object are the object itself, as those of functions and modules are. A pickle
    would hold addresses that mean nothing, or something else, where it is loaded: making one raises
    InvalidType.
    """

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidType(
            f"{type(self).__name__}: what it is belongs to the process that made it and cannot be "
            "pickled; pickle a Tensor, the name of a device, or the int that a variable is bound to"
        )

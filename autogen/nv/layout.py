"""C structs from annotations: ``@layout`` turns annotated fields into ctypes fields.

Fields lie at their natural alignment, as the C compiler puts them on x86-64 and arm64.
"""

import ctypes
from typing import Annotated, TypeVar, get_origin, get_type_hints

u8 = Annotated[int, ctypes.c_uint8]
u16 = Annotated[int, ctypes.c_uint16]
u32 = Annotated[int, ctypes.c_uint32]
i32 = Annotated[int, ctypes.c_int32]
u64 = Annotated[int, ctypes.c_uint64]
Bytes = ctypes.Array[ctypes.c_uint8]
Words = ctypes.Array[ctypes.c_uint32]
Longs = ctypes.Array[ctypes.c_uint64]

S = TypeVar("S", bound=ctypes.Structure)


def layout(cls: type[S]) -> type[S]:
    """Gives a ctypes.Structure the fields that its annotations describe, in their order."""
    hints = get_type_hints(cls, include_extras=True)
    cls._fields_ = [
        (name, hint.__metadata__[0] if get_origin(hint) is Annotated else hint)
        for name, hint in hints.items()
        if not name.startswith("_")
    ]
    return cls


def offset_of(struct: type[ctypes.Structure], field: str) -> int:
    """Where a field starts, in bytes."""
    offset: int = getattr(struct, field).offset
    return offset

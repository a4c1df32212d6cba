"""Registers as values that read like the manual.

A register is a class whose fields name its bits::

    class RB_CNTL(Register):
        ENABLE = field(0, doc="fetch from the ring")
        SIZE = field(6, 1, doc="log2 of the ring's dwords")

    RB_CNTL(ENABLE=1, SIZE=9).value   # 0x13
    RB_CNTL.parse(0x13).SIZE          # 9

Overlapping fields, fields beyond the width and duplicate names are refused when the class is
defined, values that do not fit when they are set. The same classes serve packets and descriptors
of up to any width. What is at which address is a `gpu.core.regs.RegMap`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Generic, Literal, Self, TypeVar, overload

from gpu.core.bits import mask
from gpu.core.errors import InvalidIndex, InvalidValue

# What software may do with a field: read and write, only read, or clear bits by writing ones.
Access = Literal["rw", "ro", "w1c"]

ValueT = TypeVar("ValueT", bound=int)


class Field(Generic[ValueT]):
    """The bits ``hi:lo`` of a register; read from a register it gives the value of those bits.

    Made by `field`. ``access`` and ``doc`` are what the manual says; ``access`` also guides
    `RegMap.modify`. ``mask`` has ones where the bits are, ``largest`` is what just fits.
    """

    def __init__(
        self, hi: int, lo: int, enum: type[IntEnum] | None, access: Access, doc: str
    ) -> None:
        self.name = ""  # given by the class that the field is defined in
        self.hi = hi
        self.lo = lo
        self.enum = enum
        self._members = frozenset(member.value for member in enum or ())
        self.access = access
        self.doc = doc
        if not 0 <= lo <= hi:
            raise InvalidValue(f"bits {hi}:{lo} are no field: give hi >= lo >= 0")
        self.mask = mask(hi, lo)
        self.largest = mask(hi - lo)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, register: None, owner: type) -> Self: ...
    @overload
    def __get__(self, register: Register, owner: type) -> ValueT: ...
    def __get__(self, register: Register | None, owner: type) -> Self | int:
        if register is None:
            return self
        raw = self.extract(register.value)
        if self.enum is None:
            return raw
        try:
            return self.enum(raw)
        except ValueError:
            raise InvalidValue(
                f"{type(register).__name__}.{self.name} holds {raw:#x}, which {self._known()}; "
                f"register[{self.name!r}] gives the number"
            ) from None

    def extract(self, value: int) -> int:
        """The field's number in a register's value."""
        return (value & self.mask) >> self.lo

    def place(self, register: str, number: int) -> int:
        """The number shifted to the field's bits; `InvalidValue` when the field cannot hold it."""
        if not 0 <= number <= self.largest:
            raise InvalidValue(
                f"{register}.{self.name} = {number:#x} does not fit "
                f"{self.hi - self.lo + 1} bits ({self.hi}:{self.lo}): "
                f"give 0 to {self.largest:#x}"
            )
        if self.enum is not None and number not in self._members:
            raise InvalidValue(f"{register}.{self.name} = {number:#x}, which {self._known()}")
        return int(number) << self.lo

    def show(self, number: int) -> str:
        """The number in hexadecimal, or its name where it is enumerated."""
        if self.enum is not None and number in self._members:
            return self.enum(number).name
        return f"{number:#x}" if number > 9 else str(number)

    def _known(self) -> str:
        assert self.enum is not None
        known = ", ".join(f"{member.name} ({member.value:#x})" for member in self.enum)
        return f"is not one of {self.enum.__name__}: {known}"


EnumT = TypeVar("EnumT", bound=IntEnum)


@overload
def field(
    hi: int, lo: int | None = None, *, access: Access = "rw", doc: str = ""
) -> Field[int]: ...
@overload
def field(
    hi: int, lo: int | None = None, *, enum: type[EnumT], access: Access = "rw", doc: str = ""
) -> Field[EnumT]: ...
def field(
    hi: int,
    lo: int | None = None,
    *,
    enum: type[IntEnum] | None = None,
    access: Access = "rw",
    doc: str = "",
) -> Field[Any]:
    """The bits ``hi:lo`` (both included), or the one bit ``hi``, of the register defined around.

    With ``enum`` only its members are accepted, and given back.
    """
    return Field(hi, hi if lo is None else lo, enum, access, doc)


class _Body(dict[str, object]):
    """The namespace of a register's class, which does not let a field be redefined."""

    def __setitem__(self, name: str, value: object) -> None:
        if isinstance(self.get(name), Field):
            raise InvalidValue(
                f"{self.get('__qualname__')}.{name} is defined twice: rename one of the fields"
            )
        super().__setitem__(name, value)


class _RegisterType(type):
    """Checks the fields when a register's class is defined."""

    bits: int
    fields: Mapping[str, Field[Any]]

    @classmethod
    def __prepare__(cls, name: str, bases: tuple[type, ...], /, **kwargs: object) -> _Body:
        return _Body()

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, object], bits: int | None = None
    ) -> _RegisterType:
        body.setdefault("__slots__", ())
        made = super().__new__(cls, name, bases, dict(body))
        inherited = [base for base in bases if isinstance(base, _RegisterType)]
        fields = {name: f for base in inherited for name, f in base.fields.items()}
        fields |= {name: f for name, f in body.items() if isinstance(f, Field)}
        made.fields = MappingProxyType(fields)
        made.bits = bits or (inherited[0].bits if inherited else 32)
        _check_fields(made, inherited)
        return made


def _check_fields(register: _RegisterType, bases: Iterable[_RegisterType]) -> None:
    taken: dict[str, int] = {}
    for name, f in register.fields.items():
        where = f"{register.__name__}.{name} (bits {f.hi}:{f.lo})"
        if any(hasattr(base, name) and name not in base.fields for base in bases):
            raise InvalidValue(f"{where}: a method of registers has that name; rename the field")
        if f.hi >= register.bits:
            raise InvalidValue(
                f"{where} is outside the register: "
                f"give bits up to {register.bits - 1}, or the class its bits="
            )
        clash = next((other for other, ones in taken.items() if ones & f.mask), None)
        if clash is not None:
            raise InvalidValue(f"{where} overlaps {register.__name__}.{clash}")
        if f.enum is not None and not all(0 <= m.value <= f.largest for m in f.enum):
            raise InvalidValue(f"{where}: members of {f.enum.__name__} do not fit its bits")
        taken[name] = f.mask


class Register(metaclass=_RegisterType):
    """A value with named bits; immutable, equal to registers of its class with the same value.

    ``Register(FIELD=number, ...)`` starts from 0, `parse` from a number read: bits without a
    name keep their value through `replace`. A class may derive from another to add or redefine
    fields. ``bits=64`` in the class line makes it wider than 32.
    """

    __slots__ = ("value",)

    value: int

    def __init__(self, **fields: int) -> None:
        object.__setattr__(self, "value", self._merged(0, fields))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name}: registers are values; use replace()")

    @classmethod
    def parse(cls, value: int) -> Self:
        """The register with this value; `InvalidValue` when it is wider than the register."""
        if value < 0 or value >> cls.bits:
            raise InvalidValue(f"{cls.__name__} of {value:#x}: it has {cls.bits} bits")
        register = object.__new__(cls)
        object.__setattr__(register, "value", value)
        return register

    def replace(self, **fields: int) -> Self:
        """The register with some fields changed, and all other bits kept."""
        return self.parse(self._merged(self.value, fields))

    def __getitem__(self, name: str) -> int:
        """The number in a field, also where its enumeration lacks that number."""
        return self.field(name).extract(self.value)

    @classmethod
    def field(cls, name: str) -> Field[Any]:
        """A field by name; `InvalidIndex` lists the names there are."""
        if name not in cls.fields:
            known = ", ".join(cls.fields) or "none"
            raise InvalidIndex(f"{cls.__name__} has no field {name}; its fields are: {known}")
        return cls.fields[name]

    @classmethod
    def _merged(cls, value: int, fields: dict[str, int]) -> int:
        for name, number in fields.items():
            f = cls.fields.get(name) or cls.field(name)
            value = value & ~f.mask | f.place(cls.__name__, number)
        return value

    @classmethod
    def describe(cls) -> str:
        """The register as a text table: bits, access, name and meaning of each field.

        Enumerated fields are followed by their values.
        """
        width = max((len(name) for name in cls.fields), default=0)
        lines = [f"{cls.__name__} ({cls.bits} bits)"]
        for name, f in sorted(cls.fields.items(), key=lambda item: -item[1].hi):
            span = f"{f.hi}:{f.lo}" if f.hi != f.lo else str(f.hi)
            lines.append(f"  {span:>7}  {f.access:<3}  {name:<{width}}  {f.doc}".rstrip())
            lines += [f"{'':>{18 + width}}{m.value:#x} {m.name}" for m in f.enum or ()]
        return "\n".join(lines)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.value == self.value

    def __hash__(self) -> int:
        return hash((type(self), self.value))

    def __repr__(self) -> str:
        fields = type(self).fields
        shown = ", ".join(f"{name}={f.show(f.extract(self.value))}" for name, f in fields.items())
        unnamed = self.value & ~sum(f.mask for f in fields.values())
        rest = f"; unnamed bits {unnamed:#x}" if unnamed else ""
        return f"{type(self).__name__}({shown}{rest})"


def register_from_table(
    name: str, fields: Iterable[tuple[str, int, int]], bits: int = 32
) -> type[Register]:
    """The class of a generated table's register: each field is (name, lowest bit, width).

    Checked as a class written by hand is; fields are read by ``register["NAME"]`` where a type
    checker looks on.
    """
    body = _Body(__qualname__=name, __module__=__name__)
    for field_name, lo, width in fields:
        body[field_name] = Field(lo + width - 1, lo, None, "rw", "")
    made: type[Register] = _RegisterType(name, (Register,), body, bits=bits)  # type: ignore[assignment]
    return made

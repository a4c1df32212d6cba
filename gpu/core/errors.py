"""The exception tree. Every error this package raises on purpose is a :class:`GpuError`.

Errors caused by what the user wrote are also the built-in exception a Python programmer would
expect there (``ValueError``, ``TypeError``, ``IndexError``), so ``except ValueError`` keeps
working. A message names the thing, the value, what was expected and what to do.
"""

from __future__ import annotations


class GpuError(Exception):
    """Base of every error raised on purpose by this package."""


class InvalidValue(GpuError, ValueError):
    """A value the user passed cannot be used; the message names it and what is accepted."""


class ShapeError(InvalidValue):
    """Shapes do not fit together; the message shows each of them."""


class DTypeError(GpuError, TypeError):
    """A dtype is unknown, or the operation is not defined for it."""


class InvalidType(GpuError, TypeError):
    """An argument is of a Python type the function does not take."""


class InvalidIndex(GpuError, IndexError):
    """An index or axis is out of range; the message names the range."""


class DeviceError(GpuError, RuntimeError):
    """A device cannot be opened or used; the message carries the fix."""


class DeviceMismatch(InvalidValue):
    """Operands live on different devices."""


class ConfigError(InvalidValue):
    """An environment variable or a `Context` setting has a value that is not understood."""


class Unsupported(GpuError, NotImplementedError):
    """This machine, device or build cannot do what was asked; the message says what and why."""


class CompileError(GpuError, RuntimeError):
    """A kernel could not be compiled; carries the tool's own words."""


class VerifyError(GpuError, AssertionError):
    """An intermediate representation breaks its own rules: a bug in the compiler."""


class ParseError(InvalidValue):
    """Text of an intermediate representation, or of a file, that cannot be read."""


class FormatError(InvalidValue):
    """A file or object from outside is malformed; the message names the offset or field."""


class OutOfMemory(GpuError, MemoryError):
    """An allocation does not fit; the message names the size asked and what is available."""

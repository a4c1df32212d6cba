"""The exception tree. Every error this package raises on purpose is a :class:`GpuError`.

Errors caused by what the user wrote are also the built-in exception a Python programmer would
expect there (``ValueError``, ``TypeError``, ``IndexError``), so ``except ValueError`` keeps
working; and all of them are ``RuntimeError``, which torch raises for most. A message names the
thing, the value, what was expected and what to do.
"""

from __future__ import annotations

from typing import Any

from gpu.core.callsite import user_call_site


class GpuError(RuntimeError):
    """Base of every error raised on purpose by this package.

    Its text ends in the line of the user's code that led to it: ``(at train.py:41: y = x @ w)``.
    Copies and pickles have the same text and fields, so that an error can leave a worker process.

    Attributes:
        call_site: that line, None where an error comes from no call of the user's.
    """

    def __init__(self, *args: object):
        super().__init__(*args)
        self.call_site = user_call_site()

    @property
    def message(self) -> str:
        """The text without the line, to be put into other texts."""
        return super().__str__()

    def add(self, more: str) -> None:
        """Adds to the message what is known further out, such as why this was tried at all."""
        self.args = (f"{self.message}; {more}",)

    def __str__(self) -> str:
        message = self.message
        if self.call_site is None:
            return message
        gap = "\n" if "\n" in message else " "
        return f"{message}{gap}(at {self.call_site})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[GpuError], args: tuple[object, ...]) -> GpuError:
    """An error as it was when it was pickled: `__init__`, which takes other arguments, is not run.

    Raises InvalidType for a class that is no error of this package.
    """
    if not (isinstance(kind, type) and issubclass(kind, GpuError) and isinstance(args, tuple)):
        raise InvalidType(f"a pickled error is a GpuError and its args, got {kind!r}, {args!r}")
    builtin: Any = kind  # becomes the one that has the memory's layout: no other may make it
    while builtin.__module__ != "builtins":
        builtin = builtin.__base__
    error: GpuError = builtin.__new__(kind)
    error.args = args
    return error


class DeviceWarning(UserWarning):
    """A device is there and not used; the message says why, and what to do."""


class InvalidValue(GpuError, ValueError):
    """A value the user passed cannot be used; the message names it and what is accepted."""


class NumberOverflow(InvalidValue, OverflowError):
    """A number is too large for any tensor of the dtype that it would have."""


class ShapeError(InvalidValue):
    """Shapes do not fit together; the message shows each of them."""


class DTypeError(GpuError, TypeError):
    """A dtype is unknown, or the operation is not defined for it."""


class InvalidType(GpuError, TypeError):
    """An argument is of a Python type the function does not take."""


class InvalidIndex(GpuError, IndexError):
    """An index or axis is out of range; the message names the range."""


class DeviceError(GpuError):
    """A device cannot be opened or used; the message carries the fix."""


class DeviceMismatch(InvalidValue):
    """Operands live on different devices."""


class ConfigError(InvalidValue):
    """An environment variable or a `Context` setting has a value that is not understood."""


class Unsupported(GpuError, NotImplementedError):
    """This machine, device or build cannot do what was asked; the message says what and why."""


class CompileError(GpuError):
    """A kernel could not be compiled; carries the tool's own words."""


class VerifyError(GpuError, AssertionError):
    """An intermediate representation breaks its own rules: a bug in the compiler."""


class IllegalOpt(InvalidValue):
    """A loop transformation that does not apply; names it, the loop and the rule it breaks."""


class ParseError(InvalidValue):
    """Text of an intermediate representation, or of a file, that cannot be read."""


class FormatError(InvalidValue):
    """A file or object from outside is malformed; the message names the offset or field."""


class OutOfMemory(GpuError, MemoryError):
    """An allocation does not fit; the message names the size asked and what is available."""


class NonFinite(GpuError, FloatingPointError):
    """An operation made a NaN or an infinity; names it, the place and the line (``CHECK=nan``)."""


class MemoryLeak(GpuError, AssertionError):
    """Tensors' memory is still in use that should not be; the message has its lines."""


class AccessDenied(DeviceError):
    """A device node or file may not be opened; the message carries the command that fixes it."""

    def __init__(self, path: str, hint: str):
        super().__init__(f"access to {path} was denied: {hint}")
        self.path = path
        self.hint = hint


class TransportError(DeviceError):
    """The way to a device failed: an ioctl, a mapping, a bus or a socket.

    ``errno`` is the operating system's number where there is one, else None.
    """

    def __init__(self, message: str, errno: int | None = None):
        super().__init__(message)
        self.errno = errno


class HwTimeout(DeviceError, TimeoutError):
    """Hardware did not reach a state in time; tells what, the last value and the wanted one.

    ``reason`` is why it cannot, where that is known: models know it.
    """

    def __init__(self, what: str, last: int | None, wanted: str, seconds: float, reason: str = ""):
        seen = "nothing was read" if last is None else f"the last value was {last:#x}"
        told = f"{what}: {seen}, wanted {wanted}, after {seconds:g} s"
        super().__init__("; ".join(filter(None, (told, reason))))
        self.reason = reason
        self.what = what
        self.last = last
        self.wanted = wanted
        self.seconds = seconds


class FirmwareError(DeviceError):
    """A firmware file or image cannot be used, or firmware answered with a failure."""


class RmError(DeviceError):
    """NVIDIA's resource manager answered with a status other than OK.

    ``status`` is the number and ``name`` its NV_ERR_* spelling ("unknown" when it has none here).
    """

    def __init__(self, message: str, status: int, name: str):
        super().__init__(f"{message}: status {status:#x} ({name})")
        self.status = status
        self.name = name


class GpuFault(DeviceError):
    """A kernel or queue touched what it may not; carries what the hardware told.

    ``address`` is the faulting GPU virtual address, None where the hardware does not tell.
    """

    def __init__(self, message: str, address: int | None = None):
        super().__init__(message)
        self.address = address


class DeviceHang(HwTimeout):
    """A queue made no progress within its bound."""


class DeviceLost(DeviceError):
    """The device cannot be used again in this process; the message says why and what goes on."""


class DistributedError(GpuError):
    """The processes of a program cannot work together; the message says which, and the fix."""


class CollectiveMismatch(DistributedError):
    """Ranks called different things where all have to call the same; names each one's line."""


class PeerLost(DistributedError):
    """A rank takes no part any more: it died, hangs, has ended or raised an exception.

    Attributes:
        rank: its number.
        host: the name of its host.
        step: how many calls that rank or this one, which found out, had begun; 0 if not known.
        collective: the method that did not come to an end, as ``all_reduce``; "" if none.
    """

    def __init__(self, message: str, rank: int, host: str, step: int, collective: str):
        super().__init__(message)
        self.rank, self.host, self.step, self.collective = rank, host, step, collective


class PeerFault(PeerLost, GpuFault):
    """A rank ended with a GpuFault of its GPU; it is one on all others too.

    Attributes:
        address: that the GPU of that rank faulted at, None where it does not tell.
    """

    def __init__(
        self,
        message: str,
        rank: int,
        host: str,
        step: int,
        collective: str,
        address: int | None = None,
    ):
        super().__init__(message, rank, host, step, collective)
        self.address = address

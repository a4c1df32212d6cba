"""Objective-C by the pointers of its runtime's functions: messages, ownership, pools, texts.

A message is a call of `objc_msgSend` with the receiver, the selector and the arguments, as if it
had the types of the method ("Objective-C Runtime Programming Guide", Apple). So each method has a
function of its own types here, under the name of its selector with ``_`` for ``:``. Objects,
classes, selectors and pointers are integers, and nil is 0.

Who made an object by a method whose name begins with new, alloc or copy owns it; all others are
given back when the pool is drained in which they were got ("Advanced Memory Management Programming
Guide", Apple). What is owned is a `Handle`.

An exception of Objective-C's cannot be caught without code that its compiler made: it would unwind
through C, and ends the process. It means a message that must not be sent. That a method answers is
asked before each is sent for the first time; of what is left `ObjC` has the runtime tell in the log
before the end, with where Python was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from gpu.autogen.metal import METHODS
from gpu.backends.cpu.native import native_function
from gpu.core.errors import DeviceError
from gpu.core.log import get_logger

log = get_logger(__name__)

Message = Callable[..., Any]
FUNCTIONS: Final = {
    "objc_getClass": "uintptr_t(*)(char const *)",
    "sel_registerName": "uintptr_t(*)(char const *)",
    "objc_autoreleasePoolPush": "uintptr_t(*)()",
    "objc_autoreleasePoolPop": "void(*)(uintptr_t)",
    "objc_retain": "uintptr_t(*)(uintptr_t)",
    "objc_release": "void(*)(uintptr_t)",
    "objc_setUncaughtExceptionHandler": "uintptr_t(*)(uintptr_t)",
    "object_getClass": "uintptr_t(*)(uintptr_t)",
    "objc_getClassList": "int(*)(uintptr_t, int)",
    "class_respondsToSelector": "_Bool(*)(uintptr_t, uintptr_t)",
    "malloc_size": "uint64_t(*)(uintptr_t)",
    "MTLCreateSystemDefaultDevice": "uintptr_t(*)()",
    "MTLCopyAllDevices": "uintptr_t(*)()",
}
"""The functions that are used, with their types: those of objc/runtime.h, objc-internal.h,
objc-exception.h, malloc/malloc.h, the ABI of automatic reference counting (clang's documentation)
and MTLDevice.h.
"""

# Methods that metal-cpp does not have: NSString.h, NSException.h.
_METHODS: Final = METHODS | {
    "stringWithUTF8String:": ("void *", ("char const *",)),
    "reason": ("void *", ()),
}
# A structure of two such words is passed as the words are, in registers (System V ABI for x86-64,
# 3.2.3; Procedure Call Standard for the Arm 64-bit Architecture, 6.8.2).
_C_TYPES: Final = {
    "NSInteger": "int64_t",
    "NSUInteger": "uint64_t",
    "NSRange": "uint64_t, uint64_t",
    "bool": "_Bool",
    "void *": "uintptr_t",
}
_ANSWERS: Final = "respondsToSelector:"
_RESULTS: Final = {"char const *": "uintptr_t"}


class MTLSize(ctypes.Structure):
    """Numbers along x, y and z (MTLTypes.h)."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("width", "height", "depth"))


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class ObjC:
    """The runtime of Objective-C, with the functions of Metal's that begin everything.

    `FUNCTIONS` and messages are attributes: ``objc.newBufferWithLength_options_(device, 64, 0)``.

    Attributes:
        is_lost: whether nothing is to be called any more, as in a forked child.
    """

    def __init__(self, address: Callable[[str], int]):
        """`address` gives that of a function. Raises what that does."""
        self.is_lost = False
        for name, signature in FUNCTIONS.items():
            setattr(self, name, native_function(address(name), signature))
        send = address("objc_msgSend")
        for selector, (result, taken) in _METHODS.items():
            number = self.sel_registerName(selector.encode())
            message = message_of(send, number, result, taken)
            if selector != _ANSWERS:
                message = self._asked(selector, message)
            setattr(self, _attribute(selector), message)
        self._handler = _Handler(self._tell_exception)
        pointer = ctypes.cast(self._handler, ctypes.c_void_p).value
        self.objc_setUncaughtExceptionHandler(pointer)

    def __getattr__(self, name: str) -> Any:
        # For type checkers: all that exist were set above.
        raise AttributeError(name)

    def _asked(self, selector: str, message: Message) -> Message:
        """A message whose first receiver is asked whether it has the method.

        One answer does for all: few methods are of several protocols, and those are as old as the
        protocols are. The message raises DeviceError where there is no method.
        """

        def first(receiver: int, *values: Any) -> Any:
            if receiver:  # nil answers everything
                if not self.has_method(receiver, selector):
                    raise DeviceError(
                        f"Metal of this system has no method {selector}: update macOS, to 13 or"
                        " later, or compute on CPU"
                    )
                setattr(self, _attribute(selector), message)
            return message(receiver, *values)

        return first

    def pool(self) -> Pool:
        """A block at whose end goes what was got in it and is not owned."""
        return Pool(self)

    def has_method(self, receiver: int, selector: str) -> bool:
        """Whether an object answers a message, as those of newer systems do."""
        number = self.sel_registerName(selector.encode())
        return bool(self.respondsToSelector_(receiver, number))

    def new(self, kind: str) -> Handle:
        """A new object of a class."""
        return Handle(self, self.init(self.alloc(self.objc_getClass(kind.encode()))))

    def string(self, text: str) -> int:
        """An NSString, which goes with its pool."""
        made: int = self.stringWithUTF8String_(self.objc_getClass(b"NSString"), text.encode())
        return made

    def text(self, string: int) -> str:
        """What an NSString says; nothing for nil."""
        address = self.UTF8String(string) if string else 0
        return ctypes.string_at(address).decode(errors="replace") if address else ""

    def _tell_exception(self, exception: int) -> None:
        name, reason = self.text(self.name(exception)), self.text(self.reason(exception))
        told = "an exception of Objective-C's ends this process: %s: %s"
        log.critical(told, name, reason, stack_info=True)


class Handle:
    """An object that is owned, and let go with this.

    Attributes:
        id: of the object, not nil.
    """

    __slots__ = ("__weakref__", "_objc", "id")

    def __init__(self, objc: ObjC, owned: int):
        self._objc, self.id = objc, owned

    def __del__(self) -> None:
        if not self._objc.is_lost:
            self._objc.objc_release(self.id)


class Pool:
    """A pool of objects that go at its end; see `ObjC.pool`."""

    __slots__ = ("_objc", "_token")

    def __init__(self, objc: ObjC):
        self._objc = objc

    def __enter__(self) -> None:
        self._token = self._objc.objc_autoreleasePoolPush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._objc.objc_autoreleasePoolPop(self._token)


class ErrorPlace:
    """Where a method writes an NSError.

    Attributes:
        address: of the place.
    """

    def __init__(self) -> None:
        self._written = ctypes.c_void_p()
        self.address = ctypes.addressof(self._written)

    @property
    def error(self) -> int:
        """The NSError, nil where none was written."""
        return self._written.value or 0


def _attribute(selector: str) -> str:
    return selector.replace(":", "_")


def message_of(send: int, selector: int, result: str, taken: tuple[str, ...]) -> Message:
    """A function that takes a receiver and arguments of these types."""
    if "MTLSize" in taken:
        # Larger structures are passed in each ABI's own way, which ctypes knows; here nothing but.
        assert result == "void" and {*taken} == {"MTLSize"}
        words = [ctypes.c_void_p] * 2
        call: Message = ctypes.CFUNCTYPE(None, *words, *[MTLSize] * len(taken))(send)
    else:
        arguments = ["uintptr_t", "uintptr_t", *(_C_TYPES.get(each, each) for each in taken)]
        given = _RESULTS.get(result, _C_TYPES.get(result, result))
        call = native_function(send, f"{given}(*)({', '.join(arguments)})")

    def message(receiver: int, *values: Any) -> Any:
        return call(receiver, selector, *values)

    return message

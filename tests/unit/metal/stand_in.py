"""A runtime of Objective-C with what a test says, of C functions that call Python's.

Arguments are integers that registers hold; what a method gives is one, too.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

from gpu.backends.metal.objc import ObjC

_WORD = ctypes.c_uint64
_SEND = ctypes.CFUNCTYPE(_WORD, *[_WORD] * 6)
_OTHERS = {
    "objc_getClass": ctypes.CFUNCTYPE(_WORD, ctypes.c_char_p),
    "sel_registerName": ctypes.CFUNCTYPE(_WORD, ctypes.c_char_p),
    "objc_autoreleasePoolPush": ctypes.CFUNCTYPE(_WORD),
    "objc_autoreleasePoolPop": ctypes.CFUNCTYPE(None, _WORD),
    "objc_retain": ctypes.CFUNCTYPE(_WORD, _WORD),
    "objc_release": ctypes.CFUNCTYPE(None, _WORD),
    "objc_setUncaughtExceptionHandler": ctypes.CFUNCTYPE(_WORD, ctypes.c_void_p),
    "object_getClass": ctypes.CFUNCTYPE(_WORD, _WORD),
    "objc_getClassList": ctypes.CFUNCTYPE(ctypes.c_int, _WORD, ctypes.c_int),
    "class_respondsToSelector": ctypes.CFUNCTYPE(ctypes.c_bool, _WORD, _WORD),
    "malloc_size": ctypes.CFUNCTYPE(_WORD, _WORD),
    "MTLCreateSystemDefaultDevice": ctypes.CFUNCTYPE(_WORD),
    "MTLCopyAllDevices": ctypes.CFUNCTYPE(_WORD),
}


class StandIn:
    """Messages go to `answers`, by selector; all else is counted.

    Attributes:
        answers: what a selector does, given the receiver and what registers hold.
        lacks: those of them that objects say they have not.
        held: how often objects were retained, less released.
        pools: those that are open.
        objc: the backend's runtime on this.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Callable[..., int]] = {"respondsToSelector:": self._responds}
        self.lacks: set[str] = set()
        self.held: Counter[int] = Counter()
        self.pools: list[int] = []
        self.devices: list[int] = []
        self._texts: dict[int, Any] = {}
        self._names: list[str] = []
        self._kept: dict[str, Any] = {"objc_msgSend": _SEND(self._send)}
        for name, kind in _OTHERS.items():
            self._kept[name] = kind(getattr(self, f"_{name}"))
        self.objc = ObjC(self.address)

    def address(self, name: str) -> int:
        return ctypes.cast(self._kept[name], ctypes.c_void_p).value or 0

    def string(self, text: str) -> int:
        """An NSString: the address of its text."""
        held = ctypes.create_string_buffer(text.encode())
        self._texts[ctypes.addressof(held)] = held
        return ctypes.addressof(held)

    def throw(self, exception: int) -> None:
        """What the runtime does where nobody catches an exception, but for ending the process."""
        ctypes.CFUNCTYPE(None, _WORD)(self._handler)(exception)

    def error(self, domain: str, code: int, told: str) -> int:
        """An NSError; of all there is one."""
        self.answers["domain"] = lambda *_: self.string(domain)
        self.answers["code"] = lambda *_: code
        self.answers["localizedDescription"] = lambda *_: self.string(told)
        self.answers["UTF8String"] = lambda text, *_: text
        return 77

    def _responds(self, receiver: int, selector: int, *_: int) -> bool:
        name = self._names[selector - 1]
        return name in self.answers and name not in self.lacks

    def _send(self, receiver: int, selector: int, *registers: int) -> int:
        return self.answers[self._names[selector - 1]](receiver, *registers)

    def _objc_getClass(self, name: bytes) -> int:
        return 1000 + len(name)

    def _sel_registerName(self, name: bytes) -> int:
        if name.decode() not in self._names:
            self._names.append(name.decode())
        return self._names.index(name.decode()) + 1

    def _objc_autoreleasePoolPush(self) -> int:
        self.pools.append(len(self.pools) + 1)
        return self.pools[-1]

    def _objc_autoreleasePoolPop(self, token: int) -> None:
        assert self.pools.pop() == token

    def _objc_retain(self, owned: int) -> int:
        self.held[owned] += 1
        return owned

    def _objc_release(self, owned: int) -> None:
        self.held[owned] -= 1

    def _objc_setUncaughtExceptionHandler(self, handler: int) -> int:
        self._handler = handler
        return 0

    def _object_getClass(self, thing: int) -> int:
        return 1000

    def _objc_getClassList(self, places: int, count: int) -> int:
        return 0

    def _class_respondsToSelector(self, kind: int, selector: int) -> bool:
        return False

    def _malloc_size(self, begin: int) -> int:
        return 0

    def _MTLCreateSystemDefaultDevice(self) -> int:
        return self.devices[0] if self.devices else 0

    def _MTLCopyAllDevices(self) -> int:
        return 500

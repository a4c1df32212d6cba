"""The Objective-C runtime: classes, selectors, messages, counts of references, autorelease pools.

"Objective-C Runtime" and "Advanced Memory Management Programming Guide" (Apple). Objects lie in
memory of the model's own and begin with the address of their class; what else they are is an object
of Python. Memory of one that has ended keeps the address of a class that answers nothing, and so
its use is noticed.
"""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self, TypeVar

from gpu.core import hostmem
from gpu.core.log import get_logger
from gpu.sim.metal.methods import TYPES, Method, Misuse, method, methods_of
from gpu.sim.metal.sending import METHODS, Sender
from gpu.sim.record import DebugChannel
from gpu.sim.undisturbed import Whole

_log = get_logger(__name__)
_OBJECTS: Final = 256 << 20  # bytes of addresses for objects
_OBJECT: Final = 32  # bytes of one
_SELECTORS: Final = 2048
_CLASS: Final = METHODS + 8 * _SELECTORS
_CLASS_METHOD: Final = "objc_class_method"
_KEPT_ENDED: Final = 1 << 16  # objects whose memory is not given out again, so far
_Body = TypeVar("_Body", bound=Callable[..., Any])


class NSObject:
    """The root of all classes.

    Attributes:
        runtime: what it is made in.
        address: what programs know it by.
        references: how often it was retained and not released.
    """

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.references = 0
        self.address = runtime.place(self)

    @classmethod
    def objc_name(cls, prefix: str) -> str:
        """What the class is called; `prefix` is that of classes which a GPU's driver has."""
        del prefix
        return cls.__name__

    @property
    def told(self) -> str:
        """What it is, for messages."""
        return f"{self.runtime.name_of(type(self))} at {self.address:#x}"

    def ending(self) -> None:
        """Its last reference went: it gives back what it holds."""

    @method("retain", "@")
    def retained(self) -> Self:
        """One more reference."""
        self.runtime.retain(self)
        return self

    @method("release")
    def released(self) -> None:
        """One reference less."""
        self.runtime.release(self)

    @method("autorelease", "@")
    def autoreleased(self) -> Self:
        """One reference less when the pool is drained."""
        self.runtime.autorelease(self)
        return self

    @method("retainCount", "Q")
    def count(self) -> int:
        """How many references there are."""
        return self.references

    @method("init", "@")
    def initialised(self) -> Self:
        """Itself, ready."""
        return self

    @method("respondsToSelector:", "B", "^")
    def responds(self, selector: int) -> bool:
        """Whether it has a method."""
        return self.runtime.selector_name(selector) in methods_of(type(self))


class Class(NSObject):
    """A class, as the object that it is."""

    def __init__(self, runtime: Runtime, python_class: type[NSObject], name: str):
        self.python_class = python_class
        self.name = name
        super().__init__(runtime)

    @method("respondsToSelector:", "B", "^")
    def responds(self, selector: int) -> bool:
        """Whether messages to the class itself find a method."""
        own = {each.selector for each in _class_methods(self.python_class)}
        return super().responds(selector) or self.runtime.selector_name(selector) in own


def class_method(selector: str, result: str, *arguments: str) -> Callable[[_Body], _Body]:
    """A method that messages to a class find; its function takes that `Class` first."""

    def mark(body: _Body) -> _Body:
        assert selector.count(":") == len(arguments), selector
        setattr(body, _CLASS_METHOD, Method(selector, result, arguments, body))
        return body

    return mark


class Made(NSObject):
    """What programs make by themselves, with `alloc` and `init`, or `new`."""

    @staticmethod
    @class_method("alloc", "@")
    def alloc(of: Class) -> NSObject:
        """A new object."""
        return of.python_class(of.runtime)

    @staticmethod
    @class_method("new", "@")
    def new(of: Class) -> NSObject:
        """A new object, ready."""
        return of.python_class(of.runtime)


class Pool:
    """An autorelease pool of a thread."""

    def __init__(self, token: int):
        self.token = token
        self.objects: list[NSObject] = []


class _Thread(threading.local):
    def __init__(self) -> None:
        self.pools: list[Pool] = []


class Runtime:
    """All classes and objects of one process.

    Attributes:
        debug: where what was noticed goes.
        functions: of the C interface, name -> address.
        handler: what is called with an exception that nobody catches, 0 where nothing is.
    """

    def __init__(self, debug: DebugChannel, prefix: str, classes: Sequence[type[NSObject]]):
        self.debug = debug
        self.lock = threading.RLock()
        self.functions: dict[str, int] = {}
        self.handler = 0
        self.raising: Callable[[str, str], NSObject] | None = None
        self._prefix = prefix
        self._whole = Whole(__name__)
        self._thread = _Thread()
        self._tokens = 0
        self._kept: list[Any] = []
        self._texts: dict[str, Any] = {}
        self._selectors: dict[str, int] = {}
        self._selector_names: list[str] = []
        self._selector_base = hostmem.reserve(8 * _SELECTORS)
        self._base = hostmem.map_anonymous(_OBJECTS, sparse=True)
        self._next = self._base
        self._objects: dict[int, NSObject] = {}
        self._ended: dict[int, str] = {}
        self._free: deque[int] = deque()
        self._unknown, self._gone, *answers = [
            self._callback("@", (), self._guarded("objc_msgSend", "@", each))
            for each in (
                *(self._unrecognised, self._sent_to_ended, self._no_object, self._no_selector),
            )
        ]
        tables = [self._base, _OBJECTS, self._selector_base, 8 * _SELECTORS]
        self._sender = Sender([*tables, *answers])
        self._isa: dict[type[NSObject], int] = {}
        self._classes: dict[str, int] = {}
        self._meta = self._new_class(self._unknown)
        self._dead = self._new_class(self._gone)
        for each in classes:
            self._define(each)
        self._export()

    # Classes and selectors.

    def name_of(self, python_class: type[NSObject]) -> str:
        """What a class is called."""
        return python_class.objc_name(self._prefix)

    def class_at(self, name: str) -> int:
        """The address of a class that programs may name, 0 where there is none."""
        return self._classes.get(name, 0)

    def selector(self, name: str) -> int:
        """What stands for the name of a method."""
        found = self._selectors.get(name)
        if found is None:
            assert len(self._selector_names) < _SELECTORS, "too many selectors"
            found = self._selector_base + 8 * len(self._selector_names)
            self._selectors[name] = found
            self._selector_names.append(name)
        return found

    def selector_name(self, selector: int) -> str:
        """The name that a selector stands for. Raises Misuse for what is none."""
        index, odd = divmod(selector - self._selector_base, 8)
        if odd or not 0 <= index < len(self._selector_names):
            raise Misuse("no-selector", f"{selector:#x} is no selector; register the name first")
        return self._selector_names[index]

    def _new_class(self, answer: int) -> int:
        address = self._next
        self._next += _CLASS
        pointers = (ctypes.c_uint64 * _SELECTORS).from_address(address + METHODS)
        pointers[:] = [answer] * _SELECTORS
        return address

    def _define(self, python_class: type[NSObject]) -> None:
        name = python_class.objc_name(self._prefix)
        address, meta = self._new_class(self._unknown), self._new_class(self._unknown)
        ctypes.c_uint64.from_address(address).value = meta
        ctypes.c_uint64.from_address(meta).value = self._meta
        self._isa[python_class] = address
        self._classes[name] = address
        told = Class.__new__(Class)
        told.runtime, told.references, told.address = self, 1, address
        told.python_class, told.name = python_class, name
        self._objects[address] = told
        for each in methods_of(python_class).values():
            self._add(address, each)
        for each in [*methods_of(Class).values(), *_class_methods(python_class)]:
            self._add(meta, each)

    def _add(self, address: int, each: Method) -> None:
        offset = self.selector(each.selector) - self._selector_base
        code = self._callback(each.result, each.arguments, self._answer(each))
        ctypes.c_uint64.from_address(address + METHODS + offset).value = code

    def _callback(
        self, result: str, arguments: Sequence[str], body: Callable[..., Any], hidden: int = 2
    ) -> int:
        types = [TYPES.get(each, ctypes.c_size_t) for each in arguments]
        prototype = ctypes.CFUNCTYPE(TYPES[result], *[ctypes.c_size_t] * hidden, *types)
        function = prototype(body)
        self._kept.append(function)
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return address

    # Objects.

    def place(self, thing: NSObject) -> int:
        """Memory for a new object."""
        with self.lock:
            if len(self._free) > _KEPT_ENDED:
                address = self._free.popleft()
                del self._ended[address]
            else:
                address = self._next
                self._next += _OBJECT
                assert self._next < self._base + _OBJECTS, "no addresses are left for objects"
            ctypes.c_uint64.from_address(address).value = self._isa[type(thing)]
            self._objects[address] = thing
            return address

    def objects(self) -> Iterator[NSObject]:
        """All that are alive, but for classes."""
        return (each for each in self._objects.values() if not isinstance(each, Class))

    def find(self, address: int) -> NSObject:
        """The object at an address. Raises Misuse for one that has ended, or what is none."""
        found = self._objects.get(address)
        if found is not None:
            return found
        if address in self._ended:
            raise Misuse("use-after-free", f"{self._ended[address]} at {address:#x} has ended")
        raise Misuse("no-object", f"{address:#x} is no object")

    def size_of(self, address: int) -> int:
        """Bytes of the memory that begins there, as malloc_size tells them: 0 for what is none."""
        found = self._objects.get(address)
        return _OBJECT if found is not None and not isinstance(found, Class) else 0

    def retain(self, thing: NSObject) -> None:
        """One more reference."""
        if not isinstance(thing, Class):
            thing.references += 1

    def release(self, thing: NSObject) -> None:
        """One reference less; the object ends with the last."""
        if isinstance(thing, Class):
            return
        thing.references -= 1
        if thing.references <= 0:
            name = self.name_of(type(thing))
            thing.ending()
            del self._objects[thing.address]
            self._ended[thing.address] = name
            self._free.append(thing.address)
            ctypes.c_uint64.from_address(thing.address).value = self._dead

    def autorelease(self, thing: NSObject) -> None:
        """One reference less when the innermost pool of the thread is drained."""
        if isinstance(thing, Class):
            return
        if not self._thread.pools:
            self.debug.violation(
                f"no-pool: {thing.told} is autoreleased in a thread without a pool: it leaks"
            )
            return
        self._thread.pools[-1].objects.append(thing)

    @property
    def open_pools(self) -> int:
        """Pools of this thread that were not popped."""
        return len(self._thread.pools)

    def push(self) -> int:
        """A new pool; gives what it is popped by."""
        self._tokens += 1
        pool = Pool(0x1000 * self._tokens)
        self._thread.pools.append(pool)
        return pool.token

    def pop(self, token: int) -> None:
        """Drains a pool, and those within it. Raises Misuse for one that is not of this thread."""
        pools = self._thread.pools
        if all(pool.token != token for pool in pools):
            raise Misuse("pool-order", f"pool {token:#x} is not one that this thread has pushed")
        while pools:
            pool = pools.pop()
            for thing in pool.objects:
                if self._objects.get(thing.address) is thing:
                    self.release(thing)
                else:
                    self.debug.violation(
                        f"over-release: {self.name_of(type(thing))} at {thing.address:#x} had"
                        " ended before its pool was drained"
                    )
            if pool.token == token:
                return

    # Calls.

    def _answer(self, each: Method) -> Callable[..., Any]:
        """What runs when a message comes."""

        def answer(address: int, _: int, *arguments: Any) -> Any:
            receiver = self.find(address)
            given = [self._argument(*pair) for pair in zip(each.arguments, arguments, strict=True)]
            return self._result(each, each.body(receiver, *given))

        return self._guarded(each.selector, each.result, answer)

    def _guarded(self, name: str, result: str, body: Callable[..., Any]) -> Callable[..., Any]:
        """A call from outside: whole, and without exceptions of Python."""
        nothing = None if result == "v" else TYPES[result]().value

        def call(*arguments: Any) -> Any:
            try:
                with self.lock, self._whole:
                    try:
                        return body(*arguments)
                    except Misuse as error:
                        self.debug.violation(f"{error.rule}: {name}: {error}")
                        _log.debug("%s: %s", name, error)
                    except Exception:
                        text = f"model-failed: {name}: {traceback.format_exc()}"
                        self.debug.violation(text)
                        _log.exception("%s: the model itself failed", name)
            except BaseException:  # of a handler of SIGINT, between the last steps of a call
                self._whole.send()
            return nothing

        return call

    def _argument(self, wanted: str, value: Any) -> Any:
        """What a body is given for an argument. Raises Misuse for an object of a wrong class."""
        if wanted in TYPES and wanted != "@":
            return value
        if not value:
            if wanted == "@" or wanted.endswith("?"):
                return None
            raise Misuse("nil-argument", f"nil where an object of {wanted} is expected")
        found = self.find(value)
        name = wanted.removesuffix("?")
        if wanted != "@" and all(base.__name__ != name for base in type(found).__mro__):
            raise Misuse("wrong-class", f"{found.told} where an object of {name} is expected")
        return found

    def _result(self, each: Method, value: Any) -> Any:
        """What a message gives: of an object its address, with a reference or in the pool."""
        if not isinstance(value, NSObject):
            return 0 if value is None and each.result != "v" else value
        if each.selector in ("retain", "autorelease", "init"):
            return value.address
        self.retain(value)
        if not each.gives_ownership:
            self.autorelease(value)
        return value.address

    def give(self, place: int, thing: NSObject) -> None:
        """Writes an autoreleased object where a caller wants it; nowhere for NULL."""
        if place:
            self.retain(thing)
            self.autorelease(thing)
            ctypes.c_uint64.from_address(place).value = thing.address
        elif not thing.references:  # nobody has seen it
            self.retain(thing)
            self.release(thing)

    def text(self, text: str) -> int:
        """The address of text of C, which stays."""
        if text not in self._texts:
            self._texts[text] = ctypes.create_string_buffer(text.encode())
        return ctypes.addressof(self._texts[text])

    def throw(self, rule: str, reason: str) -> int:
        """An exception that nobody catches. A Mac ends the process; here the message gives 0."""
        self.debug.violation(f"{rule}: NSInvalidArgumentException: {reason}")
        if self.handler and self.raising is not None:
            thrown = self.raising("NSInvalidArgumentException", reason)
            self.retain(thrown)
            ctypes.CFUNCTYPE(None, ctypes.c_size_t)(self.handler)(thrown.address)
            self.release(thrown)
        return 0

    def _unrecognised(self, address: int, selector: int) -> int:
        found, name = self.find(address), self.selector_name(selector)
        is_class = isinstance(found, Class)
        what = found.name if isinstance(found, Class) else self.name_of(type(found))
        told = f"{'+' if is_class else '-'}[{what} {name}]: unrecognized selector sent"
        return self.throw("unrecognized-selector", told)

    def _sent_to_ended(self, address: int, selector: int) -> int:
        name = self.selector_name(selector)
        rule = "over-release" if name in ("release", "autorelease") else "use-after-free"
        what = self._ended.get(address, "no object")
        self.debug.violation(f"{rule}: {name} is sent to {what} at {address:#x}, which has ended")
        return 0

    def _no_object(self, address: int, _: int) -> int:
        self.debug.violation(f"no-object: a message to {address:#x}, which is no object")
        return 0

    def _no_selector(self, address: int, selector: int) -> int:
        self.debug.violation(
            f"no-selector: {selector:#x}, which is none, is sent to the object at {address:#x}"
        )
        return 0

    # The interface of C.

    def add_function(
        self, name: str, result: str, arguments: Sequence[str], body: Callable[..., Any]
    ) -> None:
        """A function that programs may call by name."""
        guarded = self._guarded(name, result, body)
        self.functions[name] = self._callback(result, arguments, guarded, hidden=0)

    def _export(self) -> None:
        self.functions["objc_msgSend"] = self._sender.address
        for name, result, arguments, body in (
            ("objc_getClass", "^", "^", self._get_class),
            ("sel_registerName", "^", "^", lambda text: self.selector(text_at(text))),
            ("sel_getName", "^", "^", lambda sel: self.text(self.selector_name(sel))),
            ("objc_autoreleasePoolPush", "^", "", self.push),
            ("objc_autoreleasePoolPop", "v", "^", self.pop),
            ("object_getClass", "^", "^", self._class_of),
            ("class_getName", "^", "^", self._class_name),
            ("class_respondsToSelector", "B", "^^", self._class_responds),
            ("objc_getClassList", "q", "^q", self._class_list),
            ("objc_retain", "^", "^", self._objc_retain),
            ("objc_release", "v", "^", self._objc_release),
            ("objc_setUncaughtExceptionHandler", "^", "^", self._set_handler),
            ("malloc_size", "Q", "^", self.size_of),
        ):
            self.add_function(name, result, arguments, body)

    def _get_class(self, name: int) -> int:
        return self.class_at(text_at(name))

    def _class_of(self, address: int) -> int:
        if not address:
            return 0
        return int(ctypes.c_uint64.from_address(self.find(address).address).value)

    def _class_name(self, address: int) -> int:
        return self.text(self._find_class(address).name)

    def _class_responds(self, address: int, selector: int) -> bool:
        found = self._find_class(address)
        return self.selector_name(selector) in methods_of(found.python_class)

    def _class_list(self, places: int, count: int) -> int:
        """Writes as many classes as there is room for; gives how many there are."""
        found = [*self._classes.values()]
        if places:
            for number, each in enumerate(found[: max(count, 0)]):
                ctypes.c_uint64.from_address(places + 8 * number).value = each
        return len(found)

    def _find_class(self, address: int) -> Class:
        found = self.find(address) if address else None
        if not isinstance(found, Class):
            raise Misuse("wrong-class", f"{address:#x} is no class")
        return found

    def _objc_retain(self, address: int) -> int:
        if address:
            self.retain(self.find(address))
        return address

    def _objc_release(self, address: int) -> None:
        if address in self._ended:
            raise Misuse("over-release", f"{self._ended[address]} at {address:#x} has ended")
        if address:
            self.release(self.find(address))

    def _set_handler(self, handler: int) -> int:
        before, self.handler = self.handler, handler
        return before


def text_at(pointer: int) -> str:
    """Text up to its zero. Raises Misuse for NULL."""
    if not pointer:
        raise Misuse("nil-argument", "NULL where text is expected")
    return ctypes.string_at(pointer).decode(errors="replace")


def _class_methods(python_class: type) -> Iterator[Method]:
    """What messages to a class find: what it and those that it inherits from define."""
    found: dict[str, Method] = {}
    for each in reversed(python_class.__mro__):
        for body in vars(each).values():
            told = getattr(getattr(body, "__func__", None), _CLASS_METHOD, None)
            if told is not None:
                found[told.selector] = told
    yield from found.values()

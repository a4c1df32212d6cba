"""Classes of Foundation, as far as programs of Metal need them ("Foundation", Apple)."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.sim.metal.methods import method
from gpu.sim.metal.objc import Class, Made, NSObject, Runtime, class_method, text_at


class NSString(NSObject):
    """Text."""

    def __init__(self, runtime: Runtime, text: str):
        super().__init__(runtime)
        self.text = text

    @staticmethod
    @class_method("stringWithUTF8String:", "@", "^")
    def from_utf8(of: Class, text: int) -> NSString:
        """A text of C as an object."""
        return NSString(of.runtime, text_at(text))

    @method("UTF8String", "^")
    def utf8(self) -> int:
        """The text as one of C."""
        return self.runtime.text(self.text)

    @method("length", "Q")
    def length(self) -> int:
        """How many units of UTF-16 it has."""
        return len(self.text.encode("utf-16-le")) // 2


class NSArray(NSObject):
    """Objects in order, which it holds."""

    def __init__(self, runtime: Runtime, things: Sequence[NSObject]):
        super().__init__(runtime)
        self._things = tuple(things)
        for thing in self._things:
            runtime.retain(thing)

    def ending(self) -> None:
        """Lets its objects go."""
        for thing in self._things:
            self.runtime.release(thing)

    @method("count", "Q")
    def number(self) -> int:
        """How many there are."""
        return len(self._things)

    @method("objectAtIndex:", "@", "Q")
    def at(self, index: int) -> NSObject | None:
        """One of them."""
        if index >= len(self._things):
            self.runtime.throw(
                "index-beyond-array", f"index {index} of an array of {len(self._things)}"
            )
            return None
        return self._things[index]


class NSError(NSObject):
    """What has failed, as a domain, a code in it, and text."""

    def __init__(self, runtime: Runtime, domain: str, code: int, text: str):
        super().__init__(runtime)
        self._domain = domain
        self._code = code
        self._text = text

    @method("code", "q")
    def number(self) -> int:
        """The code."""
        return self._code

    @method("domain", "@")
    def area(self) -> NSString:
        """The domain."""
        return NSString(self.runtime, self._domain)

    @method("localizedDescription", "@")
    def description(self) -> NSString:
        """The text."""
        return NSString(self.runtime, self._text)


class NSException(NSObject):
    """What was thrown."""

    def __init__(self, runtime: Runtime, name: str, reason: str):
        super().__init__(runtime)
        self._name = name
        self._reason = reason

    @method("name", "@")
    def name(self) -> NSString:
        """Its name."""
        return NSString(self.runtime, self._name)

    @method("reason", "@")
    def reason(self) -> NSString:
        """Why."""
        return NSString(self.runtime, self._reason)


class NSAutoreleasePool(Made):
    """A pool as an object: it is pushed when it is made, and popped when it is drained."""

    def __init__(self, runtime: Runtime):
        super().__init__(runtime)
        self._token = runtime.push()

    @method("drain")
    def drain(self) -> None:
        """Ends it, and drains it."""
        self.runtime.release(self)

    def ending(self) -> None:
        """Drains it."""
        self.runtime.pop(self._token)


CLASSES = (NSObject, NSString, NSArray, NSError, NSException, NSAutoreleasePool)

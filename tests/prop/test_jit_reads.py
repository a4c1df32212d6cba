"""Random objects, random functions that read them and random changes: jitted as not jitted."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import gpu
from gpu import Tensor

KEYS: Final = ("a", "b", "c")
PRELUDE: Final = '''
def amount(o):
    """A number or tensor that tells values apart."""
    if o is None:
        return 3
    if isinstance(o, str):
        return ord(o)
    if isinstance(o, (list, tuple)):
        return len(o) + 2 * sum((n + 1) * amount(v) for n, v in enumerate(o))
    if isinstance(o, dict):
        return sum(amount(k) * amount(v) for k, v in o.items())
    return o.total() if hasattr(o, "total") else o

def first(o):
    return amount(o.a)

def through(o, path):
    for name in path:
        o = getattr(o, name)
    return amount(o)
'''


class Box:
    """What a function makes inside."""

    def __init__(self, inside: object):
        self.inside = inside


class Thing:
    """An object with attributes of its own, of its class, and computed ones."""

    d: Any = 1

    @property
    def e(self) -> Any:
        return self.a

    def total(self) -> Any:
        return self.d + 2

    def set(self, key: str, value: Any) -> None:
        setattr(self, key, value)


def make(rng: random.Random, depth: int) -> Any:
    """A random value; at depth 0 one without parts."""
    kind = rng.choice(("thing", "thing", "list", "dict", "tuple") if depth else ("leaf",))
    if kind == "thing":
        thing = Thing()
        for key in KEYS:
            thing.set(key, make(rng, rng.randrange(depth)))
        return thing
    if kind == "list":
        return [make(rng, rng.randrange(depth)) for _ in range(rng.randrange(1, 4))]
    if kind == "tuple":
        return tuple(make(rng, rng.randrange(depth)) for _ in range(2))
    if kind == "dict":
        return {key: make(rng, rng.randrange(depth)) for key in rng.sample(KEYS, 2)}
    return rng.choice((0, 1, 2.5, -0.0, True, "x", "y", None, Tensor([rng.randrange(9)])))


def places(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    """All values that can be reached, and an expression for each."""
    yield value, path
    if isinstance(value, Thing):
        for key in (*vars(value), "d", "e"):
            yield from places(getattr(value, key), f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from places(each, f"{path}[{number}]")
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, f"{path}[{key!r}]")


def line(rng: random.Random, value: Any, path: str) -> str:
    """A statement that reads what is at `path`."""
    forms = ["y = y * 0.5 + amount({p})", "t = {p}\ny = y * 0.5 + amount(t)"]
    parent, _, last = path.rpartition(".")
    if last.isidentifier() and parent:
        forms += [
            "pair = ({parent}, 1)\ny = y * 0.5 + amount(pair[0].{last})",
            "box = Box({parent})\ny = y * 0.5 + amount(box.inside.{last})",
            "y = y + amount([{parent} for _ in range(2)][1].{last})",
            "match {parent}:\n    case Thing({last}=t):\n        y = y * 0.5 + amount(t)",
            "y = y * 0.5 + amount(getattr({parent}, {last!r}, 7))",
            "name = {last!r} if KNOWN else 'a'\ny = y * 0.5 + amount(getattr({parent}, name))",
            "y = y * 0.5 + through({parent}, [{last!r}])",
            "u = {parent}\ny = y * 0.5 + amount(u.{last})",
            "y = y + amount((lambda: {parent}.{last})())",
        ]
    if isinstance(value, Thing):
        forms += ["y = y - first({p})", "y = y + {p}.total()", "y = y + len(vars({p}))"]
    if isinstance(value, (list, tuple)):
        forms += ["for v in {p}:\n    y = y * 0.5 + amount(v)", "y = y + len({p})"]
    if isinstance(value, dict):
        forms += ["y = y + sum(map(amount, {p}.values()))", "y = y + amount({p}.get('a'))"]
    return rng.choice(forms).format(p=path, parent=parent, last=last)


def function(rng: random.Random, root: Thing, names: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """A function that reads `root`: a global, in a closure, or the object it is a method of."""
    found = list(places(root, "root"))
    lines = [line(rng, *rng.choice(found)) for _ in range(rng.randrange(1, 5))]
    body = textwrap.indent("y = x\n" + "\n".join(lines) + "\nreturn y", "    ")
    where = rng.choice(("global", "closure", "self"))
    text = PRELUDE + f"def f({'root, ' * (where == 'self')}x):\n{body}\n"
    if where == "closure":
        text += "def made(root):\n" + textwrap.indent(f"def f(x):\n{body}\nreturn f", "    ") + "\n"
    names.update(__name__="random_user", root=root, KNOWN=True, Box=Box, Thing=Thing)
    exec(text, names)
    if where == "self":
        made: Callable[[Tensor], Tensor] = names["f"].__get__(root)
    else:
        made = names["made"](root) if where == "closure" else names["f"]
    return made


def change(rng: random.Random, root: Thing, names: dict[str, Any]) -> str:
    """Changes something that can be reached, or not at all seen; tells what."""
    owner, path = rng.choice([(v, p) for v, p in places(root, "root")])
    new = make(rng, rng.randrange(2))
    if isinstance(owner, Thing):
        key = rng.choice((*KEYS, "d"))
        setattr(owner, key, new)
        return f"{path}.{key} = {new!r}"
    if isinstance(owner, list):
        at = rng.randrange(len(owner) + 1)
        owner[at : at + rng.randrange(2)] = [new]
        return f"{path}[{at}] = {new!r}"
    if isinstance(owner, dict):
        key = rng.choice(KEYS)
        owner.pop(key, None)
        owner[key] = new
        return f"{path}[{key!r}] = {new!r}"
    names["KNOWN"] = not names["KNOWN"]
    return "KNOWN"


def outcome(f: Callable[[Tensor], Tensor]) -> Any:
    """The values of a result, or the type of the error."""
    try:
        return f(Tensor([1.0])).tolist()
    except gpu.JitError:
        raise
    except (AttributeError, TypeError, KeyError, IndexError) as error:
        return next(t for t in (AttributeError, TypeError, LookupError) if isinstance(error, t))


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_jitted_function_is_the_function(seed: int) -> None:
    rng = random.Random(seed)
    names: dict[str, Any] = {}
    root = Thing()
    for key in KEYS:
        root.set(key, make(rng, 2))
    f = function(rng, root, names)
    jitted = gpu.jit(f)
    for _ in range(6):
        for _ in range(rng.randrange(1, 4)):
            want = outcome(f)
            try:
                got = outcome(jitted)
            except gpu.JitError:
                continue
            np.testing.assert_equal(got, want)
        change(rng, root, names)

"""Templates of kernels: each instantiation as a kernel of its own.

C++ for OpenCL, which sources are compiled as, has no templates of kernels, and no threadgroup
memory but at the beginning of a kernel. So a template of a kernel becomes one of a plain function,
its threadgroup memory that of the program, and an explicit instantiation a kernel that calls it
("Metal Shading Language Specification", version 3.2, 5.1.1, 5.1.12 and 4.4).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from gpu.sim.metal.base import CompileMsl
from gpu.sim.metal.source import SourceError
from gpu.sim.metal.stdlib import MARK, with_stdlib

_OPENING: Final = {"(": ")", "[": "]", "{": "}", "<": ">"}
_INSTANCE: Final = re.compile(
    r"\btemplate\s*\[\[\s*host_name\s*\(\s*\"(?P<host>[^\"]+)\"\s*\)\s*\]\]"
    r"(?:\s*\[\[[^\]]*\]\]|\s*\b__kernel\b|\s*\bkernel\b)*\s*decltype\s*\(\s*(?P<name>\w+)\s*"
)
_TEMPLATE: Final = re.compile(r"\btemplate\s*<")
_IS_KERNEL: Final = re.compile(r"\[\[[^\]]*\b(?:__)?kernel\b[^\]]*\]\]|\b__kernel\b")
_HEAD: Final = re.compile(r"\bvoid\s+(?P<name>\w+)\s*\(")
_HELD: Final = re.compile(
    r"(?<=[;{}])(?P<space>\s*)(?:threadgroup|__local)\s+(?P<type>"
    r"(?:typename\s+)?[\w:]+(?:\s*<[^;]*?>)?)\s+(?P<name>\w+)\s*(?P<sizes>(?:\[[^\];]+\]\s*)*);"
)
_VECTOR: Final = re.compile(r"\b(?:(?:metal|gpu_msl_metal)::)?vec\s*<")


_OF_THREAD: Final = re.compile(r"(\))\s*\b__private\b(?=\s*(?::[^:]|\{\s*\}))")
"""What says that a constructor is of objects of a thread: clang makes no temporary ones by it."""
_FUNCTION_CONSTANT: Final = re.compile(
    r"(__constant\s+\w+\s+\w+)\s*\[\[\s*function_constant[^\]]*\]\]"
)
"""No function is specialised here: what uses such a constant cannot be loaded."""
_WITHOUT: Final = re.compile(r"\[\[.*?\]\]", re.DOTALL)
_MOST: Final = re.compile(r"max_total_threads_per_threadgroup\s*\(([\w\s*]+)\)")


@dataclass(frozen=True)
class _Template:
    """A template of a kernel: its attributes, parameters of the template and of the kernel."""

    attributes: str
    of: tuple[tuple[str, str, str], ...]
    listed: str


def prepared(compile_msl: CompileMsl, source: str) -> str:
    """A source as it is compiled: behind what it lacks, and without templates of kernels.

    Raises SourceError for templates that are not understood.
    """
    text = with_stdlib(source)
    if "host_name" not in source:
        return text
    done = compile_msl(text, ("-E", "-P"))
    if isinstance(done, str):
        return text
    preprocessed = done.decode().rpartition(f"{MARK}\n")[2]
    return text.partition(MARK)[0] + MARK + "\n" + instantiated(preprocessed)


def instantiated(text: str) -> str:
    """A preprocessed source with kernels in the place of templates of kernels."""
    text = _vectors(_OF_THREAD.sub(r"\1", text))
    text = _FUNCTION_CONSTANT.sub(r"extern \1", text)
    templates: dict[str, _Template] = {}
    text = "".join(_functions(text, templates))
    parts, at = [], 0
    for match in _INSTANCE.finditer(text):
        host, name, given = match["host"], match["name"], _until(text, match.end())
        if name not in templates:
            raise SourceError(f"{host} is an instance of {name}, which is no template of a kernel")
        parts += [text[at : match.start()], _kernel(host, name, given, templates[name])]
        # Behind the type stands the name with the same arguments.
        again = text.index("<", match.end() + len(given) + 2)
        at = text.index(";", again + len(_until(text, again))) + 1
    return "".join([*parts, text[at:]])


def _depths(text: str, start: int = 0) -> Iterator[tuple[int, int]]:
    """Places of a text, each with how many brackets are open behind it.

    A sign of less is one behind a word or where the text begins, and where no other one is open.
    """
    open_ones: list[str] = []
    for at in range(start, len(text)):
        letter = text[at]
        is_angle = letter == "<" and (at == start or re.match(r"\w", text[at - 1]))
        if letter in "([{" or (is_angle and open_ones[-1:] in ([], ["<"])):
            open_ones.append(letter)
        elif open_ones and letter == _OPENING[open_ones[-1]]:
            open_ones.pop()
        yield at, len(open_ones)


def _until(text: str, start: int) -> str:
    """What stands in the bracket that begins at `start`. Raises SourceError where it is open."""
    for at, depth in _depths(text, start):
        if not depth:
            return text[start + 1 : at]
    raise SourceError(f"a bracket does not end: {text[start : start + 40]}")


def _split(listed: str) -> list[str]:
    commas = [at for at, depth in _depths(listed) if not depth and listed[at] == ","]
    cuts = [-1, *commas, len(listed)]
    parts = [listed[a + 1 : b].strip() for a, b in pairwise(cuts)]
    return [part for part in parts if part]


def _vectors(text: str) -> str:
    """Vectors that are made of several values by a function: C++ takes one alone."""
    parts, at = [], 0
    for match in _VECTOR.finditer(text):
        given = _until(text, match.end() - 1)
        end = match.end() + len(given) + 1
        if match.start() < at or not re.match(r"\((?!\))", text[end:]):
            continue
        parts += [text[at : match.start()], f"gpu_msl_metal::vec_of<{given}>"]
        at = end
    return "".join([*parts, text[at:]])


def _functions(text: str, templates: dict[str, _Template]) -> Iterator[str]:
    """The text with functions for templates of kernels, which are noted."""
    at = 0
    for match in _TEMPLATE.finditer(text):
        if match.start() < at:
            continue
        listed = _until(text, match.end() - 1)
        begin = match.end() + len(listed) + 1
        head = _HEAD.search(text, begin)
        if head is None or not _IS_KERNEL.search(before := text[begin : head.start()]):
            continue
        if re.search(r"[;{]", before):
            continue
        parameters = _until(text, head.end() - 1)
        body_at = text.index("{", head.end() + len(parameters))
        body = _until(text, body_at)
        end = body_at + len(body) + 2
        templates[head["name"]] = _Template(before, tuple(_parameters(listed)), parameters)
        plain = ", ".join(_WITHOUT.sub("", each) for each in _split(parameters))
        yield text[at : match.start()]
        yield f"template <{listed}> void {head['name']}({plain}) {{{_held(body)}}}"
        at = end
    yield text[at:]


def _held(body: str) -> str:
    """Threadgroup memory of a function as that of the program, which a reference names."""
    number = 0

    def refer(match: re.Match[str]) -> str:
        nonlocal number
        number += 1
        kind = f"{match['type']} {match['sizes']}"
        return (
            f"{match['space']}__local {match['type']} (&{match['name']}) {match['sizes']} ="
            f" gpu_msl_metal::held<{number}, {kind}>();"
        )

    return _HELD.sub(refer, "{" + body)[1:]


def _parameters(listed: str) -> Iterator[tuple[str, str, str]]:
    """Kind, name and default of each parameter of a template. Raises SourceError."""
    for each in _split(listed):
        declared, _, default = each.partition("=")
        match = re.fullmatch(r"(.*?)\b(\w+)\s*", declared.strip(), re.DOTALL)
        if match is None:
            raise SourceError(f"a parameter of a template is not understood: {each}")
        yield match[1].strip(), match[2], default.strip()


def _kernel(host: str, name: str, given: str, template: _Template) -> str:
    """A kernel that calls an instance, whose parameters are those of the template."""
    values = _split(given)
    lines = [f"namespace gpu_msl_{host} {{"]
    for number, (kind, parameter, default) in enumerate(template.of):
        value = values[number] if number < len(values) else default
        if kind in ("typename", "class"):
            lines.append(f"using {parameter} = {value};")
        else:
            lines.append(f"enum : {kind.replace('const', '')} {{ {parameter} = {value} }};")
    bound = dict(zip((each[1] for each in template.of), values, strict=False))
    bound = {**{name: default for _, name, default in template.of}, **bound}
    names = [_WITHOUT.sub("", each).split()[-1].lstrip("*&") for each in _split(template.listed)]
    lines += [
        f"{_most_threads(template, bound)}__kernel void {host}({template.listed}) {{",
        f"  {name}<{given}>({', '.join(names)});",
        "}",
        "}",
    ]
    return "\n".join(lines)


def _most_threads(template: _Template, bound: dict[str, str]) -> str:
    """What limits threads: a product of numbers and parameters. Raises SourceError."""
    match = _MOST.search(template.attributes)
    if match is None:
        return ""
    factors = [bound.get(word.strip(), word.strip()) for word in match[1].split("*")]
    if not all(each.isdecimal() for each in factors):
        raise SourceError(f"{match[0]} is no number: {' * '.join(factors)}")
    return f"[[max_total_threads_per_threadgroup({math.prod(map(int, factors))})]] "

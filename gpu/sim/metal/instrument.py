"""Kernels as LLVM's IR, made to tell of each load, store and wait, and compiled for the host.

IR is optimised as it would be for threads that race ("sanitize_thread": no load is made where the
source has none). Then a call of `gpu/sim/metal/threads.py` stands before each access of memory that
is not certainly a variable of the thread, and before each jump back. Fast math is what Metal calls
it: flags on all arithmetic.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Final

from gpu.core.elf import SHN_UNDEF, parse_object
from gpu.core.errors import Unsupported
from gpu.core.files import DiskCache, content_signature, object_cache_dir
from gpu.core.objload import load_object
from gpu.sim.isa.native import compile_module, host_level
from gpu.sim.metal.source import NUMBERS, Kernel
from gpu.sim.metal.threads import ATOMIC, READ, WRITE

_cache: Final = DiskCache("sim-metal-kernels", parent=object_cache_dir)
_SCALARS: Final = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
_VALUE: Final = r"%[-\w.$]+|%\"[^\"]+\""
_LOAD: Final = re.compile(
    r"^  \S+ = load (?P<atomic>atomic )?(?:volatile )?(?P<type>.+?), ptr (?P<at>.+?)"
    r"(?: (?:unordered|monotonic|acquire|seq_cst))?, align (?P<align>\d+)"
)
_STORE: Final = re.compile(
    r"^  store (?P<atomic>atomic )?(?:volatile )?(?P<value>.+?), ptr (?P<at>.+?)"
    r"(?: (?:unordered|monotonic|release|seq_cst))?, align (?P<align>\d+)"
)
_ATOMIC: Final = re.compile(
    r"^  \S+ = (?:atomicrmw (?:volatile )?\w+|cmpxchg (?:weak )?(?:volatile )?) ?ptr (?P<at>.+?),"
    r" (?P<type>\S+) "
)
_BULK: Final = re.compile(
    r"call void @llvm\.(?P<what>memcpy|memmove|memset)\.\S*\(ptr (?P<first>[^,]+), "
    r"(?P<second>[^,]+), i64 (?P<size>[^,]+),"
)
_ALLOCA: Final = re.compile(rf"^  (?P<name>{_VALUE}) = alloca (?P<type>.+?), align")
_STEP: Final = re.compile(rf"^  (?P<name>{_VALUE}) = getelementptr .*?, ptr (?P<at>{_VALUE}),")
_DEFINE: Final = re.compile(r"^define [^@]*@(?P<name>[\w.$]+)\((?P<listed>.*?)\)[^)]*\{$")
_GLOBAL: Final = re.compile(
    r"^@(?P<name>[\w.$]+) = (?:[\w()]+ )*?(?P<kind>global|constant) (?P<rest>.*)$"
)
_LABEL: Final = re.compile(r"^(?P<name>[-\w.$]+):")
_WAITS: Final = re.compile(r"@gpu_msl_(barrier|simdgroup_barrier|exchange|gather)\(")
_MEMORY: Final = re.compile(
    r"^  (?:\S+ = )?(?:load|store|atomicrmw|cmpxchg) |@llvm\.(?:mem(?:cpy|move|set)|masked\.)"
)
"""All that access memory, what is known here and what is not."""
_ARITHMETIC: Final = re.compile(r"= (?:tail )?(fadd|fsub|fmul|fdiv|frem|fneg|fcmp) ")
_MACHINE: Final = re.compile(
    r' "(?:target-cpu|target-features|tune-cpu)"="[^"]*"| spir_(?:kernel|func)\b'
)
"""What binds functions to another machine than this one."""
_DECLARED: Final = """
declare void @gpu_metal_access(ptr, i32, i32)
declare void @gpu_metal_private(ptr, i32, ptr, i64, i32)
declare void @gpu_metal_tick()
declare void @gpu_metal_end()
declare ptr @gpu_metal_words()
declare ptr @gpu_metal_arguments()
declare void @gpu_metal_barrier(i32, i32)
declare void @gpu_metal_simdgroup_barrier(i32, i32)
declare i32 @gpu_metal_exchange(i32, i32, i32)
declare void @gpu_metal_gather(i32, i32, ptr)
"""
_ENTRY: Final = "gpu_metal_start."


class Program:
    """The code of a source.

    It is loaded once for all kernels of it, as one threadgroup runs at a time.
    """

    def __init__(self, data: bytes):
        head, _, self._object = data.partition(b"\n")
        told = json.loads(head)
        self._sizes: dict[str, int] = told["sizes"]
        self._constants: dict[str, int] = told["constants"]
        self._used: dict[str, list[str]] = told["used"]
        self._lacking: dict[str, list[str]] = told["lacking"]
        self._loaded: tuple[object, dict[str, int]] | None = None

    def static_bytes(self, kernel: str) -> int:
        """Bytes of threadgroup memory that a kernel declares."""
        return sum(self._sizes[name] for name in self._used.get(kernel, ()))

    def lacking(self, kernel: str) -> list[str]:
        """Function constants that a kernel uses, none of which has a value."""
        return self._lacking.get(kernel, [])

    def load(self, runtime: Mapping[str, int]) -> None:
        """Makes it ready to run, with the functions of what runs it."""
        if self._loaded is not None:
            return
        wanted = _undefined(self._object)
        constants = {name for names in self._lacking.values() for name in names}
        functions = [name for name in wanted if name not in constants]
        symbols = {name: runtime.get(name) or _of_system(name) for name in functions}
        symbols.update(dict.fromkeys(constants, 0))  # no kernel that uses them is made
        image = load_object(self._object, symbols)
        names = [*self._sizes, *self._constants, *(_ENTRY + each for each in self._used)]
        self._loaded = image, {name: image.address(name) for name in names}

    def _address(self, name: str) -> int:
        assert self._loaded is not None
        return self._loaded[1][name]

    def entry(self, kernel: str) -> int:
        """Where a thread of a kernel begins."""
        return self._address(_ENTRY + kernel)

    def locals(self, kernel: str) -> Iterator[tuple[int, int]]:
        """Address and bytes of each piece of threadgroup memory that a kernel declares."""
        for name in self._used[kernel]:
            yield self._address(name), self._sizes[name]

    def constants(self) -> Iterator[tuple[int, int]]:
        """Address and bytes of all constants of the source."""
        for name, size in self._constants.items():
            yield self._address(name), size


def translate(bitcode: bytes, kernels: Mapping[str, Kernel], fast_math: bool) -> Program:
    """The program of a source's kernels. Raises what compiling does."""
    return Program(_translated(bitcode, tuple(kernels.items()), fast_math))


@lru_cache(maxsize=256)
def _translated(bitcode: bytes, kernels: tuple[tuple[str, Kernel], ...], fast_math: bool) -> bytes:
    """What a program is made of, from the cache where it is there."""
    made_by = f"{content_signature(__file__)} {host_level()} {fast_math} {kernels}"
    key = f"{made_by} {hashlib.sha256(bitcode).hexdigest()}"
    data = _cache.get(key)
    if data is None:
        module = _Module(*optimised(bitcode, fast_math), dict(kernels))
        data = json.dumps(module.told()).encode() + b"\n" + compile_module(module.text())
        _cache.put(key, data)
    return data


def optimised(
    bitcode: bytes, fast_math: bool = False, racy: bool = True
) -> tuple[str, dict[str, int]]:
    """IR as text, optimised for this machine, and bytes of its global variables.

    In `racy` code there is no load that the source has not.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    with llvm.create_context() as context:
        with llvm.parse_bitcode(bitcode, context) as module:
            text = _MACHINE.sub("", str(module))
        if fast_math:
            text = _ARITHMETIC.sub(lambda match: f"{match[0]}fast ", text)
        if racy:
            text = "\n".join(_racy(text.splitlines()))
        with llvm.parse_assembly(text, context) as module:
            machine = llvm.Target.from_triple(module.triple).create_target_machine(
                cpu=host_level(), opt=1
            )
            tuning = llvm.create_pipeline_tuning_options(speed_level=1)
            tuning.loop_vectorization = tuning.slp_vectorization = False
            builder = llvm.create_pass_builder(machine, tuning)
            builder.getModulePassManager().run(module, builder)
            data = machine.target_data
            sizes = {
                each.name: data.get_abi_size(each.global_value_type)
                for each in module.global_variables
            }
            return str(module), sizes


def _racy(lines: list[str]) -> Iterator[str]:
    """Functions with the attribute that their memory is shared with other threads."""
    of_functions = {
        number
        for line in lines
        if line.startswith("define ")
        for number in re.findall(r" (#\d+)", line)
    }
    for line in lines:
        match = re.match(r"attributes (#\d+) = \{", line)
        if match and match[1] in of_functions:
            yield f"{match[0]} sanitize_thread{line[match.end() :]}"
        elif line.startswith("define "):
            yield line.replace("define linkonce_odr ", "define internal ").replace(" comdat ", " ")
        elif not line.startswith("$"):
            yield line.replace(", comdat", "") if line.startswith("@") else line


def size_of(kind: str) -> int | None:
    """Bytes of a type of LLVM's; None of one that this does not know."""
    kind = kind.strip()
    if kind in _SCALARS:
        return _SCALARS[kind]
    if re.fullmatch(r"i\d+", kind):
        return -(-int(kind[1:]) // 8)
    match = re.fullmatch(r"[<\[](\d+) x (.+)[>\]]", kind)
    if match is None:
        return None
    element = size_of(match[2])
    return None if element is None else int(match[1]) * element


class _Module:
    """A module on its way to text that tells of accesses."""

    def __init__(self, text: str, sizes: Mapping[str, int], kernels: Mapping[str, Kernel]):
        self._kernels = kernels
        self._sizes = sizes
        self._sites = 0
        self._locals: dict[str, int] = {}
        self._constants: dict[str, int] = {}
        self._external: dict[str, int] = {}
        self._bodies: dict[str, str] = {}
        self._wrappers: list[str] = []
        self._lines = list(self._read(text.splitlines()))

    def text(self) -> str:
        """All of it."""
        return "\n".join([*self._lines, _DECLARED, *self._wrappers])

    def told(self) -> dict[str, object]:
        """What `Program` must know besides the code."""
        named = {name: self._named(name, set()) for name in self._kernels}
        used, lacking = (
            {name: sorted(words & known.keys()) for name, words in named.items()}
            for known in (self._locals, self._external)
        )
        sizes = {"sizes": self._locals, "constants": self._constants}
        return {**sizes, "used": used, "lacking": lacking}

    def _named(self, function: str, seen: set[str]) -> set[str]:
        """All that a function names, or what it calls."""
        if function in seen or function not in self._bodies:
            return set()
        seen.add(function)
        found = set(re.findall(r"@([\w.$]+)", self._bodies[function]))
        for name in list(found):
            found |= self._named(name, seen)
        return found

    def _read(self, lines: list[str]) -> Iterator[str]:
        body: list[str] = []
        for line in lines:
            match = _DEFINE.match(line)
            if match:
                body = [line]
                if match["name"] in self._kernels:
                    self._wrap(self._kernels[match["name"]], match["listed"])
            elif body:
                body.append(line)
                if line == "}":
                    name = _DEFINE.match(body[0])
                    assert name is not None
                    self._bodies[name["name"]] = "\n".join(body)
                    yield from self._function(body)
                    body = []
            elif not re.match(r"declare .*@gpu_msl_", line):
                yield self._global(line)

    def _global(self, line: str) -> str:
        """Variables are seen from outside, where accesses are checked, and begin with zeros."""
        match = _GLOBAL.match(line)
        if match is None or match["name"] not in self._sizes:
            return line
        if " external " in line:
            self._external[match["name"]] = self._sizes[match["name"]]
            return line
        known = self._constants if match["kind"] == "constant" else self._locals
        known[match["name"]] = self._sizes[match["name"]]
        rest = re.sub(r" (?:undef|poison)(, |$)", r" zeroinitializer\1", match["rest"])
        return f"@{match['name']} = {match['kind']} {rest}"

    def _function(self, lines: list[str]) -> Iterator[str]:
        owners: dict[str, tuple[str, int | None]] = {}
        places = {m["name"]: i for i, line in enumerate(lines) if (m := _LABEL.match(line))}
        for number, line in enumerate(lines):
            if match := _ALLOCA.match(line):
                owners[match["name"]] = match["name"], size_of(match["type"])
            elif (match := _STEP.match(line)) and match["at"] in owners:
                owners[match["name"]] = owners[match["at"]]
            if self._jumps_back(lines, number, places):
                yield "  call void @gpu_metal_tick()"
            checks = list(_checks(line, owners, number))
            if _MEMORY.search(line) and not checks:
                raise Unsupported(f"an access that is not known: {line.strip()}")
            yield from checks
            yield _WAITS.sub(self._wait, line)

    def _wait(self, match: re.Match[str]) -> str:
        self._sites += 1
        return f"@gpu_metal_{match[1]}(i32 {self._sites}, "

    @staticmethod
    def _jumps_back(lines: list[str], number: int, places: Mapping[str, int]) -> bool:
        line = lines[number]
        if not line.startswith(("  br ", "  switch ")):
            return False
        last = number
        if line.startswith("  switch "):
            last = next(i for i in range(number, len(lines)) if "]" in lines[i])
        targets = re.findall(r"label %([-\w.$]+)", "\n".join(lines[number : last + 1]))
        return any(places.get(target, number) < number for target in targets)

    def _wrap(self, kernel: Kernel, listed: str) -> None:
        """A function without parameters that calls a kernel with what the thread is given."""
        kinds = list(_parameter_types(listed))
        if len(kinds) != len(kernel.parameters):
            raise Unsupported(
                f"kernel {kernel.name} has {len(kernel.parameters)} parameters in its source and"
                f" {len(kinds)} in its code"
            )
        lines = [
            f'define void @"{_ENTRY}{kernel.name}"() {{',
            "  %words = call ptr @gpu_metal_words()",
            "  %arguments = call ptr @gpu_metal_arguments()",
        ]
        given = []
        for number, (parameter, kind) in enumerate(zip(kernel.parameters, kinds, strict=True)):
            if parameter.kind == "number":
                lines += _number(number, parameter.index, parameter.align, kind)
            else:
                lines.append(f"  %p{number} = getelementptr i64, ptr %arguments, i64 {number}")
                lines.append(f"  %v{number} = load ptr, ptr %p{number}")
            given.append(f"{kind} %v{number}")
        lines.append(f"  call void @{kernel.name}({', '.join(given)})")
        self._wrappers.append(
            "\n".join([*lines, "  call void @gpu_metal_end()", "  ret void", "}"])
        )


def _checks(line: str, owners: Mapping[str, tuple[str, int | None]], number: int) -> Iterator[str]:
    """Calls before a line that accesses memory; `number` is the line's."""
    if match := _LOAD.match(line):
        how = ATOMIC if match["atomic"] else READ
        yield _check(match["at"], match["type"], how, int(match["align"]), owners)
    elif match := _STORE.match(line):
        kind = next(_parameter_types(match["value"]))
        how = ATOMIC if match["atomic"] else WRITE
        yield _check(match["at"], kind, how, int(match["align"]), owners)
    elif match := _ATOMIC.match(line):
        align = size_of(match["type"]) or 1
        yield _check(match["at"], match["type"], ATOMIC, align, owners)
    elif match := _BULK.search(line):
        places = [(match["first"], WRITE)]
        if match["what"] != "memset":
            places.append((match["second"].removeprefix("ptr "), READ))
        for place, how in places:
            size = f"%size.{number}.{how}"
            yield f"  {size} = trunc i64 {match['size']} to i32"
            yield _call(place.split()[-1], size, how, 1)


def _check(
    at: str, kind: str, how: int, align: int, owners: Mapping[str, tuple[str, int | None]]
) -> str:
    size = size_of(kind)
    if size is None:
        raise Unsupported(f"an access of type {kind} is not supported")
    if at not in owners:
        return _call(at, str(size), how, align)
    owner, whole = owners[at]
    if whole is None or (at == owner and size <= whole):
        return "  ; a variable of the thread"
    return (
        f"  call void @gpu_metal_private(ptr {at}, i32 {size}, ptr {owner}, i64 {whole}, i32 {how})"
    )


def _call(at: str, size: str, how: int, align: int) -> str:
    return f"  call void @gpu_metal_access(ptr {at}, i32 {size}, i32 {how | align << 4})"


def _parameter_types(listed: str) -> Iterator[str]:
    """The types of a list of parameters or of one value, each with how it is widened."""
    depth, start = 0, 0
    for at, letter in enumerate([*listed, ","]):
        depth += (letter in "<[({") - (letter in ">])}")
        if letter == "," and not depth and (part := listed[start:at].strip()):
            kind = re.match(r"(<[^>]*>|\[[^\]]*\]|\S+)", part)
            assert kind is not None
            words = part.split()
            widened = [word for word in ("zeroext", "signext") if word in words]
            yield " ".join([kind[1], *widened])
            start = at + 1


def _number(number: int, index: int, size: int, kind: str) -> Iterable[str]:
    """A number that a thread is told: words as elements, as the kernel takes them."""
    assert index < len(NUMBERS)
    yield f"  %s{number} = alloca [64 x i8], align 16"
    for axis in range(3):
        name = f"{number}.{axis}"
        yield f"  %w{name} = getelementptr i32, ptr %words, i64 {3 * index + axis}"
        yield f"  %x{name} = load i32, ptr %w{name}"
        value = f"%x{name}"
        if size != 4:
            yield f"  %e{name} = {'zext' if size > 4 else 'trunc'} i32 {value} to i{8 * size}"
            value = f"%e{name}"
        yield f"  %t{name} = getelementptr i8, ptr %s{number}, i64 {size * axis}"
        yield f"  store i{8 * size} {value}, ptr %t{name}"
    plain = re.sub(" (?:zero|sign)ext", "", kind)
    yield f"  %v{number} = load {plain}, ptr %s{number}"


def _undefined(data: bytes) -> list[str]:
    symbols = parse_object(data).symbols
    return [each.name for each in symbols if each.section == SHN_UNDEF and each.name]


@cache
def _of_system(name: str) -> int:
    """The address of a function of the system's libraries. Raises Unsupported."""
    for library in ("libm.so.6", None):
        function = getattr(ctypes.CDLL(library), name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise Unsupported(f"a kernel calls {name}, which this model does not have")

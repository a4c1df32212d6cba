"""Writes random bodies of LLVM IR whose results are defined.

Shifts are masked, divisors are positive, conversions saturate.
"""

from __future__ import annotations

import random

N = 128
OUTPUTS = 8
INTEGERS = ("i16", "i32", "i64")
FLOATS = ("half", "float", "double")
BITS = {"i1": 1, "i16": 16, "i32": 32, "i64": 64, "half": 16, "float": 32, "double": 64}
MANGLED = {"half": "f16", "float": "f32", "double": "f64"}
INF = {"half": "0xH7C00", "float": "0x7FF0000000000000", "double": "0x7FF0000000000000"}


class Generator:
    """Writes one program: a list of lines, and the values that may be used, by type."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.pool: dict[str, list[str]] = {kind: [] for kind in (*INTEGERS, *FLOATS, "i1")}
        self.declared: set[str] = set()
        self.block = "body"
        self._count = 0

    def emit(self, kind: str, text: str) -> str:
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        self.pool[kind].append(name)
        return name

    def pick(self, kind: str) -> str:
        """A value of a type: a recent one, any, or a constant."""
        values = self.pool[kind]
        if kind in INTEGERS and self.random.random() < 0.15:
            top = 1 << (BITS[kind] - 1)
            near = (0, 1, -1, 7, top - 1, -top, self.random.randrange(-top, top))
            return str(self.random.choice(near))
        return self.random.choice(values[-6:] if self.random.random() < 0.7 else values)

    def call(self, result: str, name: str, *arguments: tuple[str, str]) -> str:
        """A call of an intrinsic; arguments are (type, value)."""
        types = ", ".join(kind for kind, _ in arguments)
        self.declared.add(f"declare {result} @llvm.{name}({types})")
        text = ", ".join(f"{kind} {value}" for kind, value in arguments)
        return self.emit(result, f"call {result} @llvm.{name}({text})")

    def step(self) -> None:
        """Adds an operation."""
        kind = self.random.choice((*INTEGERS, *INTEGERS, *FLOATS, "i1"))
        if kind == "i1":
            self._compare()
        elif kind in INTEGERS:
            self.random.choice((self._integer, self._integer, self._bit_trick, self._to_integer))(
                kind
            )
        else:
            self.random.choice((self._float, self._float, self._unary, self._to_float))(kind)

    def _compare(self) -> None:
        if self.random.random() < 0.5:
            kind = self.random.choice(INTEGERS)
            test = self.random.choice(
                ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"]
            )
            self.emit("i1", f"icmp {test} {kind} {self.pick(kind)}, {self.pick(kind)}")
        else:
            kind = self.random.choice(FLOATS)
            test = self.random.choice(
                [
                    "oeq",
                    "ogt",
                    "oge",
                    "olt",
                    "ole",
                    "one",
                    "ord",
                    "ueq",
                    "ugt",
                    "uge",
                    "ult",
                    "ule",
                    "une",
                    "uno",
                ]
            )
            self.emit("i1", f"fcmp {test} {kind} {self.pick(kind)}, {self.pick(kind)}")

    def _integer(self, kind: str) -> None:
        name = self.random.choice(
            [
                "add",
                "sub",
                "mul",
                "and",
                "or",
                "xor",
                "shl",
                "lshr",
                "ashr",
                "udiv",
                "sdiv",
                "urem",
                "srem",
                "select",
            ]
        )
        x, y = self.pick(kind), self.pick(kind)
        if name in ("shl", "lshr", "ashr"):
            y = self.emit(kind, f"and {kind} {y}, {BITS[kind] - 1}")
        elif name.endswith(("div", "rem")):
            half = self.emit(kind, f"lshr {kind} {y}, {self.random.choice((1, BITS[kind] // 2))}")
            y = self.emit(kind, f"or {kind} {half}, 1")
        elif name == "select":
            self.emit(kind, f"select i1 {self.pick('i1')}, {kind} {x}, {kind} {y}")
            return
        self.emit(kind, f"{name} {kind} {x}, {y}")

    def _bit_trick(self, kind: str) -> None:
        x, y = (kind, self.pick(kind)), (kind, self.pick(kind))
        two = ["smin", "smax", "umin", "umax", "uadd.sat", "usub.sat", "sadd.sat", "ssub.sat"]
        if kind == "i64":
            # LLVM 22 folds another addition into the carry chain of these, and takes its carry.
            two = [name for name in two if not name.startswith("u") or "sat" not in name]
        name = self.random.choice(
            [*two, "ctpop", "bitreverse", "bswap", "fshl", "ctlz", "cttz", "abs"]
        )
        if name in two:
            self.call(kind, f"{name}.{kind}", x, y)
        elif name in ("ctlz", "cttz", "abs"):
            self.call(kind, f"{name}.{kind}", x, ("i1", "false"))
        elif name == "fshl":
            self.call(kind, f"fshl.{kind}", x, y, (kind, self.pick(kind)))
        else:
            self.call(kind, f"{name}.{kind}", x)

    def _to_integer(self, kind: str) -> None:
        if self.random.random() < 0.5:
            source = self.random.choice([other for other in INTEGERS if other != kind])
            wider = BITS[kind] > BITS[source]
            cast = self.random.choice(("zext", "sext")) if wider else "trunc"
            self.emit(kind, f"{cast} {source} {self.pick(source)} to {kind}")
            return
        source = self.random.choice(FLOATS)
        name = self.random.choice(("fptosi", "fptoui"))
        self.call(kind, f"{name}.sat.{kind}.{MANGLED[source]}", (source, self.pick(source)))

    def _float(self, kind: str) -> None:
        name = self.random.choice(["fadd", "fsub", "fmul", "fdiv", "fma", "select", "copysign"])
        x, y = self.pick(kind), self.pick(kind)
        if name == "select":
            self.emit(kind, f"select i1 {self.pick('i1')}, {kind} {x}, {kind} {y}")
        elif name == "copysign":
            # The sign of a NaN is as little promised as its payload.
            number = self.emit("i1", f"fcmp ord {kind} {y}, {y}")
            y = self.emit(kind, f"select i1 {number}, {kind} {y}, {kind} {INF[kind]}")
            self.call(kind, f"copysign.{MANGLED[kind]}", (kind, x), (kind, y))
        elif name == "fma" and kind != "half":  # the host rounds a half's twice
            self.call(kind, f"fma.{MANGLED[kind]}", (kind, x), (kind, y), (kind, self.pick(kind)))
        else:
            self.emit(kind, f"{'fadd' if name == 'fma' else name} {kind} {x}, {y}")

    def _unary(self, kind: str) -> None:
        name = self.random.choice(["sqrt", "floor", "ceil", "trunc", "roundeven", "fabs", "fneg"])
        x = self.pick(kind)
        if name == "fneg":
            self.emit(kind, f"fneg {kind} {x}")
        else:
            self.call(kind, f"{name}.{MANGLED[kind]}", (kind, x))

    def _to_float(self, kind: str) -> None:
        name = self.random.choice(("sitofp", "uitofp", "cast"))
        if name != "cast":
            source = "i16" if kind == "half" else self.random.choice(INTEGERS)
            self.emit(kind, f"{name} {source} {self.pick(source)} to {kind}")
        elif kind == "half":
            # LLVM makes a v_fma_mixlo with +0 of a rounded product, which loses the sign of a zero.
            positive = self.call("float", "fabs.f32", ("float", self.pick("float")))
            self.emit(kind, f"fptrunc float {positive} to half")
        elif kind == "float":
            source = self.random.choice(("half", "double"))
            cast = "fpext" if source == "half" else "fptrunc"
            self.emit(kind, f"{cast} {source} {self.pick(source)} to float")
        else:
            source = self.random.choice(("half", "float"))
            self.emit(kind, f"fpext {source} {self.pick(source)} to double")

    def branch(self, depth: int = 2) -> None:
        """An if with two arms, and a phi of a type behind it."""
        self._count += 1
        tag = self._count
        condition = self.pick("i1")
        self.lines.append(f"  br i1 {condition}, label %then{tag}, label %else{tag}")
        kind = self.random.choice((*INTEGERS, *FLOATS))
        arms = []
        for arm in ("then", "else"):
            saved = {k: list(v) for k, v in self.pool.items()}
            self.lines.append(f"{arm}{tag}:")
            self.block = f"{arm}{tag}"
            self.grow(self.random.randrange(1, 6), depth - 1)
            arms.append((self.pool[kind][-1], self.block))
            self.lines.append(f"  br label %join{tag}")
            self.pool = saved
        self.lines.append(f"join{tag}:")
        self.block = f"join{tag}"
        text = ", ".join(f"[ {value}, %{block} ]" for value, block in arms)
        self.emit(kind, f"phi {kind} {text}")

    def loop(self) -> None:
        """A loop of up to 7 rounds, as many as a value says, that changes one value."""
        self._count += 1
        tag = self._count
        kind = self.random.choice((*INTEGERS, *FLOATS))
        count = self.emit("i32", f"and i32 {self.pick('i32')}, 7")
        start, before = self.pool[kind][-1], self.block
        self.lines.append(f"  br label %head{tag}")
        self.lines.append(f"head{tag}:")
        place = len(self.lines)
        saved = {k: list(v) for k, v in self.pool.items()}
        self.pool[kind].append(f"%x{tag}")
        self.block = f"head{tag}"
        self.grow(self.random.randrange(1, 5), 0)
        end = self.pool[kind][-1]
        self.lines.append(f"  %next{tag} = add i32 %n{tag}, 1")
        self.lines.append(f"  %more{tag} = icmp ult i32 %next{tag}, {count}")
        self.lines.append(f"  br i1 %more{tag}, label %head{tag}, label %after{tag}")
        self.lines.insert(
            place,
            f"  %n{tag} = phi i32 [ 0, %{before} ], [ %next{tag}, %{self.block} ]\n"
            f"  %x{tag} = phi {kind} [ {start}, %{before} ], [ {end}, %{self.block} ]",
        )
        self.pool = saved
        self.pool[kind].append(end)
        self.lines.append(f"after{tag}:")
        self.block = f"after{tag}"

    def grow(self, steps: int, depth: int) -> None:
        """Adds operations, and control flow up to a depth."""
        for _ in range(steps):
            chance = self.random.random()
            if depth > 0 and chance < 0.06:
                self.branch(depth)
            elif depth > 0 and chance < 0.1:
                self.loop()
            else:
                self.step()

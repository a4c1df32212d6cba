"""What jitted functions read outside of their tensors, changed after they were captured."""

from __future__ import annotations

import contextvars
import cProfile
import enum
import functools
import gc
import itertools
import operator
import sys
import threading
import types
import weakref
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pytest

import gpu
from gpu import Tensor, nn

Mutation = Callable[[], object]
Case = tuple[Callable[[Tensor], Tensor], list[Mutation]]

RATE = 1.0
TABLE = [1.0, 2.0]
CONFIG: dict[str, Any] = {"rate": 1.0, "deep": {"rate": 2.0}, "other": 3.0}
ARRAY = np.array([1.0, 2.0, 3.0], np.float32)
HOOK: Any = None


def vector(*values: float) -> Tensor:
    return Tensor(np.array(values, np.float32))


class Mode(enum.Enum):
    PLUS = 1
    MINUS = 2


class Plain:
    """An object that has the attributes it is given."""

    def __init__(self, **attributes: Any):
        self.__dict__.update(attributes)


def helper(x: Tensor) -> Tensor:
    return x * RATE


def rate_of_module() -> float:
    return RATE


def with_default(x: Tensor, by: float = 2.0) -> Tensor:
    return x * by


def sets(owner: object, name: str, value: object) -> Mutation:
    return lambda: setattr(owner, name, value)


def puts(owner: Any, key: object, value: object) -> Mutation:
    return lambda: operator.setitem(owner, key, value)


CASES: Final[dict[str, Callable[[], Case]]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


@case
def a_variable_that_stands_for_several_tuples() -> Case:
    first, second = Plain(rate=2.0), Plain(rate=3.0, inner=Plain(rate=4.0))

    def f(x: Tensor) -> Tensor:
        made = (first, 1)
        x = x * made[0].rate
        made = (second, 1)
        return x * made[0].rate + made[0].inner.rate

    return f, [sets(first, "rate", 5.0), sets(second, "rate", 6.0), sets(second.inner, "rate", 7.0)]


@case
def attribute_of_self() -> Case:
    class Model:
        def __init__(self) -> None:
            self.rate, self.unread = 1.0, 1

        def step(self, x: Tensor) -> Tensor:
            return x * self.rate

    model = Model()
    return model.step, [sets(model, "rate", 2.0), sets(model, "rate", -0.0)]


@case
def nested_attribute() -> Case:
    opt = Plain(lr=0.1)
    model = Plain(opt=opt)

    class Trainer:
        def __init__(self) -> None:
            self.model = model

        def step(self, x: Tensor) -> Tensor:
            return x * self.model.opt.lr

    return Trainer().step, [sets(opt, "lr", 0.2), sets(model, "opt", Plain(lr=5.0))]


@case
def attribute_through_a_variable() -> Case:
    model = Plain(opt=Plain(lr=0.1), other=Plain(lr=7.0))

    def step(x: Tensor) -> Tensor:
        opt = model.opt
        if opt.lr > 4:
            opt = model.other
        return x * opt.lr

    return step, [
        sets(model.opt, "lr", 0.2),
        sets(model.opt, "lr", 5.0),
        sets(model.other, "lr", 8),
    ]


@case
def item_of_a_list() -> Case:
    rates = [1.0, 2.0]
    return lambda x: x * rates[1], [puts(rates, 1, 3.0), lambda: rates.insert(0, 9.0)]


@case
def item_by_a_computed_number() -> Case:
    rates, index = [1.0, 2.0, 4.0], [0]
    return lambda x: x * rates[index[0] + 1], [puts(rates, 1, 3.0), puts(index, 0, 1)]


@case
def item_of_a_dict() -> Case:
    config = {"a": {"rate": 1.0}}
    return (
        lambda x: x * config["a"]["rate"],
        [puts(config["a"], "rate", 2.0), puts(config, "a", {"rate": 3.0})],
    )


@case
def get_of_a_dict() -> Case:
    config: dict[str, float] = {}
    return lambda x: x * config.get("rate", 1.0), [puts(config, "rate", 2.0), config.clear]


@case
def order_of_a_dict() -> Case:
    config = {"a": 1.0, "b": 2.0}

    def turn() -> None:
        config["a"] = config.pop("a")

    return lambda x: functools.reduce(lambda y, v: y * 2 + v, config.values(), x), [turn]


@case
def global_number() -> Case:
    return lambda x: x * RATE, [lambda: globals().update(RATE=RATE + 1)]


@case
def global_list() -> Case:
    return lambda x: x * sum(TABLE), [lambda: TABLE.append(3.0), TABLE.pop, TABLE.reverse]


@case
def global_dict() -> Case:
    def f(x: Tensor) -> Tensor:
        return x * CONFIG["rate"] + CONFIG["deep"]["rate"]

    return f, [
        puts(CONFIG, "rate", 5.0),
        puts(CONFIG["deep"], "rate", 6.0),
        puts(CONFIG, "rate", 1),
    ]


@case
def global_that_a_helper_reads() -> Case:
    return lambda x: helper(x) + 0, [lambda: globals().update(RATE=RATE + 1)]


@case
def number_that_a_helper_returns() -> Case:
    return lambda x: x * rate_of_module(), [lambda: globals().update(RATE=RATE + 1)]


@case
def helper_that_is_replaced() -> Case:
    holder = Plain(helper=lambda x: x * 2)
    return lambda x: holder.helper(x) + 0, [sets(holder, "helper", lambda x: x * 3)]


@case
def global_that_was_not_there() -> Case:
    def f(x: Tensor) -> Tensor:
        try:
            return x * NOT_THERE  # type: ignore[name-defined]
        except NameError:
            return x

    return f, [lambda: globals().update(NOT_THERE=4.0), lambda: globals().pop("NOT_THERE")]


@case
def closure_of_a_closure() -> Case:
    rate = 1.0

    def make() -> Callable[[Tensor], Tensor]:
        def inner(x: Tensor) -> Tensor:
            return x * rate

        return inner

    inner = make()

    def change(value: float) -> None:
        nonlocal rate
        rate = value

    return lambda x: inner(x) + 0, [lambda: change(2.0), lambda: change(3.0)]


@case
def closure_of_a_function_in_a_c_object() -> Case:
    rate = 1.0

    def inner(x: Tensor) -> Tensor:
        return x * rate

    call = operator.methodcaller("__call__", vector(1, 2, 3))

    def change(value: float) -> None:
        nonlocal rate
        rate = value

    hidden = functools.partial(functools.partial, inner)
    return lambda x: hidden(x)() + call(inner), [lambda: change(2.0)]


@case
def closure_over_an_object() -> Case:
    config = Plain(rate=1.0)
    return lambda x: x * config.rate, [sets(config, "rate", 2.0)]


@case
def class_attribute() -> Case:
    class Config:
        rate = 1.0

    class Below(Config):
        pass

    config = Below()
    return (
        lambda x: x * Config.rate + config.rate,
        [sets(Config, "rate", 2.0), sets(Below, "rate", 3.0), sets(config, "rate", 4.0)],
    )


@case
def read_through_a_property() -> Case:
    class Config:
        def __init__(self) -> None:
            self._opt = Plain(rate=1.0)

        @property
        def opt(self) -> Plain:
            return self._opt

    config = Config()
    return (
        lambda x: x * config.opt.rate,  # type: ignore[attr-defined]
        [sets(config._opt, "rate", 2.0), sets(config, "_opt", Plain(rate=3.0))],
    )


@case
def property_that_is_replaced() -> Case:
    class Config:
        rate = property(lambda self: 1.0)

    config = Config()
    return lambda x: x * config.rate, [sets(Config, "rate", property(lambda self: 2.0))]


@case
def cached_property() -> Case:
    class Config:
        base = 2.0

        @functools.cached_property
        def rate(self) -> float:
            return self.base * 2

    config = Config()
    return lambda x: x * config.rate, [sets(config, "rate", 7.0)]


@case
def computed_attribute() -> Case:
    class Config:
        def __init__(self) -> None:
            self.values = {"rate": 1.0}

        def __getattr__(self, name: str) -> float:
            return self.values[name]

    config = Config()
    return lambda x: x * config.rate, [puts(config.values, "rate", 2.0), sets(config, "rate", 3.0)]


@case
def own_getattribute() -> Case:
    class Config:
        rate = 1.0

        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, name)

    config = Config()
    config.rate = 2.0
    return lambda x: x * config.rate, [sets(config, "rate", 3.0)]


@case
def own_getitem() -> Case:
    class Table:
        def __init__(self) -> None:
            self.rows = [[1.0], [2.0]]

        def __getitem__(self, key: int) -> float:
            return self.rows[key][0]

    table = Table()
    return lambda x: x * table[1], [puts(table.rows[1], 0, 5.0), puts(table.rows, 1, [6.0])]


@case
def descriptor() -> Case:
    class Scaled:
        def __init__(self, by: float):
            self.by = by

        def __get__(self, instance: Any, owner: type) -> float:
            return float(instance.base * self.by)

    class Config:
        rate = Scaled(2.0)
        base = 1.0

    config = Config()
    scaled = Config.__dict__["rate"]
    return lambda x: x * config.rate, [sets(config, "base", 3.0), sets(scaled, "by", 5.0)]


@case
def fields_of_a_dataclass() -> Case:
    @dataclass
    class Config:
        rate: float = 1.0
        table: list[float] = field(default_factory=lambda: [2.0])

    config = Config()
    return (
        lambda x: x * config.rate + config.table[0],
        [sets(config, "rate", 2.0), puts(config.table, 0, 4.0), sets(config, "table", [5.0])],
    )


@case
def slots() -> Case:
    class Config:
        __slots__ = ("late", "rate")

    config = Config()
    config.rate = 1.0  # type: ignore[attr-defined]

    def f(x: Tensor) -> Tensor:
        return x * config.rate + getattr(config, "late", 0.0)  # type: ignore[attr-defined]

    return f, [sets(config, "rate", 2.0), sets(config, "late", 3.0)]


@case
def a_namedtuple() -> Case:
    Config = namedtuple("Config", "rate opt")
    holder = Plain(config=Config(1.0, Plain(lr=2.0)))
    return (
        lambda x: x * holder.config.rate + holder.config.opt.lr,
        [sets(holder.config.opt, "lr", 3.0), sets(holder, "config", Config(4.0, Plain(lr=5.0)))],
    )


@case
def a_partial() -> Case:
    config = Plain(rate=1.0)

    def scaled(x: Tensor, by: Plain, plus: list[float]) -> Tensor:
        return x * by.rate + plus[0]

    plus = [1.0]
    made = functools.partial(scaled, by=config, plus=plus)
    return made, [sets(config, "rate", 2.0), puts(plus, 0, 3.0)]


@case
def default_of_a_lambda() -> Case:
    options = {"rate": 1.0}

    def f(x: Tensor, by: float = 2.0, options: dict[str, float] = options) -> Tensor:
        return x * by + options["rate"]

    return f, [puts(options, "rate", 2.0), sets(f, "__defaults__", (3.0, options))]


@case
def default_of_a_helper() -> Case:
    def change() -> None:
        with_default.__defaults__ = (with_default.__defaults__[0] + 1,)  # type: ignore[index]

    return lambda x: with_default(x) + 0, [change, change]


@case
def attribute_of_a_function() -> Case:
    def scaled(x: Tensor) -> Tensor:
        return x * scaled.rate  # type: ignore[attr-defined,no-any-return]

    scaled.rate = 1.0  # type: ignore[attr-defined]
    return scaled, [sets(scaled, "rate", 2.0)]


@case
def layers_in_a_list() -> Case:
    class Model:
        def __init__(self) -> None:
            self.layers: list[Any] = [nn.Linear(3, 3), nn.Linear(3, 3)]

        def __call__(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x).relu()
            return x * len(self.layers)

    model = Model()
    return model, [
        lambda: model.layers.append(nn.Linear(3, 3)),
        sets(model.layers[0], "bias", None),
        sets(model.layers[1], "weight", Tensor(np.eye(3, dtype=np.float32))),
        lambda: model.layers.pop(0),
        puts(model.layers, 0, lambda x: x + 1),
    ]


@case
def numbers_of_layers() -> Case:
    norm, batch = nn.LayerNorm(3), nn.BatchNorm(3)
    return (
        lambda x: batch(norm(x).reshape(1, 3)).reshape(3),
        [sets(norm, "eps", 1.0), sets(batch, "eps", 2.0), sets(norm, "weight", vector(1, 2, 3))],
    )


@case
def rate_in_a_loop() -> Case:
    class Layer:
        def __init__(self, rate: float):
            self.rate, self.act = rate, "relu"

    model = Plain(layers=(Layer(1.0), Layer(2.0)))

    def f(x: Tensor) -> Tensor:
        for layer in model.layers:
            x = getattr(x * layer.rate, layer.act)()
        return x

    last = model.layers[1]
    return f, [sets(last, "rate", 3.0), sets(last, "act", "exp"), sets(last, "rate", -1.0)]


@case
def modes() -> Case:
    model = Plain(mode="sum", flag=False, kind=Mode.PLUS, bias=None)

    def f(x: Tensor) -> Tensor:
        y = x * 2 if model.flag else x
        y = y + 1 if model.kind is Mode.PLUS else y - 1
        y = y if model.bias is None else y + model.bias
        return y + (y.sum() if model.mode == "sum" else y.max())

    return f, [
        sets(model, "mode", "max"),
        sets(model, "flag", True),
        sets(model, "kind", Mode.MINUS),
        sets(model, "bias", vector(1, 2, 3)),
        sets(model, "bias", vector(4, 5, 6)),
        sets(model, "bias", None),
    ]


@case
def one_and_true() -> Case:
    model = Plain(by=1)
    return lambda x: x * repr(model.by).count("True"), [sets(model, "by", True)]


@case
def an_array_in_place() -> Case:
    array = np.ones(3, np.float32)
    model = Plain(array=array)
    return lambda x: x * Tensor(model.array), [puts(array, 1, 5.0), puts(ARRAY, 0, 3.0)]


@case
def a_bytearray() -> Case:
    data = bytearray(b"\1\2")
    return lambda x: x * data[0], [puts(data, 0, 7), lambda: data.extend(b"1")]


@case
def other_containers() -> Case:
    queue, ordered = deque([1.0]), OrderedDict(a=1.0, b=2.0)
    missing: defaultdict[str, float] = defaultdict(lambda: 1.0, a=1.0)
    user, names = UserDict({"a": 1.0}), {"x"}

    def f(x: Tensor) -> Tensor:
        y = x * queue[0] + next(iter(ordered.values())) + missing["a"] + user["a"]
        return y + ("y" in names)

    return f, [
        lambda: queue.appendleft(4.0),
        lambda: ordered.move_to_end("a"),
        puts(missing, "a", 2.0),
        puts(user, "a", 3.0),
        lambda: names.add("y"),
    ]


@case
def attribute_by_a_computed_name() -> Case:
    class Model:
        def __init__(self) -> None:
            self.rate0, self.rate1 = 1.0, 2.0

        def __call__(self, x: Tensor) -> Tensor:
            for n in range(2):
                x = x * getattr(self, f"rate{n}")
            return x + vars(self)["rate1"] + (1 if hasattr(self, "late") else 0)

    model = Model()
    return model, [sets(model, "rate1", 3.0), sets(model, "late", 1)]


@case
def attribute_of_a_module() -> Case:
    module = types.ModuleType("settings_of_a_user")
    module.rate = 1.0  # type: ignore[attr-defined]
    return lambda x: x * module.rate, [sets(module, "rate", 2.0)]


@case
def a_namespace() -> Case:
    config = types.SimpleNamespace(rate=1.0, deep=types.SimpleNamespace(rate=2.0))
    return lambda x: x * config.rate + config.deep.rate, [
        sets(config, "rate", 2.0),
        sets(config.deep, "rate", 3.0),
    ]


@case
def method_that_is_replaced() -> Case:
    class Model:
        def scale(self, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def shift(x: Tensor) -> Tensor:
            return x + 1

        @classmethod
        def turn(cls, x: Tensor) -> Tensor:
            return -x

        def __call__(self, x: Tensor) -> Tensor:
            return self.turn(self.shift(self.scale(x)))

    model = Model()
    return model, [
        sets(model, "scale", lambda x: x * 3),
        sets(Model, "shift", staticmethod(lambda x: x + 2)),
        sets(Model, "turn", classmethod(lambda cls, x: x)),
    ]


@case
def method_of_a_base() -> Case:
    class Base:
        rate = 1.0

        def scale(self, x: Tensor) -> Tensor:
            return x * self.rate

    class Model(Base):
        def scale(self, x: Tensor) -> Tensor:
            return super().scale(x) + 1

    model = Model()
    return model.scale, [
        sets(model, "rate", 2.0),
        sets(Base, "scale", lambda self, x: x * 9),
    ]


@case
def through_callbacks() -> Case:
    config = Plain(rate=1.0, order=[2.0, 1.0])

    def scaled(x: Tensor) -> Tensor:
        return x * config.rate

    def f(x: Tensor) -> Tensor:
        first, *_ = map(scaled, [x])
        return first + sorted(config.order, key=lambda v: v * config.rate)[0]

    return f, [sets(config, "rate", -2.0), puts(config.order, 0, 0.0)]


@case
def a_decorated_helper() -> Case:
    config = Plain(rate=1.0)

    def doubled(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        @functools.wraps(f)
        def wrapper(x: Tensor) -> Tensor:
            return f(x) * 2

        return wrapper

    @doubled
    def scaled(x: Tensor) -> Tensor:
        return x * config.rate

    return lambda x: scaled(x) + 0, [sets(config, "rate", 3.0)]


@case
def a_jitted_function_inside() -> Case:
    config = Plain(rate=1.0)
    inner = gpu.jit(lambda x: x * config.rate)
    return lambda x: inner(x) + 1, [sets(config, "rate", 3.0)]


@case
def objects_made_by_a_generator() -> Case:
    model = Plain(layers=[Plain(rate=1.0), Plain(rate=2.0)])

    def layers() -> Iterator[Plain]:
        yield from model.layers

    def f(x: Tensor) -> Tensor:
        for layer in layers():
            x = x * layer.rate  # type: ignore[attr-defined]
        return x + sum(layer.rate for layer in layers())  # type: ignore[attr-defined]

    return f, [sets(model.layers[1], "rate", 3.0)]


@case
def a_hook_that_comes_later() -> Case:
    def f(x: Tensor) -> Tensor:
        return x if HOOK is None else HOOK(x)

    return f, [lambda: globals().update(HOOK=lambda x: x * 7), lambda: globals().update(HOOK=None)]


@case
def matched() -> Case:
    @dataclass
    class Config:
        rate: float
        deep: Any

    holder = Plain(config=Config(1.0, {"x": 2.0}))

    def f(x: Tensor) -> Tensor:
        match holder.config:  # type: ignore[attr-defined]
            case Config(rate, deep={"x": value}):
                return x * rate + value  # type: ignore[no-any-return]
        return x

    config = holder.config  # type: ignore[attr-defined]
    return f, [sets(config, "rate", 3.0), puts(config.deep, "x", 4.0), puts(config.deep, "y", 1)]


@case
def objects_in_what_is_made_inside() -> Case:
    model = Plain(opt=Plain(lr=1.0, deep=Plain(x=2.0)))

    def all_of(*objects: Any) -> Any:
        return objects[0].lr

    def f(x: Tensor) -> Tensor:
        pair = (model.opt, model)
        made = Plain(opt=model.opt)
        return x * pair[0].lr + made.opt.deep.x + all_of(*pair)  # type: ignore[attr-defined]

    return f, [sets(model.opt, "lr", 3.0), sets(model.opt.deep, "x", 3.0)]  # type: ignore


@case
def an_object_that_code_in_c_gives() -> Case:
    config, rate = Plain(rate=1.0), contextvars.ContextVar[Any]("rate")
    rate.set(config)
    weak = weakref.ref(config)

    def f(x: Tensor) -> Tensor:
        given, again = rate.get(), weak()
        return x * given.rate + again.plus  # type: ignore[union-attr]

    config.plus = 1.0  # type: ignore[attr-defined]
    return f, [sets(config, "rate", 2.0), sets(config, "plus", 3.0)]


@case
def a_module_that_is_imported_inside() -> Case:
    module = types.ModuleType("settings_of_a_user_too")
    module.rate = 1.0  # type: ignore[attr-defined]
    sys.modules["settings_of_a_user_too"] = module

    def f(x: Tensor) -> Tensor:
        import settings_of_a_user_too as found  # type: ignore[import-not-found]
        from settings_of_a_user_too import plus

        return x * found.rate + plus  # type: ignore[no-any-return]

    module.plus = 2.0  # type: ignore[attr-defined]
    return f, [sets(module, "rate", 2.0), sets(module, "plus", 5.0)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("calls", [1, 2, 4])
def test_a_change_is_noticed(name: str, calls: int) -> None:
    """After any number of calls, be it captured or not yet."""
    function, mutations = CASES[name]()
    jitted = gpu.jit(function)
    x = np.array([1.0, -2.0, 3.0], np.float32)
    for mutate in (lambda: None, *mutations):
        mutate()
        for _ in range(calls):
            want = function(Tensor(x)).numpy()
            np.testing.assert_array_equal(jitted(Tensor(x)).numpy(), want)


@pytest.mark.parametrize("name", CASES)
def test_without_a_change_it_is_captured_once(name: str) -> None:
    function, _ = CASES[name]()
    jitted = gpu.jit(function)
    for _ in range(3):
        jitted(vector(1, 2, 3))
    jitted.function = lambda x: pytest.fail("was run again")
    for _ in range(3):
        jitted(vector(1, 2, 3))
    assert jitted.captures == 1


def test_another_attribute_may_change() -> None:
    """A counter that the function does not read, though another object has one of that name."""

    class Trainer:
        def __init__(self) -> None:
            self.step, self.opt = 0, Plain(step=lambda x: x + 1)

        def run(self, x: Tensor) -> Tensor:
            opt = self.opt
            return self.opt.step(x) + opt.step(x)  # type: ignore[attr-defined,no-any-return]

    trainer = Trainer()
    jitted = gpu.jit(trainer.run)
    for trainer.step in range(50):
        assert jitted(vector(1)).item() == 4
    assert jitted.captures == 1


def test_a_named_tuple_beside_gradients() -> None:
    """Its class looks attributes up by a method of its own, which is none of Python's code."""
    weights = [Tensor([1.0, 2.0], requires_grad=True) for _ in range(2)]
    kind = namedtuple("kind", "factor parts")(3, [1])

    @gpu.jit
    def step(x: Tensor) -> Tensor:
        sum(((w * x).sum() for w in weights), Tensor(0.0)).backward()
        grads = [w.grad for w in weights]
        for w in weights:
            w.grad = None
        return sum(grads, Tensor(0.0)) * kind.factor * len(kind.parts)

    for number in range(4):
        assert step(vector(number, 1.0)).tolist() == [6.0 * number, 6.0]


def test_methods_of_two_objects() -> None:
    class Model:
        rate = 1.0

        @gpu.jit
        def step(self, x: Tensor) -> Tensor:
            return x * self.rate

    models = [Model(), Model()]
    for round_ in range(12):
        models[1].rate = float(round_ // 4)
        assert [m.step(vector(1)).item() for m in models] == [1, round_ // 4]


def test_going_back_to_a_value_is_a_capture_that_is_there() -> None:
    model = Plain(training=True)
    jitted = gpu.jit(lambda x: x * 2 if model.training else x)
    for call in range(12):
        model.training = call % 4 < 2
        assert jitted(vector(1)).item() == (2 if model.training else 1)
    assert jitted.captures == 2


def test_an_equal_number_is_no_change() -> None:
    model = Plain(rate=0.1, name="sum")
    jitted = gpu.jit(lambda x: (x * model.rate).sum() if model.name == "sum" else x)
    for _ in range(50):
        model.rate, model.name = float("0.1"), "".join("sum")
        jitted(vector(1))
    assert jitted.captures == 1


def test_an_argument_that_is_an_object() -> None:
    config = Plain(rate=1.0, table=[1.0])

    def f(x: Tensor, configs: list[Plain]) -> Tensor:
        return x * configs[0].rate + configs[0].table[0]  # type: ignore[attr-defined]

    jitted = gpu.jit(f)
    for call in range(16):
        config.rate, config.table[0] = float(call // 4), float(call // 8)  # type: ignore
        assert jitted(vector(2), [config]).item() == f(vector(2), [config]).item()


def test_a_number_that_keeps_changing_outside_is_told_by_name() -> None:
    model = Plain(opt=Plain(lr=0.0))
    jitted = gpu.jit(lambda x: x * model.opt.lr)
    with pytest.raises(gpu.JitError, match=r"captured 32 times.*model\.opt\.lr \(3[01]\.0, now 3"):
        for step in range(100):
            model.opt.lr = float(step)  # type: ignore[attr-defined]
            assert jitted(vector(1)).item() == step


class Counter:
    """What functions write to that are jitted."""

    def __init__(self) -> None:
        self.count: Any = 0
        self.seen: list[object] = []
        self.table = {"a": 0}

    def counts(self, x: Tensor) -> Tensor:
        self.count += 1
        return x

    def appends(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        return x

    def keeps(self, x: Tensor) -> Tensor:
        self.last = x * 2
        return x

    def puts(self, x: Tensor) -> Tensor:
        self.table["a"] += 1
        return x

    def puts_new(self, x: Tensor) -> Tensor:
        self.table[str(len(self.table))] = 1
        return x

    def deep(self, x: Tensor) -> Tensor:
        return self.counts(x)

    def deletes(self, x: Tensor) -> Tensor:
        del self.table[min(self.table)]
        return x

    def by_name(self, x: Tensor) -> Tensor:
        setattr(self, "count", self.count + 1)  # noqa: B010
        return x


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("counts", r"self\.count \(1, now 2\)"),
        ("appends", r"self\.seen"),
        ("keeps", r"self\.last"),
        ("puts", r"self\.table\['a'\] \(1, now 2\)|self\.table"),
        ("puts_new", r"self\.table"),
        ("deep", r"self\.count"),
        ("deletes", r"self\.table"),
        ("by_name", r"self\.count"),
    ],
)
def test_what_the_function_writes_is_refused(name: str, what: str) -> None:
    counter = Counter()
    counter.table = dict.fromkeys("abcdefg", 0)
    jitted = gpu.jit(getattr(counter, name))
    jitted(vector(1))
    with pytest.raises(gpu.JitError, match=f"Counter.{name} changes .*{what}.* no Python.*assign"):
        jitted(vector(1))


def test_a_global_that_the_function_writes_is_refused() -> None:
    @gpu.jit
    def f(x: Tensor) -> Tensor:
        global RATE  # noqa: PLW0603
        RATE += 1
        return x

    f(vector(1))
    with pytest.raises(gpu.JitError, match="changes RATE"):
        f(vector(1))


def test_a_variable_around_the_function_that_it_writes_is_refused() -> None:
    count = 0

    @gpu.jit
    def f(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x

    f(vector(1))
    with pytest.raises(gpu.JitError, match=r"changes count \(1, now 2\)"):
        f(vector(1))


def test_what_is_written_once_or_put_back_is_not_refused() -> None:
    class Model:
        def __init__(self) -> None:
            self.size: int | None = None
            self.depth = 0
            self.known: dict[int, str] = {}

        def __call__(self, x: Tensor) -> Tensor:
            if self.size is None:
                self.size = x.shape[0]
            self.known.setdefault(self.size, "seen")
            self.depth += 1
            x = x * self.size
            self.depth -= 1
            return x

    jitted = gpu.jit(Model())
    for _ in range(6):
        assert jitted(vector(1, 2)).tolist() == [2, 4]
    assert jitted.captures <= 2


def test_a_flag_that_the_function_clears_and_others_set() -> None:
    model = Plain(fresh=True)

    def f(x: Tensor) -> Tensor:
        y = x * 5 if model.fresh else x
        model.fresh = False
        return y

    jitted = gpu.jit(f)
    with pytest.raises(gpu.JitError, match=r"model\.fresh"):
        for _ in range(100):
            model.fresh = True
            assert jitted(vector(1)).item() == 5


def test_an_argument_that_is_changed_is_refused() -> None:
    def appends(x: Tensor, out: list[Tensor]) -> Tensor:
        out.append(x)
        return x

    def replaces(x: Tensor, out: dict[str, Tensor]) -> Tensor:
        out["x"] = x * 2
        return x

    for function, given in ((appends, [vector(1)]), (replaces, {"x": vector(1)})):
        with pytest.raises(gpu.JitError, match="changes a list or dict that it was given"):
            gpu.jit(function)(vector(1), given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [itertools.cycle([1.0]), iter([1.0]), (v for v in [1.0]), np.zeros(1 << 19)],
    ids=["cycle", "iterator", "generator", "large array"],
)
def test_what_cannot_be_guarded_is_refused(value: Any) -> None:
    model = Plain(value=value)
    with pytest.raises(gpu.JitError, match=r"reads model\.value, an? .* make it a Tensor"):
        gpu.jit(lambda x: x * len(str(model.value)))(vector(1))


def test_a_torch_tensor_is_refused() -> None:
    torch = pytest.importorskip("torch")
    model = Plain(scale=torch.ones(1))
    with pytest.raises(gpu.JitError, match=r"reads model\.scale, a Tensor from outside"):
        gpu.jit(lambda x: x * model.scale.item())(vector(1))


def test_a_profiler_goes_on() -> None:
    seen: list[str] = []

    def profile(frame: types.FrameType, event: str, _: object) -> None:
        seen.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        gpu.jit(lambda x: x + 1)(vector(1))
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert "_trace" in seen


def test_a_profiler_in_c_goes_on() -> None:
    with cProfile.Profile() as profile:
        gpu.jit(lambda x: x + 1)(vector(1))
        helper(vector(1))
    assert any(getattr(e.code, "co_name", "") == "helper" for e in profile.getstats())


def test_a_garbage_collection_is_not_the_functions() -> None:
    times: list[int] = []
    gone: list[int] = []

    class Finalized:
        def __del__(self) -> None:
            gone.append(len(gone))

    def counts(phase: str, info: dict[str, int]) -> None:
        times.append(len(times))

    def f(x: Tensor) -> Tensor:
        Finalized()
        gc.collect()
        return x + 1

    gc.callbacks.append(counts)
    try:
        jitted = gpu.jit(f)
        for _ in range(4):
            assert jitted(vector(1)).item() == 2
    finally:
        gc.callbacks.remove(counts)
    assert times and gone and jitted.captures == 1


def test_other_threads_may_change_other_things() -> None:
    model, done = Plain(rate=1.0, other=0), threading.Event()

    def work() -> None:
        while not done.is_set():
            model.other += 1  # type: ignore[attr-defined]

    thread = threading.Thread(target=work)
    thread.start()
    try:
        jitted = gpu.jit(lambda x: x * model.rate)
        for call in range(20):
            model.rate = float(call // 5)  # type: ignore[attr-defined]
            assert jitted(vector(1)).item() == call // 5
    finally:
        done.set()
        thread.join()


def test_settings_that_change_dtypes() -> None:
    jitted = gpu.jit(lambda x: x + Tensor([0.5]) + Tensor.full((1,), 0.5))
    for dtype in (gpu.dtypes.float32, gpu.dtypes.float64, gpu.dtypes.float32):
        gpu.dtypes.default_float = dtype
        try:
            for _ in range(3):
                assert jitted(Tensor([1])).dtype == dtype
        finally:
            gpu.dtypes.default_float = gpu.dtypes.float32


def test_objects_are_let_go_of() -> None:
    class Model:
        rate = 1.0

        @gpu.jit
        def step(self, x: Tensor) -> Tensor:
            return x * self.rate

    model = Model()
    for _ in range(3):
        model.step(vector(1))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_records_in_use_elsewhere_cost_a_replay_nothing() -> None:
    """All classes of `namedtuple` have the code of their functions together."""
    first, second = namedtuple("first", "a b"), namedtuple("second", "a b c")

    def replaced(x: Tensor) -> Tensor:
        pair = first(x, 2)._replace(b=3)
        return x * pair.b + second._make((pair.a, 1, 2)).a

    jitted = gpu.jit(replaced)
    x = Tensor([1.0, 2.0])
    for _ in range(3):
        assert jitted(x).tolist() == [4.0, 8.0]
    ((capture,),) = jitted._captures.values()
    paths = {guard.path for guard in capture.guards._guards}
    assert paths.isdisjoint(
        ("_tuple_new", "tuple_new", "_len", "_map", "num_fields", "field_names")
    )
    assert len(paths) < 12, paths

"""Exported pages in a browser compute what the same functions compute on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from export.chromium import ScriptError
from export.pages import Site
from gpu import Tensor
from gpu.cli.export.modelfile import Model
from gpu.core.config import Context
from gpu.nn.state import safe_load

DIGITS = '''
"""The network of `gpu demo`."""
from gpu import Tensor, jit
from gpu.cli.demo_training import Network
from gpu.data import load_digits

Tensor.manual_seed(3)
network = Network()
images, _ = load_digits()
inputs = {"images": Tensor(images[:16])}

@jit
def model(images):
    return {"scores": network(images) * 10}
'''

DTYPES = """
from gpu import Tensor, dtypes
import numpy as np

random = np.random.default_rng(0)
inputs = {
    "flags": Tensor(random.random(7) < 0.5),
    "bytes": Tensor(random.integers(0, 255, 7, np.uint8)),
    "shorts": Tensor(random.integers(-300, 300, (3, 3)).astype(np.int16)),
    "longs": Tensor(random.integers(-(1 << 62), 1 << 62, 5)),
    "halves": Tensor(random.standard_normal(5).astype(np.float16)),
    "brains": Tensor(random.standard_normal(3).astype(np.float32)).cast("bfloat16"),
    "unread": Tensor([1, 2, 3]),
    "nothing": Tensor(np.zeros((0, 2), np.float32)),
}
table = Tensor(random.integers(-9, 9, 256).astype(np.int8))

def model(flags, bytes, shorts, longs, halves, brains, unread, nothing):
    return {
        "not": ~flags, "sum": bytes + 200, "found": table[bytes.cast("int64")],
        "shorts": shorts * 3, "longs": longs * 12345 // 7, "most": longs.argmax(),
        "unsigned": longs.cast("uint64") // 10, "halves": halves * 1.1, "brains": brains / 3,
        "mixed": flags.where(bytes, 3), "same": shorts, "nothing": nothing + 1,
    }
"""


NAMES = """
'A "quoted" <b>heading</b> </script> of `some` ${kind}.'
from gpu import Tensor, Var

total = Tensor.zeros(3).contiguous().realize()
inputs = {"größe": Tensor([1.0, 2.0, 3.0]), "n": Var("n", 1, 3).bind(2)}

def model(größe, n):
    return {'a"b\\'c': größe * 2, "</script>": größe[:n].sum(), "${x} `y`": total + größe}
"""


def check(site: Site, model: Model, rtol: float = 1e-6, atol: float = 1e-6) -> None:
    """Compares what the browser computes with what this process does."""
    folder = site.export(model)
    (got,) = site.outputs(folder)
    wanted = model.function(model.inputs)
    assert list(got) == list(wanted)
    for name, tensor in wanted.items():
        assert got[name].shape == tensor.shape, name
        if tensor.dtype.is_float:
            value = tensor.cast("float32").numpy()
            np.testing.assert_allclose(got[name], value, rtol, atol, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], tensor.numpy(), err_msg=name)


def test_digits(site: Site) -> None:
    check(site, site.load(DIGITS), rtol=1e-5, atol=1e-5)


def test_names_of_any_kind(site: Site) -> None:
    check(site, site.load(NAMES))


def test_dtypes(site: Site) -> None:
    check(site, site.load(DTYPES))


# Functions put together at random.

Step = Callable[[Tensor, np.random.Generator], Tensor]


def _weight(shape: tuple[int, ...], random: np.random.Generator) -> Tensor:
    return Tensor(random.standard_normal(shape).astype(np.float32)).realize()


STEPS: list[Step] = [
    lambda x, r: x @ _weight((x.shape[1], int(r.integers(1, 40))), r),
    lambda x, r: x.softmax(int(r.integers(2))),
    lambda x, r: x - x.mean(int(r.integers(2)), keepdim=True),
    lambda x, r: x.permute(1, 0),
    lambda x, r: x.reshape(-1, 1) if r.random() < 0.5 else x.reshape(1, -1),
    lambda x, r: x.cumsum(1).tanh(),
    lambda x, r: x.pad(((1, 0), (2, 1))) + 0.5,
    lambda x, r: x[:, ::2] if x.shape[1] > 1 else x[::-1],
    lambda x, r: x.cast("float16").cast("float32") * 2,
    lambda x, r: (x > 0.1).where(x, -x * x),
    lambda x, r: x[Tensor(r.integers(0, x.shape[0], 9))],
    lambda x, r: x.sort(1)[0].sigmoid(),
    lambda x, r: x.argmax(1, keepdim=True).cast("float32") + x,
    lambda x, r: x.contiguous().abs().sqrt(),
]


@pytest.mark.parametrize("seed", range(6))
def test_random_functions(site: Site, seed: int) -> None:
    random = np.random.default_rng(seed)
    chosen = random.integers(0, len(STEPS), 5)
    state = random.bit_generator.state

    def function(given: Any) -> dict[str, Tensor]:
        random.bit_generator.state = state  # the same weights each time
        x, found = given["x"], {}
        for number, step in enumerate(chosen):
            x = STEPS[step](x, random)
            if number % 2 == 0:
                found[f"after{number}"] = x
        return found

    x = Tensor(random.standard_normal((6, 10)).astype(np.float32))
    state = random.bit_generator.state
    check(site, Model(function, {"x": x}, {}, "", "", {}), rtol=2e-4, atol=2e-5)


def test_memory_that_is_spilled(site: Site) -> None:
    source = """
from gpu import Tensor
inputs = [Tensor.linspace(-1, 1, 12000).reshape(40, 300)]
def model(x):
    return {"y": x.softmax(1)}
"""
    with Context(NOOPT=1):
        model = site.load(source)
        check(site, model)
        about = site.description(site.export(model))
    assert about["kernels"][0]["spilled"] == 40 * 300 * 4


# What one run leaves to the next.


def test_values_that_stay(site: Site) -> None:
    folder = site.export("""
from gpu import Tensor
total, first, second = Tensor([10.0]), Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
def model(x):
    before = total * 1
    total.assign(total + x.sum())
    one = first * 1
    first.assign(second)
    second.assign(one)
    return {"before": before, "total": total, "first": first}
inputs = {"x": Tensor([1.0, 2.0])}
""")
    runs = site.outputs(folder, runs=3)
    assert [run["before"].item() for run in runs] == [10, 13, 16]
    assert [run["total"].item() for run in runs] == [13, 16, 19]
    assert [run["first"].tolist() for run in runs] == [[3, 4], [1, 2], [3, 4]]


def test_equal_beginnings_are_not_one_tensor(site: Site) -> None:
    folder = site.export("""
from gpu import Tensor
up, down, fixed = (Tensor.zeros(3) for _ in range(3))
def model():
    up.assign(up + 1)
    down.assign(down - 1)
    return {"up": up, "down": down, "fixed": fixed + 0.5}
inputs = {}
""")
    for number, run in enumerate(site.outputs(folder, runs=2), 1):
        assert run["up"].tolist() == [number] * 3 and run["down"].tolist() == [-number] * 3
        assert run["fixed"].tolist() == [0.5] * 3


def test_writes_in_place(site: Site) -> None:
    folder = site.export("""
from gpu import Tensor
history, constant = Tensor.zeros(1 << 15).contiguous(), Tensor.ones(1 << 15).contiguous()
def model(x):
    history[3:5] = history[3:5] + x
    changed = constant.clone()
    changed[:2] = x
    return {"history": history, "changed": changed, "input": x}
inputs = {"x": Tensor([1.0, 2.0])}
""")
    about = site.description(folder)
    assert about["after"] == [], "history is not written where it is"
    for number, run in enumerate(site.outputs(folder, runs=3), 1):
        wanted: npt.NDArray[Any] = np.zeros(1 << 15)
        wanted[3:5] = [number, 2 * number]
        np.testing.assert_array_equal(run["history"], wanted)
        assert run["changed"][:3].tolist() == [1, 2, 1] and run["changed"].sum() == (1 << 15) + 1


CACHE = """
from gpu import Tensor, Var
keys, values = (Tensor.zeros(16, 4).contiguous().realize() for _ in range(2))
inputs = {"x": Tensor([[1.0, 2.0, 3.0, 4.0]]), "position": Var("place", 0, 15).bind(5)}
other = Var("other", 1, 8).bind(3)

def model(x, position):
    keys[position : position + 1] = x
    values[position : position + 1] = x.flip(1)
    weights = (keys[: position + 1] @ x.reshape(4) / 9).softmax(0)
    ones = Tensor.ones(8)[:other].sum()
    return {"mixed": weights @ values[: position + 1] + ones, "keys": keys[:4] * 1}
"""


def test_positions_are_inputs(site: Site) -> None:
    model = site.load(CACHE)
    folder = site.export(model)
    about = site.description(folder)
    assert about["inputs"]["position"]["range"] == [0, 15]
    assert {value for _, _, values in about["steps"] for value in values} == {"position", 3}
    rows = np.random.default_rng(1).standard_normal((3, 1, 4)).astype(np.float32)
    got = site.browser.run(f"""
        const {{ loadModel }} = await import("{folder}model.js");
        const model = await loadModel(), found = [];
        for (const [position, row] of {rows.reshape(3, 4).tolist()}.entries()) {{
          const outputs = await model.run({{ x: new Float32Array(row), position }});
          found.push([Array.from(outputs.mixed), Array.from(outputs.keys)]);
        }}
        const bad = (position) => model.run({{ x: new Float32Array(4), position }})
          .catch((error) => error.message);
        return [found, await bad(16), await bad(1.5)];
    """)
    keys = np.zeros((4, 4), np.float32)
    for place, row in enumerate(rows):
        keys[place] = row
        seen = keys[: place + 1]
        weights = np.exp(seen @ row[0] / 9)
        mixed = weights / weights.sum() @ seen[:, ::-1] + 3
        np.testing.assert_allclose(got[0][place][0], mixed, 1e-5)
        np.testing.assert_allclose(got[0][place][1], keys.reshape(-1), 1e-6)
    assert got[1] == "Input position is a whole number from 0 to 15, got 16."
    assert got[2].endswith("got 1.5.")


RANDOM = """
from gpu import Tensor
{seed}
def model():
    return Tensor.rand(3), Tensor.randint(6, high=100)
inputs = {{}}
"""


def test_random_numbers_go_on_as_in_python(site: Site) -> None:
    model = site.load(RANDOM.format(seed="Tensor.manual_seed(5); Tensor.rand(7).realize()"))
    folder = site.export(model)
    one, two = site.outputs(folder, runs=2)
    example = safe_load(site.root / folder.strip("/") / "example.safetensors")
    again = model.function({})
    for name in ("output0", "output1"):
        np.testing.assert_array_equal(one[name], example[f"outputs.{name}"].numpy())
        np.testing.assert_array_equal(two[name], again[name].numpy())


# What goes wrong.

SIMPLE = """
from gpu import Tensor
inputs = {"x": Tensor([1.0, 2.0]), "n": Tensor([3])}
def model(x, n):
    return {"y": x * n}
"""


@pytest.fixture(scope="module")
def simple(site: Site) -> str:
    return site.export(SIMPLE)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("{}", "TypeError: Input x is float32[2]: pass Float32Array(2), got undefined."),
        ("{x: new Float32Array(3)}", "got Float32Array(3)."),
        ("{x: new Float64Array(2)}", "got Float64Array(2)."),
        ("{x: [1, 2]}", "got Array(2)."),
        ("{x: 5}", "got 5."),
        ("{x: new Float32Array(2), z: 1}", "TypeError: There is no input z: there is x,n."),
    ],
)
def test_wrong_inputs(site: Site, simple: str, inputs: str, message: str) -> None:
    script = f"const {{loadModel}} = await import('{simple}model.js');"
    with pytest.raises(ScriptError) as caught:
        site.browser.run(f"{script} await (await loadModel()).run({inputs})")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ("undefined", "This browser has no WebGPU"),
        ("{requestAdapter: async () => null}", "WebGPU finds no GPU here"),
        (
            "{requestAdapter: async () => ({features: new Set(), limits: {maxBufferSize: 4}})}",
            "The model needs a maxBufferSize of 8, this GPU has 4.",
        ),
    ],
)
def test_browsers_that_cannot(site: Site, simple: str, adapter: str, message: str) -> None:
    with pytest.raises(ScriptError) as caught:
        site.browser.run(f"""
            const {{loadModel}} = await import("{simple}model.js");
            Object.defineProperty(navigator, "gpu", {{value: {adapter}, configurable: true}});
            try {{ await loadModel(); }} finally {{ delete navigator.gpu; }}
        """)
    assert message in str(caught.value)


def test_f16_where_there_is_none(site: Site) -> None:
    folder = site.export(SIMPLE, f16=True)
    assert site.description(folder)["features"] == ["shader-f16"]
    with pytest.raises(ScriptError, match="lacks shader-f16, which the kernels use"):
        site.outputs(folder)


def test_runs_at_once_take_turns(site: Site, simple: str) -> None:
    got = site.browser.run(f"""
        const {{ loadModel }} = await import("{simple}model.js");
        const model = await loadModel();
        const run = (n) => model.run({{x: new Float32Array([1, 2]), n: new Int32Array([n])}});
        const bad = model.run({{}}).catch((error) => error.name);
        return (await Promise.all([bad, run(1), run(2), run(3)])).map((o) => o.y?.[1] ?? o);
    """)
    assert got == ["TypeError", 2, 4, 6]


def test_lost_device(site: Site, simple: str) -> None:
    with pytest.raises(ScriptError, match=r"The GPU was lost: .*\. Reload the page"):
        site.browser.run(f"""
            const {{ loadModel }} = await import("{simple}model.js");
            const model = await loadModel();
            model.close();
            await model.run({{x: new Float32Array(2), n: new Int32Array(1)}});
        """)


def test_missing_file(site: Site, simple: str) -> None:
    load = f"const {{loadModel}} = await import('{simple}model.js');"
    with pytest.raises(ScriptError, match=r"model\.json: 404"):
        site.browser.run(f"{load} await loadModel(new URL('/none/', location))")


# The page itself.


KINDS = """
from gpu import Tensor, Var
inputs = {
    "picture": Tensor.rand(9, 11), "count": Var("count", 1, 9).bind(3), "flags": Tensor([True]),
    "longs": Tensor([1 << 40, -3]), "nothing": Tensor.ones(0), "large": Tensor.ones(70, 70),
    "special": Tensor([float("inf"), float("-inf"), float("nan")]),
}
def model(picture, count, longs, flags, nothing, large, special):
    return {
        "picture": picture * 2, "row": picture[:count].sum(0), "twice": longs * 2,
        "flags": ~flags, "nothing": nothing + 1, "bad": 0 / (large - 1),
        "one": large.max(), "huge": special * 2,
    }
"""


@pytest.mark.parametrize("source", [KINDS, DTYPES, CACHE, NAMES, RANDOM.format(seed="")])
def test_page_of_each_kind_of_input(site: Site, source: str) -> None:
    found = site.browser.run(f"""
        const frame = document.createElement("iframe");
        frame.src = "{site.export(source)}index.html";
        document.body.append(frame);
        await new Promise((done) => {{ frame.onload = done; }});
        const page = frame.contentDocument;
        const wait = () => new Promise((done) => setTimeout(done, 20));
        while (!["done", "error"].includes(page.body.dataset.state)) await wait();
        for (const field of page.querySelectorAll("textarea")) field.onchange?.();
        for (const field of page.querySelectorAll("input")) field.oninput();
        for (let i = 0; i < 5; i++) await wait();
        const notes = Array.from(page.querySelectorAll("#inputs .note"), (note) => note.innerText);
        frame.remove();
        const refused = notes.filter((text) => text.startsWith("Not"));
        return [page.getElementById("status").textContent, refused];
    """)
    # What is too large for a text field has none to be read.
    assert found[0].startswith("Ran in"), found
    assert found[1] == (["Not used: 0 numbers, not 4900."] if source is KINDS else [])


def test_page(site: Site, simple: str) -> None:
    found = site.browser.run(f"""
        const frame = document.createElement("iframe");
        frame.src = "{simple}index.html";
        document.body.append(frame);
        await new Promise((done) => {{ frame.onload = done; }});
        const page = frame.contentDocument, wait = (ms) => new Promise((f) => setTimeout(f, ms));
        const settled = async () => {{
          while (!["done", "error"].includes(page.body.dataset.state)) await wait(20);
          await wait(50);
          return ["status", "comparison", "outputs"].map((id) => page.getElementById(id).innerText);
        }};
        const seen = [await settled()];
        const type = (text) => {{
          const field = page.querySelector("textarea");
          page.body.dataset.state = "";
          field.value = text;
          field.onchange();
        }};
        type("5, 7.5");
        seen.push(await settled());
        type("1 2 3");
        page.body.dataset.state = "done";
        seen.push([...await settled(), page.querySelector("#inputs .note").innerText]);
        page.getElementById("example").click();
        seen.push(await settled());
        frame.remove();
        return seen;
    """)
    first, typed, refused, restored = found
    assert first[0].startswith("Ran in") and first[1].startswith("Equal to what Python")
    assert [line for line in typed[2].splitlines() if line[-1:] in "05"][-1:] and "22.5" in typed[2]
    assert typed[1] == "" and refused[3] == "Not used: 3 numbers, not 2."
    assert refused[2] == typed[2] and restored[2] == first[2], json.dumps(found)


def test_drawing(site: Site) -> None:
    folder = site.export("""
from gpu import Tensor
inputs = {"picture": Tensor([[0, 7, 0, 0]] * 5)}
def model(picture):
    return {"same": picture.flatten() * 1}
""")
    found = site.browser.run(f"""
        const frame = document.createElement("iframe");
        frame.src = "{folder}index.html";
        document.body.append(frame);
        await new Promise((done) => {{ frame.onload = done; }});
        const page = frame.contentDocument;
        const settled = async () => {{
          do await new Promise((done) => setTimeout(done, 50));
          while (page.body.dataset.state !== "done");
          return Array.from(page.querySelectorAll(".bars span:nth-child(3n)"), (n) => n.innerText);
        }};
        await settled();
        const canvas = page.querySelector("canvas"), box = canvas.getBoundingClientRect();
        const draw = (column, row, buttons) => {{
          const clientX = box.left + (column + 0.5) * box.width / 4;
          const clientY = box.top + (row + 0.5) * box.height / 5;
          canvas.dispatchEvent(new PointerEvent("pointermove", {{ clientX, clientY, buttons }}));
        }};
        draw(0, 0, 1);
        draw(2, 4, 1);
        draw(1, 1, 2);
        draw(3, 3, 0);
        draw(4, 0, 1);
        const drawn = await settled();
        page.querySelector(".card button").click();
        const cleared = await settled();
        frame.remove();
        return [drawn, cleared];
    """)
    wanted = np.array([[0, 7, 0, 0]] * 5)
    wanted[0, 0] = wanted[4, 2] = 7
    wanted[1, 1] = 0
    assert found == [[str(n) for n in wanted.flat], ["0"] * 20]

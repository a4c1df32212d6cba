"""GGUF files: every type against ggml's own Python package, hostile files refused."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu
from bounded import bounded
from gpu import Tensor, dtypes
from gpu.core.errors import FormatError, GpuError, Unsupported
from gpu.nn.state import gguf_load
from gpu.tensor.formats.ggml_blocks import BLOCK_TYPES

HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (), "NVFP4": (),
}  # fmt: skip
"""Where a block has its scales as float16; random bytes would make many of them NaN."""

QUANTISED = {number: kind for number, kind in BLOCK_TYPES.items() if kind.name in HALVES}


def blocks(kind: Any, count: int, seed: int) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(seed)
    data = draw.integers(0, 256, (count, kind.size), dtype=np.uint8)
    for place in HALVES[kind.name]:
        scales = draw.standard_normal(count).astype(np.float16)
        data[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind.name == "MXFP4":
        data[:, 0] = draw.integers(0, 200, count)
    return data


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(name: str, sizes: tuple[int, ...], kind: int, offset: int) -> bytes:
    head = text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return head + struct.pack("<IQ", kind, offset)


def made(
    infos: list[bytes], entries: list[bytes], data: bytes, version: int = 3, alignment: int = 32
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(entries))
    head += b"".join(entries) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + data


def file_of(number: int) -> bytes:
    """Three rows of two blocks of a type."""
    kind = BLOCK_TYPES[number]
    data = blocks(kind, 3 * 2, number)
    return made([info("w", (2 * kind.elements, 3), number, 0)], [], data.tobytes())


@pytest.mark.parametrize("number", QUANTISED, ids=[kind.name for kind in QUANTISED.values()])
def test_quantised_types(number: int, need: Callable[[str], None]) -> None:
    need("gguf")
    from gguf import quants

    found = gguf_load(file_of(number), "CPU").tensors["w"]
    expected = quants.dequantize(blocks(BLOCK_TYPES[number], 3 * 2, number).reshape(3, -1), number)
    assert found.shape == expected.shape and found.dtype is dtypes.float32
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize("number", QUANTISED, ids=[kind.name for kind in QUANTISED.values()])
def test_quantised_types_on_devices(number: int, device: str) -> None:
    """As the interpreter decodes them, and multiplied on the way, as a layer does."""
    found = gguf_load(file_of(number), device).tensors["w"]
    expected = gguf_load(file_of(number), "PYTHON").tensors["w"].numpy()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-6 * scale)
    draw = np.random.default_rng(1)
    x = Tensor(draw.standard_normal((4, expected.shape[1]), np.float32), device=device)
    product = x.numpy() @ expected.T
    np.testing.assert_allclose((x @ found.T).numpy(), product, rtol=1e-4, atol=1e-5 * scale * 30)


def test_plain_q8_types() -> None:
    """Q8_1 and Q8_K, which ggml keeps in memory alone and its package does not decode."""
    draw = np.random.default_rng(0)
    q = draw.integers(-128, 128, (2, 256), dtype=np.int8)
    d = draw.standard_normal(2).astype(np.float32)
    whole = b"".join(d[i].tobytes() + q[i].tobytes() + bytes(32) for i in range(2))
    found = gguf_load(made([info("w", (256, 2), 15, 0)], [], whole)).tensors["w"]
    np.testing.assert_array_equal(found.numpy(), d[:, None] * q)
    half = d.astype(np.float16)
    short = b"".join(half[i].tobytes() + bytes(2) + q[i, :32].tobytes() for i in range(2))
    found = gguf_load(made([info("w", (32, 2), 9, 0)], [], short)).tensors["w"]
    np.testing.assert_array_equal(found.numpy(), half.astype(np.float32)[:, None] * q[:, :32])


def test_a_file_of_ggml(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("gguf")
    import gguf

    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("n", 7)
    writer.add_array("tokens", ["a", "é", ""])
    writer.add_array("scores", [0.5, -1.0])
    writer.add_bool("on", True)
    writer.add_float64("pi", 3.14)
    draw = np.random.default_rng(5)
    plain = {
        name: draw.integers(0, 9, (2, 3, 4)).astype(name)
        for name in ("float32", "float16", "int8", "int16", "int32", "int64")
    }
    for name, value in plain.items():
        writer.add_tensor(name, value)
    weight = draw.standard_normal((8, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_1
    packed = gguf.quants.quantize(weight, kind)
    writer.add_tensor("weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata, tensors = gguf_load(path)
    assert metadata["general.architecture"] == "llama" and metadata["n"] == 7
    assert metadata["tokens"] == ["a", "é", ""] and metadata["scores"] == [0.5, -1.0]
    assert metadata["on"] is True and metadata["pi"] == 3.14
    for name, value in plain.items():
        assert tensors[name].dtype.name == name
        np.testing.assert_array_equal(tensors[name].numpy(), value)
    expected = gguf.quants.dequantize(packed, kind)
    np.testing.assert_allclose(gpu.load(path)["weight"].numpy(), expected, rtol=1e-6)


def test_a_weight_stays_packed() -> None:
    """What a layer's weight holds between its uses is the file's bytes."""
    kind, number = BLOCK_TYPES[2], 2
    data = blocks(kind, 64, 0)
    weight = gguf_load(made([info("w", (64, 32), number, 0)], [], data.tobytes())).tensors["w"]
    x = Tensor.ones(1, 64).realize()
    y = (x @ weight.T).realize()
    # Decoded anew: float32 would be four bytes an element, the file has 18 for 32.
    assert (x @ weight.T).explain().nbytes < weight.numel() * 2
    np.testing.assert_allclose(y.numpy()[0], weight.numpy().sum(1), rtol=1e-4, atol=1e-4)


def test_empty_and_scalar() -> None:
    source = made(
        [info("none", (0, 2), 2, 0), info("one", (), 0, 0), info("v", (2,), 28, 32)],
        [entry("general.alignment", 4, struct.pack("<I", 32))],
        struct.pack("<f28x2d", 2.5, 1.0, 2.0),
        version=2,
    )
    tensors = gguf_load(source).tensors
    assert tensors["none"].shape == (2, 0) and tensors["one"].item() == 2.5
    assert tensors["v"].tolist() == [1.0, 2.0]


NESTED = struct.pack("<IQ", 9, 1) * 5 + struct.pack("<IQ", 0, 0)
F32 = [info("w", (8,), 0, 0)]
WRONG = {
    "magic": (b"GGML" + bytes(60), "begins with b'GGUF', this one with b'GGML'"),
    "empty": (b"", "begins with b'GGUF'"),
    "version": (made(F32, [], bytes(32), version=1), "version is 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "many tensors": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "1,152,921.* tensors, more"),
    "many entries": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63), "entries, more"),
    "cut": (made(F32, [], bytes(16)), "ends at 32 of the data, which ends at 16"),
    "cut head": (made(F32, [], b"")[:40], "inside of the type of 'w'|inside of a size|inside of"),
    "twice": (made(F32 * 2, [], bytes(32)), "two tensors 'w'"),
    "overlap": (
        made([*F32, info("v", (16,), 0, 0)], [], bytes(64)),
        "tensor 'v' begins at 0, inside of tensor 'w'",
    ),
    "offset": (made([info("w", (8,), 0, 4)], [], bytes(64)), "begins at 4, no multiple"),
    "far": (made([info("w", (8,), 0, 1 << 62)], [], bytes(64)), "cut off"),
    "type": (made([info("w", (8,), 5, 0)], [], bytes(64)), "type 5, which no type of ggml"),
    "rows": (made([info("w", (48,), 2, 0)], [], bytes(64)), "48 elements are no whole number"),
    "dimensions": (made([info("w", (1,) * 5, 0, 0)], [], bytes(64)), "5 dimensions"),
    "huge": (made([info("w", (1 << 62, 8), 0, 0)], [], bytes(64)), "larger than any memory"),
    "not UTF-8": (
        made([], [struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IB", 0, 1)], b""),
        "not UTF-8",
    ),
    "key twice": (made([], [entry("k", 0, b"\1")] * 2, b""), "'k' twice"),
    "bool": (made([], [entry("k", 7, b"\2")], b""), "bool with the value 2"),
    "value's type": (made([], [entry("k", 13, b"\2" * 8)], b""), "type 13"),
    "elements' type": (
        made([], [entry("k", 9, struct.pack("<IQ", 13, 1) + b"\1")], b""),
        "type 13",
    ),
    "long string": (made([], [entry("k", 8, struct.pack("<Q", 1 << 40))], b""), "inside of"),
    "long list": (
        made([], [entry("k", 9, struct.pack("<IQ", 12, 1 << 61))], b""),
        "elements of 'k', more",
    ),
    "nested": (made([], [entry("k", 9, NESTED)], b""), "nested more than 4 deep"),
    "alignment": (made([], [entry("general.alignment", 4, struct.pack("<I", 24))], b""), "power"),
    "alignment's type": (made([], [entry("general.alignment", 8, text("x"))], b""), "power of two"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files(name: str) -> None:
    source, message = WRONG[name]
    with pytest.raises(FormatError, match=message):
        gguf_load(source)


def test_types_that_are_not_decoded() -> None:
    with pytest.raises(Unsupported, match="'w' is IQ1_S, which is not decoded here; quantise"):
        gguf_load(made([info("w", (256,), 19, 0)], [], bytes(64)))


def test_damaged_files() -> None:
    """Bytes changed at random: a typed error or tensors, soon, never anything else."""
    draw = random.Random(11)
    entries = [
        entry("general.alignment", 4, struct.pack("<I", 32)),
        entry("tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bc")),
        entry("x", 12, struct.pack("<d", 1.0)),
    ]
    whole = made([*F32, info("q", (32, 2), 2, 32)], entries, bytes(96))
    with bounded(20.0):
        for _ in range(2000):
            data = bytearray(whole)
            for _ in range(draw.randint(1, 4)):
                data[draw.randrange(len(data))] = draw.choice((0, 1, 255, draw.randrange(256)))
            end = draw.choice((len(data), draw.randrange(len(data))))
            with contextlib.suppress(GpuError):
                gguf_load(bytes(data[:end]))

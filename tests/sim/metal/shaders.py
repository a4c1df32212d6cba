"""Ten shaders in GLSL, which SPIRV-Cross makes MSL of, each with what numpy says of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
THREADS: Final = 64
_HEAD: Final = """#version 450
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
layout(local_size_x = 64) in;
#define INPUT(at, kind, name) layout(std430, binding = at) readonly buffer In##at { kind name[]; };
#define OUTPUT(at, kind, name) layout(std430, binding = at) buffer Out##at { kind name[]; };
"""


@dataclass(frozen=True)
class Shader:
    """A shader.

    Attributes:
        text: behind `_HEAD`.
        given: makes arrays for its bindings; the last one is the result.
        wanted: what numpy makes of the others.
        groups: of `THREADS` threads.
    """

    text: str
    given: Callable[[np.random.Generator], list[Array]]
    wanted: Callable[..., Array]
    groups: int = 4

    def msl(self, folder: Path) -> str:
        """Its MSL, with the bindings as indices of buffers."""
        source, binary = folder / "shader.comp", folder / "shader.spv"
        source.write_text(_HEAD + self.text)
        compile = ["glslangValidator", "-V", "--target-env", "vulkan1.1", source, "-o", binary]
        subprocess.run(compile, check=True, capture_output=True)
        options = ["--msl", "--msl-version", "20300", "--msl-decoration-binding"]
        done = subprocess.run(["spirv-cross", binary, *options], check=True, capture_output=True)
        return done.stdout.decode()


def _floats(*lengths: int) -> Callable[[np.random.Generator], list[Array]]:
    return lambda rng: [rng.standard_normal(n).astype(np.float32) for n in lengths]


def _integers(*lengths: int) -> Callable[[np.random.Generator], list[Array]]:
    return lambda rng: [rng.integers(0, 1 << 16, n).astype(np.uint32) for n in lengths]


_ALL: Final = 4 * THREADS
SHADERS: Final = {
    "axpy": Shader(
        """INPUT(0, float, x) INPUT(1, float, y) OUTPUT(2, float, z)
        void main() { uint i = gl_GlobalInvocationID.x; z[i] = fma(x[i], 2.5, y[i]); }""",
        _floats(_ALL, _ALL, _ALL),
        lambda x, y: np.float32(2.5) * x + y,
    ),
    "functions": Shader(
        """INPUT(0, float, x) OUTPUT(1, float, z)
        void main() {
          uint i = gl_GlobalInvocationID.x;
          float a = clamp(x[i], -1.0, 1.0);
          z[i] = exp(a) + sin(a) * tanh(a) + sqrt(abs(a)) + floor(4.0 * a) + pow(2.0, a);
        }""",
        _floats(_ALL, _ALL),
        lambda x: (
            np.exp(a := np.clip(x, -1, 1)) + np.sin(a) * np.tanh(a)
            + np.sqrt(np.abs(a)) + np.floor(4 * a) + np.exp2(a)
        ),
    ),
    "sums": Shader(
        """INPUT(0, float, x) OUTPUT(1, float, z) shared float held[64];
        void main() {
          uint l = gl_LocalInvocationID.x;
          held[l] = x[gl_GlobalInvocationID.x];
          barrier();
          for (uint s = 32u; s > 0u; s >>= 1) { if (l < s) held[l] += held[l + s]; barrier(); }
          if (l == 0u) z[gl_WorkGroupID.x] = held[0];
        }""",
        _floats(_ALL, 4),
        lambda x: x.reshape(4, -1).sum(1),
    ),
    "transposed": Shader(
        """INPUT(0, float, x) OUTPUT(1, float, z) shared float held[8][9];
        void main() {
          uint l = gl_LocalInvocationID.x, g = gl_WorkGroupID.x * 64u;
          held[l / 8u][l % 8u] = x[g + l];
          barrier();
          z[g + l] = held[l % 8u][l / 8u];
        }""",
        _floats(_ALL, _ALL),
        lambda x: x.reshape(4, 8, 8).transpose(0, 2, 1).ravel(),
    ),
    "vectors": Shader(
        """INPUT(0, vec4, x) INPUT(1, vec4, y) OUTPUT(2, float, z)
        void main() {
          uint i = gl_GlobalInvocationID.x;
          z[i] = dot(x[i], y[i].wzyx) + length(x[i].xyz) + max(x[i], y[i]).y;
        }""",
        _floats(4 * _ALL, 4 * _ALL, _ALL),
        lambda x, y: (
            (x * y.reshape(-1, 4)[:, ::-1].ravel()).reshape(-1, 4).sum(1)
            + np.sqrt((x.reshape(-1, 4)[:, :3] ** 2).sum(1)) + np.maximum(x, y)[1::4]
        ),
    ),
    "matrices": Shader(
        """INPUT(0, mat4, m) INPUT(1, vec4, v) OUTPUT(2, vec4, z)
        void main() { uint i = gl_GlobalInvocationID.x; z[i] = m[i] * v[i]; }""",
        _floats(16 * _ALL, 4 * _ALL, 4 * _ALL),
        lambda m, v: np.einsum("nkr,nk->nr", m.reshape(-1, 4, 4), v.reshape(-1, 4)).ravel(),
    ),
    "histogram": Shader(
        """INPUT(0, uint, x) OUTPUT(1, uint, z)
        void main() { atomicAdd(z[x[gl_GlobalInvocationID.x] % 7u], 1u); }""",
        lambda rng: [*_integers(_ALL)(rng), np.zeros(7, np.uint32)],
        lambda x: np.bincount(x % 7, minlength=7).astype(np.uint32),
    ),
    "bits": Shader(
        """INPUT(0, uint, x) OUTPUT(1, uint, z)
        void main() {
          uint i = gl_GlobalInvocationID.x, a = x[i];
          z[i] = uint(bitCount(a)) + (a << 3) ^ (a >> 5) + a / 7u + floatBitsToUint(float(a)) % 11u;
        }""",
        _integers(_ALL, _ALL),
        lambda x: (
            (np.array([int(a).bit_count() for a in x], np.uint32) + (x << 3))
            ^ ((x >> 5) + x // 7 + x.astype(np.float32).view(np.uint32) % 11)
        ),
    ),
    "subgroups": Shader(
        """INPUT(0, float, x) OUTPUT(1, float, z)
        void main() {
          uint i = gl_GlobalInvocationID.x;
          z[i] = subgroupAdd(x[i]) + subgroupMax(x[i]) + subgroupShuffleXor(x[i], 3u);
        }""",
        _floats(_ALL, _ALL),
        lambda x: (
            np.repeat(x.reshape(-1, 32).sum(1) + x.reshape(-1, 32).max(1), 32)
            + x[np.arange(len(x)) ^ 3]
        ),
    ),
    "loops": Shader(
        """struct Pair { int steps; float seed; };
        layout(std430, binding = 0) readonly buffer In0 { Pair pairs[]; };
        OUTPUT(1, float, z)
        void main() {
          uint i = gl_GlobalInvocationID.x;
          float value = pairs[i].seed;
          for (int n = 0; n < pairs[i].steps % 20; n++) {
            if (value > 4.0) break;
            value = value * value * 0.5 + 0.25;
          }
          z[i] = value;
        }""",
        lambda rng: [
            np.stack(
                [rng.integers(0, 40, _ALL).astype(np.uint32),
                 rng.uniform(0, 3, _ALL).astype(np.float32).view(np.uint32)], 1
            ).ravel(),
            np.zeros(_ALL, np.float32),
        ],
        lambda pairs: np.array([_iterated(*pair) for pair in pairs.reshape(-1, 2)], np.float32),
    ),
}  # fmt: skip
"""What SPIRV-Cross is given."""


def _iterated(steps: np.uint32, seed: np.uint32) -> np.float32:
    value = np.array(seed, np.uint32).view(np.float32)[()]
    for _ in range(int(steps) % 20):
        if value > 4:
            break
        value = np.float32(value * value * np.float32(0.5) + np.float32(0.25))
    return np.float32(value)

"""Other libraries that are written for the array API, unchanged, on our tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import gpu
from gpu import Tensor, array_api

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")


def test_array_api_compat(need: Callable[[str], None], device: str) -> None:
    need("array-api-compat")
    compat = import_module("array_api_compat")
    x = Tensor(X, device=device)
    assert compat.is_array_api_obj(x) and compat.array_namespace(x, x) is array_api
    assert (compat.device(x), compat.size(x)) == (device, 24)
    assert compat.to_device(x, "PYTHON").device == "PYTHON"


@pytest.mark.parametrize("pattern", ["a b c -> c (a b)", "a (b e) c -> (a e) b c"])
def test_einops(pattern: str, need: Callable[[str], None], device: str) -> None:
    need("einops")
    einops, namespaced = import_module("einops"), import_module("einops.array_api")
    x = Tensor(X, device=device)
    sizes = {"e": 3} if "e" in pattern else {}
    found = namespaced.rearrange(x, pattern, **sizes)
    assert isinstance(found, Tensor) and found.device == device
    np.testing.assert_array_equal(found.numpy(), einops.rearrange(X, pattern, **sizes))
    mean = namespaced.reduce(x, "a b c -> a c", "mean")
    np.testing.assert_allclose(mean.numpy(), X.mean(1), 1e-5, 1e-6)
    packed, _ = namespaced.pack([x, x], "* b c")
    assert packed.shape == (4, 3, 4)


# scipy reads its setting when it is imported, and scikit-learn asks for it.
SCIPY = """
import numpy as np
from scipy import special, stats
from gpu import Tensor
x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
for call in (
    lambda x: special.logsumexp(x, axis=1), special.expit, lambda x: special.softmax(x, axis=1),
    stats.zscore, stats.skew, lambda x: stats.gmean(abs(x)), lambda x: stats.entropy(abs(x)),
):
    found = call(Tensor(x))
    assert isinstance(found, Tensor)
    np.testing.assert_allclose(found.numpy(), call(x), 2e-4, 1e-5)
print("done")
"""


SKLEARN = """
import numpy as np
from sklearn import config_context
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from gpu import Tensor
rng = np.random.default_rng(0)
x = rng.normal(size=(40, 5))
y = x @ rng.normal(size=5) + 0.1 * rng.normal(size=40)
with config_context(array_api_dispatch=True):
    for make in (
        StandardScaler, MinMaxScaler, lambda: PCA(2, svd_solver="full"),
        lambda: PCA(2, svd_solver="covariance_eigh"),
    ):
        found = make().fit_transform(Tensor(x))
        assert isinstance(found, Tensor)
        # The sign of a component is free.
        np.testing.assert_allclose(abs(found.numpy()), abs(make().fit_transform(x)), 1e-8, 1e-8)
    ridge = Ridge(alpha=0.5, solver="svd").fit(Tensor(x), Tensor(y))
    assert isinstance(ridge.coef_, Tensor)
    wanted = Ridge(alpha=0.5, solver="svd").fit(x, y)
    np.testing.assert_allclose(ridge.coef_.numpy(), wanted.coef_, 1e-8)
    np.testing.assert_allclose(ridge.predict(Tensor(x)).numpy(), wanted.predict(x), 1e-8)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("peer", "program"), [("scipy", SCIPY), ("scikit-learn", SKLEARN)])
def test_programs_with_other_libraries(
    peer: str, program: str, need: Callable[[str], None]
) -> None:
    need(peer)
    home = str(Path(gpu.__file__).parents[1])
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"SCIPY_ARRAY_API": "1", "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"

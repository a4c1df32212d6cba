"""Special functions by the names of `torch.special`, with its arguments.

>>> from gpu import Tensor, special
>>> special.ndtr(Tensor([0.0])).item()
0.5

Integers and bools are taken as float32. How exact they are is measured in `docs/accuracy.md`.
"""

from __future__ import annotations

from gpu.tensor.special.airy import (
    airy_ai,
)
from gpu.tensor.special.bessel import (
    bessel_j0,
    bessel_j1,
    bessel_y0,
    bessel_y1,
    i0,
    i0e,
    i1,
    i1e,
    modified_bessel_k0,
    modified_bessel_k1,
    scaled_modified_bessel_k0,
    scaled_modified_bessel_k1,
    spherical_bessel_j0,
)
from gpu.tensor.special.error import (
    erfc,
    erfcx,
    erfinv,
    log_ndtr,
    ndtr,
    ndtri,
)
from gpu.tensor.special.gamma import (
    digamma,
    lgamma,
    multigammaln,
    polygamma,
)
from gpu.tensor.special.incomplete import (
    gammainc,
    gammaincc,
)
from gpu.tensor.special.plain import (
    entr,
    erf,
    exp2,
    expit,
    expm1,
    log1p,
    log_softmax,
    logit,
    logsumexp,
    round,
    sinc,
    softmax,
    xlog1py,
    xlogy,
)
from gpu.tensor.special.polynomials import (
    chebyshev_polynomial_t,
    chebyshev_polynomial_u,
    chebyshev_polynomial_v,
    chebyshev_polynomial_w,
    hermite_polynomial_h,
    hermite_polynomial_he,
    laguerre_polynomial_l,
    legendre_polynomial_p,
    shifted_chebyshev_polynomial_t,
    shifted_chebyshev_polynomial_u,
    shifted_chebyshev_polynomial_v,
    shifted_chebyshev_polynomial_w,
)
from gpu.tensor.special.zeta import (
    zeta,
)

gammaln = lgamma
psi = digamma
modified_bessel_i0 = i0
modified_bessel_i1 = i1

__all__ = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp2",
    "expit",
    "expm1",
    "gammainc",
    "gammaincc",
    "gammaln",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "log1p",
    "log_ndtr",
    "log_softmax",
    "logit",
    "logsumexp",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "psi",
    "round",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
    "sinc",
    "softmax",
    "spherical_bessel_j0",
    "xlog1py",
    "xlogy",
    "zeta",
]

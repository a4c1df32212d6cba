"""Transforms of functions, as jax has them: derivatives, and one example's function for many.

>>> from gpu import Tensor, func
>>> func.grad(lambda x: (x * x).sum())(Tensor([1.0, 2.0])).tolist()
[2.0, 4.0]

They nest in any order, and work inside and outside of `gpu.jit`: docs/howto/transforms.md.
"""

from gpu.tensor.func.derivatives import grad, jvp, value_and_grad, vjp
from gpu.tensor.func.jacobians import hessian, jacfwd, jacrev
from gpu.tensor.func.mapping import vmap

__all__ = ["grad", "hessian", "jacfwd", "jacrev", "jvp", "value_and_grad", "vjp", "vmap"]

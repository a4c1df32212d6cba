"""The tensor API: lazy tensors, autograd, and what is built on them."""

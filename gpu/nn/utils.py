"""What is done with gradients between `backward` and a step: `gpu.tensor.nn.clipping`."""

from gpu.tensor.nn.clipping import (
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]

"""The NV device: the tensor library on command queues through NVIDIA's kernel driver."""

"""The AMD device: the tensor library on command queues through the amdgpu kernel driver."""

"""From a graph of tensor operations to machine code; knows nothing of tensors or devices."""

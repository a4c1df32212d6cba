"""What neural networks are built of, on top of tensors."""

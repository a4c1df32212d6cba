"""Torch's own table of its operations and of arguments to test them with, run on our tensors."""
